"""The manifest of a run: hashes of all it is made of, and what became of it."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from runner.agents.agent import Agent
from runner.documents.fields import to_plain
from runner.errors import RunDirectoryError, RunError
from runner.hashing import tagged_hash
from runner.results.folder import RUNNING, RunFolder
from runner.results.inputs import resolved_spec
from runner.results.provenance import git_state
from runner.rollouts.plan import Plan
from runner.version import __version__


def now() -> str:
    """The time in UTC, to the second, as the tables have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class TrainingPart:
    """What a run is of the training run that it belongs to."""

    parent_run_id: str
    iteration: int
    kind: str
    """`training`: its games are trained on; `benchmark`: they measure."""

    @property
    def fields(self) -> dict[str, Any]:
        """Its part of the manifest."""
        return {"parent_run_id": self.parent_run_id, "iteration": self.iteration, "kind": self.kind}


class Identified(Protocol):
    """What tells runs apart: a plan of games, or of training."""

    @property
    def identity(self) -> str: ...

    @property
    def mutable_keys(self) -> tuple[str, ...]:
        """The keys of a spec that are not in the identity; `*` is any one name."""
        ...


def open_folder(
    plan: Plan, results: Path, run_id: str, run: Identified | None = None
) -> tuple[RunFolder, dict[str, Any]]:
    """The folder of a run: a new one, or the one that was begun, with its manifest.

    `run` is what tells the run apart, where that is not the plan of its games.

    Raises:
        RunDirectoryError: the folder belongs to another spec.
        RunError: it cannot be written.
    """
    folder = RunFolder(results / "runs" / run_id)
    manifest = manifest_of(plan, folder, run)
    if manifest is not None:
        return folder, manifest
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make {folder.path}: {error.strerror}") from error
    return folder, {**new_manifest(plan, run_id), "identity": (run or plan).identity}


def manifest_of(plan: Plan, folder: RunFolder, run: Identified | None = None) -> dict[str, Any] | None:
    """The manifest of a plan's run, or of the run that its games are for; None where it has not begun.

    Raises:
        RunDirectoryError: the folder belongs to another spec.
    """
    if not folder.manifest_path.is_file():
        return None
    manifest = folder.manifest()
    if manifest["identity"] != (run or plan).identity:
        keys = changed_keys(folder, manifest, plan, (run or plan).mutable_keys)
        what = f"these keys differ: {', '.join(keys)}" if keys else "the contents of its files differ"
        raise RunDirectoryError(f"{folder.path} holds another spec's run; {what}. Choose another --run-id")
    return manifest


def new_manifest(plan: Plan, run_id: str) -> dict[str, Any]:
    """What is known when a run starts: hashes of all it is made of, and by which code."""
    spec = plan.spec
    commit, dirty = git_state()
    return {
        "run_id": run_id,
        "name": spec.experiment.name,
        "kind": spec.experiment.kind,
        "benchmark": plan.benchmark,
        "protocol": spec.protocol.name,
        "status": RUNNING,
        "seed": spec.experiment.seed,
        "point": dict(spec.point),
        "identity": plan.identity,
        "game_sha256": plan.game_hash,
        "spec_sha256": tagged_hash("spec", resolved_spec(plan)),
        "prompts_sha256": {name: tagged_hash("prompt", text) for name, text in sorted(spec.prompts.sources.items())},
        "protocol_sha256": tagged_hash("protocol", to_plain(spec.protocol.file)),
        "dataset_sha256": spec.dataset.sha256,
        "dataset_source_sha256": spec.dataset.source_sha256,
        "dataset_selection": _dataset_selection(plan),
        "replayed_sha256": dict(spec.replayed),
        "version": __version__,
        "python": platform.python_version(),
        "git_commit": commit,
        "git_dirty": dirty,
        "parent_run_id": None,
        "iteration": None,
        "agents": [_agent_row(name, agent) for name, agent in plan.agents().items()],
        "started_at": now(),
        "finished_at": None,
    }


def _agent_row(name: str, agent: Agent) -> dict[str, Any]:
    return {
        "agent": name,
        "role": agent.agent_spec.role,
        "model_group": agent.shared_model_group,
        "provider": agent.model_settings.provider,
        "model": agent.model_name,
        "base_model": agent.base_model_name,
    }


def updated_manifest(manifest: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """The manifest of a run that goes on, perhaps with more to play; what began it stays."""
    fresh = new_manifest(plan, manifest["run_id"])
    kept = (
        "started_at",
        "git_commit",
        "git_dirty",
        "version",
        "python",
        "parent_run_id",
        "iteration",
        "kind",
        "identity",
    )
    return {**fresh, **{name: manifest[name] for name in kept}}


def changed_keys(folder: RunFolder, manifest: dict[str, Any], plan: Plan, free: Sequence[str] = ()) -> list[str]:
    """The keys in which a saved spec is not this one, those that a run may change left out."""
    import yaml

    try:
        saved = yaml.safe_load(folder.spec.read_text("utf-8"))
    except (OSError, yaml.YAMLError):
        return ["spec.yaml cannot be read"]
    if not isinstance(saved, dict) or not isinstance(saved.get("dataset"), dict):
        return ["spec.yaml is damaged"]
    ours, theirs = resolved_spec(plan), saved
    if ours["kind"] != theirs.get("kind"):
        return ["kind"]
    # What was selected from the dataset is no longer in the saved spec, whose dataset holds just that.
    ours["dataset"].update(_dataset_selection(plan))
    theirs["dataset"].update(manifest["dataset_selection"])
    _by_content(ours, plan.spec.replayed)
    _by_content(theirs, manifest.get("replayed_sha256", {}))
    ours, theirs = dict(_leaves(ours)), dict(_leaves(theirs))
    return sorted(
        key
        for key in ours.keys() | theirs.keys()
        if ours.get(key) != theirs.get(key) and not any(_is_below(key, name) for name in free)
    )


def _by_content(saved: dict[str, Any], replayed: Mapping[str, str]) -> None:
    """Put the hash of what a model group replays in the place of its path."""
    for group, settings in saved["models"].items():
        settings["run"] = replayed.get(group)


def _dataset_selection(plan: Plan) -> dict[str, Any]:
    return {name: value for name, value in to_plain(plan.spec.experiment.dataset).items() if name != "path"}


def _is_below(key: str, name: str) -> bool:
    """Whether a dotted key is this one, or one below it; `*` in it is any one name."""
    parts, wanted = key.split("."), name.split(".")
    return len(parts) >= len(wanted) and all(b in ("*", a) for a, b in zip(parts, wanted, strict=False))


def _leaves(data: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict) and data:
        for name, value in data.items():
            yield from _leaves(value, f"{at}.{name}" if at else str(name))
    else:
        yield at, data
