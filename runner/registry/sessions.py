"""Runs and models as lineage sees them, alike from a registry and from a results folder.

What a release says of itself was written by strangers: it is taken only where it has the types that it should have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from runner.errors import NipRunError, ReleaseError
from runner.hashing import tagged_hash
from runner.registry.links import EFFORT, trained_facts
from runner.releases.manifest import Link, Release
from runner.releases.reference import Kind
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED
from runner.results.tasks import played_datapoints
from runner.storage.atomic import read_json
from runner.transports.registry import Entry


class _Wrong(Exception):
    """A fact is of another type than it should be."""


def _typed(said: Mapping[str, Any], name: str, *types: type) -> Any:
    value = said.get(name)
    if value is not None and type(value) not in types:
        raise _Wrong(f"{name} cannot be {str(value)[:60]!r}")
    return value


def _rows(said: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    rows = _typed(said, name, list) or []
    if any(not isinstance(row, dict) for row in rows):
        raise _Wrong(f"{name} holds what is no object")
    return list(rows)


@dataclass(frozen=True)
class Step:
    """One training in a model's past: which run made it in which iteration, from what, on what."""

    model: str
    from_model: str
    run_id: str
    iteration: int
    dataset_sha256: str | None = None
    weights_sha256: str | None = None
    release: str | None = None
    release_sha256: str | None = None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        texts = {name: _typed(said, name, str) for name in cls.__dataclass_fields__ if name != "iteration"}
        iteration = _typed(said, "iteration", int)
        if None in (texts["model"], texts["from_model"], texts["run_id"], iteration):
            raise _Wrong("a step of a lineage says no model, run or iteration")
        return cls(iteration=iteration, **texts)


@dataclass(frozen=True)
class Made:
    """A model that a training run made: by its step, from which earlier one of its own, from which games."""

    step: Step
    from_iteration: int | None
    """None: from the model that the run began with."""
    trained_on: tuple[int, ...]

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        step, before = Step.of(said), _typed(said, "from_iteration", int)
        trained_on = _typed(said, "trained_on", list) or [step.iteration]
        if any(type(one) is not int for one in trained_on) or (before is not None and before >= step.iteration):
            raise _Wrong("a model cannot be made from a later one")
        return cls(step, before, tuple(trained_on))


@dataclass(frozen=True)
class Effort:
    """What training took in data; None where it is not known."""

    datapoints: int | None = None
    rollouts: int | None = None
    completions: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        known = {name: _typed(said, name, int, *([float] if name == "cost_usd" else [])) for name in EFFORT}
        if any(value is not None and not 0 <= value <= MAX_COUNT for value in known.values()):
            raise _Wrong(f"what training took cannot be below 0, or above {MAX_COUNT:g}")
        return cls(**known)


@dataclass(frozen=True)
class Group:
    """A model group of a run: the model that it began with, by which trainings, and what the run made of it."""

    name: str
    provider: str
    model: str | None
    weights_sha256: str | None
    lineage: tuple[Step, ...] = ()
    made: tuple[Made, ...] = ()
    games: Mapping[int, tuple[str, Effort]] = field(default_factory=dict)
    """Of each iteration the run of its games, and what they took."""
    agents: tuple[str, ...] = ()
    base_model: str | None = None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        games = {}
        for row in _rows(said, "games"):
            iteration, run_id = _typed(row, "iteration", int), _typed(row, "run_id", str)
            games[iteration] = (run_id or "", Effort.of(row))
        made = tuple(sorted(map(Made.of, _rows(said, "made")), key=lambda one: one.step.iteration))
        return cls(
            _typed(said, "group", str) or "",
            _typed(said, "provider", str) or "openai",
            _typed(said, "model", str),
            _typed(said, "weights_sha256", str),
            tuple(map(Step.of, _rows(said, "lineage"))),
            made,
            games,
            tuple(map(str, _typed(said, "agents", list) or [])),
            _typed(said, "base_model", str),
        )

    def made_in(self, iteration: int) -> Made | None:
        return next((one for one in self.made if one.step.iteration == iteration), None)


Points = Callable[[], frozenset[str] | None]
"""The content hashes of the datapoints that a run played; None where they are not known."""


@dataclass(frozen=True, eq=False)
class Session:
    """One run, or a model that one has made, published or here."""

    key: str
    """Its release, or its id in the results folder."""
    kind: str
    """`training`, `benchmark`, or `model`."""
    run_id: str
    identity: str
    owner: str | None
    """Whose release it is; None: it is in the results folder."""
    facts: Mapping[str, Any]
    groups: tuple[Group, ...]
    links: tuple[Link, ...] = ()
    sha256: str | None = None
    private: bool = False
    yanked: str | None = None
    points: Points = field(default=lambda: None)
    holds: str | None = None
    """The hash of the weights whose files are in the release, by their own hashes."""

    @cached_property
    def datapoints(self) -> frozenset[str] | None:
        return self.points()

    def with_points(self, points: Points) -> Self:
        """The same session, whose datapoints are looked up otherwise."""
        return replace(self, points=points)

    @property
    def run(self) -> tuple[str, str]:
        """What it is a session of: releases of one run, and its models, have this in common."""
        return self.run_id, self.identity

    @property
    def parent_run_id(self) -> str | None:
        said = self.facts.get("parent_run_id")
        return said if isinstance(said, str) else None

    @property
    def started_at(self) -> str:
        return str(self.facts.get("started_at") or "")

    @property
    def trains(self) -> bool:
        return any(group.made for group in self.groups)


