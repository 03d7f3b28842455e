"""A run's folder: what it holds, and a plan into a new one that is complete in itself."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import orjson

from runner.agents.agent import Seat
from runner.datasets.load import Dataset
from runner.documents.fields import plain
from runner.documents.layers import dump
from runner.errors import RunDirectoryError, RunError, UsageError
from runner.hashing import tagged_hash
from runner.prompts.templates import SUFFIX
from runner.rollouts.plan import Plan
from runner.spec.load import JOURNAL
from runner.storage.atomic import is_locked, read_json, write_whole
from runner.version import __version__

RUNNING, DONE, FAILED, INTERRUPTED = "running", "done", "failed", "interrupted"


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def spec(self) -> Path:
        return self.path / "spec.yaml"

    @property
    def manifest_path(self) -> Path:
        return self.path / "manifest.json"

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    @property
    def log(self) -> Path:
        return self.path / "run.log"

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    @property
    def in_flight(self) -> Path:
        return self.path / ".in_flight"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def fine_tune(self) -> Path:
        return self.path / "fine_tune"

    def table(self, name: str) -> Path:
        return self.path / f"{name}.parquet"

    def manifest(self) -> dict[str, Any]:
        """The manifest. A run that says it is running and that no process holds was interrupted."""
        manifest = read_json(self.manifest_path)
        if manifest["status"] == RUNNING and not is_locked(self.lock):
            manifest["status"] = INTERRUPTED
        return manifest

    def damage(self) -> str | None:
        """Why the manifest cannot be read, and what to do; None where it can."""
        try:
            self.manifest()
        except RunError as error:
            return f"{error}; left out. Remove the file to have the run made again from its journal by its own command"
        except (KeyError, TypeError):
            return f"{self.manifest_path} is no manifest of ours; left out"
        return None

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        write_whole(self.manifest_path, orjson.dumps(manifest, option=orjson.OPT_INDENT_2))


def is_training_run(manifest: Mapping[str, Any]) -> bool:
    """Whether a run is a training run as a whole, whose games are in runs of their own."""
    return bool(manifest["kind"] == "training" and manifest["parent_run_id"] is None)


def run_folders(results: Path) -> Iterator[RunFolder]:
    """Every run below a results folder, by name; damaged ones are left out (see `damaged_folders`)."""
    runs = results / "runs"
    for path in sorted(runs.iterdir()) if runs.is_dir() else ():
        folder = RunFolder(path)
        if folder.manifest_path.is_file() and folder.damage() is None:
            yield folder


def damaged_folders(results: Path) -> list[str]:
    """What is wrong with the run folders that every list leaves out."""
    runs = results / "runs"
    paths = sorted(runs.glob("*/manifest.json")) if runs.is_dir() else []
    return [found for path in paths if (found := RunFolder(path.parent).damage()) is not None]


def find_run(results: Path, name: str) -> RunFolder:
    """A run by its id, by the start of it where that is one run's alone, or by its folder.

    Raises:
        UsageError: there is none, or there are several.
    """
    direct = Path(name)
    if (direct / "manifest.json").is_file():
        return RunFolder(direct)
    exact = results / "runs" / name
    if (exact / "manifest.json").is_file() and name:
        return RunFolder(exact)
    found = [folder for folder in run_folders(results) if folder.run_id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{name!r} is the start of {len(found)} runs: {', '.join(f.run_id for f in found[:5])}")
    raise UsageError(f"no run {name!r} in {results}; `nip-run runs` lists them")


def now() -> str:
    """The time in UTC, to the second, as the tables have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Part:
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
    def free_keys(self) -> tuple[str, ...]:
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
        keys = differing(folder, manifest, plan, (run or plan).free_keys)
        what = f"these keys differ: {', '.join(keys)}" if keys else "the contents of its files differ"
        raise RunDirectoryError(f"{folder.path} holds another spec's run; {what}. Choose another --run-id")
    return manifest


