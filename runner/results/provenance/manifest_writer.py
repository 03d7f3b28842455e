"""Build the manifest of a new or resumed run: hashes of all inputs, and the version of the code."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from runner.base.hashing import tagged_hash
from runner.base.storage.format_versions import RUN_FOLDER
from runner.models.prices import price_list_version, uses_price_list
from runner.results.manifest import INITIAL_FACTS, AgentRow, Manifest, RejudgeSource, Status, now
from runner.results.provenance.file_pins import GitState
from runner.results.provenance.input_files import dataset_selection, spec_hash
from runner.results.provenance.sources_snapshot import sources_of
from runner.rollouts.agents.agent import Agent
from runner.rollouts.identity import protocol_content
from runner.rollouts.plan import Plan
from runner.spec.components import manifest_entries
from runner.spec.loader import Spec
from runner.version import __version__


def new_manifest(plan: Plan, run_id: str, identity: str) -> Manifest:
    """Return the manifest of a run that starts now. `identity` is the hash that identifies the run."""
    spec = plan.spec
    commit, dirty = (None, None) if spec.path is None else git_state(spec.path)
    if "sources" in spec.recorded_fields:
        sources = spec.recorded_fields["sources"]
    else:
        sources = {name: asdict(source) for name, source in sources_of(spec).items()} or None
    return replace(_plan_manifest(plan, run_id, identity), git_commit=commit, git_dirty=dirty, sources=sources)


def _plan_manifest(plan: Plan, run_id: str, identity: str) -> Manifest:
    """Return a manifest with the fields that follow from the plan, the time and this version of nip-run."""
    spec = plan.spec
    manifest = Manifest(
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
        protocol_sha256=tagged_hash("protocol", protocol_content(spec.protocol)),
        dataset_sha256=spec.dataset.sha256,
        dataset_source_sha256=spec.dataset.source_sha256,
        dataset_selection=dataset_selection(plan),
        replayed_sha256=dict(spec.replayed_sha256),
        plugins=dict(spec.plugins) or None,
        version=__version__,
        python=platform.python_version(),
        git_commit=None,
        git_dirty=None,
        agents=tuple(_agent_row(name, agent) for name, agent in plan.agents().items()),
        started_at=now(),
        rejudge_of=_rejudge_source(spec),
        analysis_of=None if spec.experiment.analysis is None else spec.experiment.analysis.run_id,
        shard=spec.shard,
        components=manifest_entries(spec.components) or None,
        got_from=spec.got_from,
        prices=price_list_version()
        if uses_price_list(agent.model_settings for agent in plan.agents().values())
        else None,
        recorded=(*INITIAL_FACTS, "prices"),
    )
    return replace(manifest, **spec.recorded_fields)


_UNCHANGED_FIELDS = (
    "kind", "parent_run_id", "iteration", "protocol_sha256", "version", "python", "git_commit", "git_dirty",
    "started_at", "sources", "components", "reproduces", "unknown",
)  # fmt: skip
"""The fields that do not change if a run is resumed with a plan that may have more games.

The protocol's hash is one of them. The rules are the same, but 0.1.0 hashed the text of the file.
"""


def updated_manifest(manifest: Manifest, plan: Plan) -> Manifest:
    """Return the manifest of a resumed run, whose plan may have more games."""
    new = _plan_manifest(plan, manifest.run_id, manifest.identity)
    if manifest.price_basis.text_only:
        new = replace(new, prices=None, recorded=INITIAL_FACTS)
    got_from = manifest.got_from or _release_of_spec(plan.spec, manifest.components or {})
    return replace(new, got_from=got_from, **{name: getattr(manifest, name) for name in _UNCHANGED_FIELDS})


def _release_of_spec(spec: Spec, components: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the fetched release that contains the spec, unless the spec names this release as a component."""
    component_releases = {component["release"] for component in components.values()}
    return None if spec.got_from is None or spec.got_from["release"] in component_releases else spec.got_from


def _rejudge_source(spec: Spec) -> RejudgeSource | None:
    if spec.rejudged is None or spec.experiment.rejudge is None:
        return None
    return RejudgeSource(spec.rejudged.run_id, spec.rejudged.journal_sha256, spec.experiment.rejudge.verdict)


def _agent_row(name: str, agent: Agent) -> AgentRow:
    return {
        "agent": name,
        "role": agent.agent_spec.role,
        "model_group": agent.model_group,
        "provider": agent.model_settings.provider,
        "model": agent.model_name,
        "base_model": agent.base_model_name,
    }


def git_state(path: Path) -> tuple[str | None, bool | None]:
    """Return the commit of a file's repository, and whether the repository or the file has uncommitted changes.

    Return (None, None) if the file is in no repository, or if git ignores the file.
    """
    git = GitState(path.parent).line
    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None, None
    name = f"./{path.name}"
    if git("ls-files", "--error-unmatch", "--", name) is not None:
        changes = git("status", "--porcelain", "--untracked-files=no")
        return commit, None if changes is None else bool(changes)
    return (commit, True) if git("check-ignore", "-q", "--", name) is None else (None, None)