def _groups(said: Mapping[str, Any]) -> tuple[Group, ...]:
    return tuple(map(Group.of, _rows(said, "trained")))


_TEXTS = (
    "name", "benchmark", "protocol", "task", "status", "started_at", "finished_at", "parent_run_id", "stopped",
    "version", "python", "group", "provider", "model", "base_model", "address",
)  # fmt: skip
_COUNTS = ("rollouts", "completions", "prompt_tokens", "completion_tokens", "cached_tokens", "transport_failed")
MAX_COUNT = 10**15
"""More games, calls, tokens or dollars nobody has."""


def _check_types(facts: Mapping[str, Any]) -> None:
    """See that all facts that anything reads have the types that `facts_of` gives them: it is done here alone."""
    for name in _TEXTS:
        _typed(facts, name, str)
    for name in ("seed", "iteration"):
        _typed(facts, name, int)
    if facts.get("kind") not in (None, "training", "benchmark"):
        raise _Wrong(f"kind cannot be {str(facts['kind'])[:60]!r}")
    for name in (*_COUNTS, "cost_usd"):
        value = _typed(facts, name, int, *([float] if name == "cost_usd" else []))
        if value is not None and not 0 <= value <= MAX_COUNT:
            raise _Wrong(f"{name} cannot be {str(value)[:60]!r}")
    _typed(facts, "pinned", bool), _typed(facts, "point", dict)
    models: Mapping[str, Any] = _typed(facts, "models", dict) or {}
    for agent in models:
        _typed(models, agent, str)
    accuracy: Mapping[str, Any] = _typed(facts, "accuracy", dict) or {}
    for name in ("value", "stderr", "ci_low", "ci_high", "n", "clusters"):
        value = _typed(accuracy, name, int, float)
        if value is not None and not -1 <= value <= (MAX_COUNT if name in ("n", "clusters") else 2):
            raise _Wrong(f"accuracy.{name} cannot be {str(value)[:60]!r}")


def session_of_release(entry: Entry, release: Release) -> Session:
    """A published run or model, by its manifest alone.

    Raises:
        ReleaseError: its facts are not those of a run.
    """
    facts = release.facts
    try:
        groups = _groups(facts)
        run_id, kind = _typed(facts, "run_id", str), _typed(facts, "kind", str)
        hashes = _typed(facts, "datapoints_sha256", list)
        _check_types(facts)
    except _Wrong as error:
        raise ReleaseError(f"{entry.reference}: its facts are not those of a {release.kind}: {error}") from error
    known = None if hashes is None else frozenset(map(str, hashes))
    return Session(
        str(entry.reference),
        "model" if release.kind == Kind.MODEL else kind or "benchmark",
        run_id or release.name,
        release.identity.get("run", ""),
        release.owner,
        facts,
        groups,
        release.links,
        entry.sha256,
        release.visibility == "private",
        entry.yanked,
        lambda: known,
        _weights_in(release) if release.kind == Kind.MODEL else None,
    )


_WEIGHTS = "weights/"


def _weights_in(release: Release) -> str | None:
    """The hash of the weights that a model's release has the files of, as `weights_at` hashes them; None: it has none.

    Of a single file the name does not count: the model may have been that file, and not a folder of it.
    """
    files = [file for file in release.files if file.path.startswith(_WEIGHTS)]
    said = release.identity.get("weights")
    named = sorted(((file.path.removeprefix(_WEIGHTS), file.size, file.sha256) for file in files), key=_as_walked)
    for found in (named, [("", size, sha256) for _, size, sha256 in named] if len(named) == 1 else []):
        if found and tagged_hash("weights", found) == said:
            return said
    return None


def _as_walked(file: tuple[str, int, str]) -> list[tuple[bool, str]]:
    """The order of a walk through folders: the files of one before those of the folders in it."""
    parts = file[0].split("/")
    return [(place < len(parts) - 1, part) for place, part in enumerate(parts)]


def session_of_folder(folder: RunFolder) -> Session:
    """A run of a results folder.

    Raises:
        RunError: a file of it is gone or damaged.
    """
    manifest = folder.manifest()
    trained = trained_facts(folder)
    facts = {
        **{name: getattr(manifest, name) for name in ("name", "benchmark", "started_at", "finished_at", "status")},
        **{name: getattr(manifest, name) for name in ("parent_run_id", "iteration", "rollouts", "cost_usd")},
        "models": {row["agent"]: row["model"] for row in manifest.agents},
        "accuracy": _accuracy(folder) if manifest.status in PLAYED else None,
        "stopped": None,
    }
    try:
        groups = _groups({"trained": trained})
    except _Wrong as error:
        raise ReleaseError(f"{folder.path}: {error}") from error
    return Session(
        folder.run_id,
        manifest.kind,
        folder.run_id,
        manifest.identity,
        None,
        facts,
        groups,
        points=lambda: content_hashes(folder),
    )


def _accuracy(folder: RunFolder) -> Mapping[str, Any] | None:
    if not folder.metrics.is_file():
        return None
    rows: Sequence[Mapping[str, Any]] = read_json(folder.metrics).get("metrics") or ()
    return next((row for row in rows if (row.get("agent"), row.get("metric")) == (None, "accuracy")), None)


def content_hashes(folder: RunFolder) -> frozenset[str] | None:
    """The content hashes of the datapoints that a run played, from its inputs; None where those cannot be read."""
    with suppress(OSError, ValueError, NipRunError, RecursionError):
        return frozenset(point.content_sha256 for point in played_datapoints(folder, None))
    return None