def write_inputs(plan: Plan, folder: RunFolder) -> None:
    """Save the resolved spec and every file it needs, so that the folder can be played again by itself."""
    inputs = folder.path / "inputs"
    try:
        (inputs / "prompts").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make {inputs}: {error.strerror}") from error
    for name, source in plan.spec.prompts.sources.items():
        write_whole(inputs / "prompts" / (name + SUFFIX), source)
    protocol = plain(plan.spec.protocol.file)
    write_whole(inputs / "protocol.yaml", dump({**protocol, "fixed": []}))
    write_whole(inputs / "dataset.jsonl", b"".join(_dataset_lines(plan)))
    saved = resolved(plan)
    for group, run in plan.spec.replays.items():
        saved["models"][group]["run"] = os.path.relpath(run, folder.path)
    write_whole(folder.spec, "# The resolved spec of this run, with every default written out.\n" + dump(saved))


def _dataset_lines(plan: Plan) -> Iterator[bytes]:
    """Every datapoint; where two splits are used, with its split."""
    spec = plan.spec
    splits: list[tuple[Dataset, dict[str, Any]]] = [(spec.dataset, {})]
    if spec.test is not None and spec.experiment.training is not None:
        splits = [
            (spec.dataset, {"split": spec.experiment.dataset.split}),
            (spec.test, {"split": spec.experiment.training.test.split}),
        ]
    for dataset, split in splits:
        for point in dataset.datapoints:
            row = {"id": point.id, "label": point.label, **point.columns, **split}
            yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def resolved(plan: Plan) -> dict[str, Any]:
    """The resolved spec as data: a valid spec that names the files saved with the run."""
    data: dict[str, Any] = plain(plan.spec.experiment)
    parameters = plain(plan.spec.protocol.parameters)
    chosen: dict[str, Any] = {
        "columns": {},
        "split": None if plan.spec.test is None else data["dataset"]["split"],
        "filter": None,
        "balance": "none",
        "shuffle": False,
        "revision": None,
    }
    return {
        **data,
        "benchmark": plan.benchmark,
        "dataset": {**data["dataset"], **chosen, "path": "inputs/dataset.jsonl"},
        "protocol": {"use": "inputs/protocol.yaml", **parameters},
        "prompts": "inputs/prompts",
        "sweep": {},
        "cache": None,
    }


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
        "spec_sha256": tagged_hash("spec", resolved(plan)),
        "prompts_sha256": {name: tagged_hash("prompt", text) for name, text in sorted(spec.prompts.sources.items())},
        "protocol_sha256": tagged_hash("protocol", plain(spec.protocol.file)),
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
        "agents": [_agent_row(name, agent) for name, agent in plan.seats().items()],
        "started_at": now(),
        "finished_at": None,
    }


def _agent_row(name: str, agent: Seat) -> dict[str, Any]:
    return {
        "agent": name,
        "role": agent.agent_spec.role,
        "model_group": agent.shared_model_group,
        "provider": agent.model_settings.provider,
        "model": agent.model_name,
        "base_model": agent.base_model_name,
    }


def refreshed(manifest: dict[str, Any], plan: Plan) -> dict[str, Any]:
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


def differing(folder: RunFolder, manifest: dict[str, Any], plan: Plan, free: Sequence[str] = ()) -> list[str]:
    """The keys in which a saved spec is not this one, those that a run may change left out."""
    import yaml

    try:
        saved = yaml.safe_load(folder.spec.read_text("utf-8"))
    except (OSError, yaml.YAMLError):
        return ["spec.yaml cannot be read"]
    if not isinstance(saved, dict) or not isinstance(saved.get("dataset"), dict):
        return ["spec.yaml is damaged"]
    ours, theirs = resolved(plan), saved
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
    return {name: value for name, value in plain(plan.spec.experiment.dataset).items() if name != "path"}


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
