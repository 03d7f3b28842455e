"""A plan into the manifest of its run: hashes of all that it is made of, and by which code."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import replace

from runner.agents.agent import Agent
from runner.documents.fields import to_plain
from runner.hashing import tagged_hash
from runner.results.inputs import dataset_selection, spec_hash
from runner.results.manifest import INITIAL_FACTS, AgentRow, Manifest, Status, now
from runner.rollouts.plan import Plan
from runner.storage.formats import RUN_FOLDER
from runner.version import __version__


def new_manifest(plan: Plan, run_id: str, identity: str) -> Manifest:
    """What is known when a run starts; `identity` is what tells it apart."""
    spec = plan.spec
    commit, dirty = git_state()
    return Manifest(
        format=RUN_FOLDER,
        run_id=run_id,
        name=spec.experiment.name,
        kind=spec.experiment.kind,
        benchmark=plan.benchmark,
        protocol=spec.protocol.name,
        status=Status.RUNNING,
        seed=spec.experiment.seed,
        point=dict(spec.point),
        identity=identity,
        game_sha256=plan.game_hash,
        spec_sha256=spec_hash(plan),
        prompts_sha256={name: tagged_hash("prompt", text) for name, text in sorted(spec.prompts.sources.items())},
        protocol_sha256=spec.protocol_sha256 or tagged_hash("protocol", to_plain(spec.protocol.file)),
        dataset_sha256=spec.dataset.sha256,
        dataset_source_sha256=spec.dataset.source_sha256,
        dataset_selection=dataset_selection(plan),
        replayed_sha256=dict(spec.replayed),
        version=__version__,
        python=platform.python_version(),
        git_commit=commit,
        git_dirty=dirty,
        agents=tuple(_agent_row(name, agent) for name, agent in plan.agents().items()),
        started_at=now(),
        recorded=INITIAL_FACTS,
    )


def updated_manifest(manifest: Manifest, plan: Plan) -> Manifest:
    """The manifest of a run that goes on, perhaps with more to play; what began it stays."""
    return replace(
        new_manifest(plan, manifest.run_id, manifest.identity),
        kind=manifest.kind,
        parent_run_id=manifest.parent_run_id,
        iteration=manifest.iteration,
        version=manifest.version,
        python=manifest.python,
        git_commit=manifest.git_commit,
        git_dirty=manifest.git_dirty,
        started_at=manifest.started_at,
        unknown=manifest.unknown,
    )


def _agent_row(name: str, agent: Agent) -> AgentRow:
    return {
        "agent": name,
        "role": agent.agent_spec.role,
        "model_group": agent.model_group,
        "provider": agent.model_settings.provider,
        "model": agent.model_name,
        "base_model": agent.base_model_name,
    }


def git_state() -> tuple[str | None, bool | None]:
    """The commit of the working folder and whether it has uncommitted changes; (None, None) outside git."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ("git", *arguments), capture_output=True, text=True, timeout=5, check=False,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None, None
    changes = git("status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else bool(changes)
