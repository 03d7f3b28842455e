"""Typed classes for the facts about models in the manifest of a run's release, and checks of the types of all facts.

`runner.registry.lineage.nodes` uses these classes. Facts come from other users, so no type in them can be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from runner.models.provider_traits import DEFAULT_PROVIDER
from runner.registry.lineage.links import EFFORT
from runner.results.manifest import COUNTED


class WrongFact(Exception):
    """Raised if a fact has the wrong type or an impossible value."""


def read_typed(facts: Mapping[str, object], name: str, *types: type) -> Any:
    """Return a fact that has one of these types, or None if it is missing. Raises WrongFact: it has another type."""
    value = facts.get(name)
    if value is not None and type(value) not in types:
        raise WrongFact(f"{name} cannot be {str(value)[:60]!r}")
    return value


def read_section(facts: Mapping[str, object], name: str) -> Mapping[str, Any]:
    """Return the facts of a section; empty if it is missing. Raises WrongFact: it is not an object."""
    section: Mapping[str, Any] = read_typed(facts, name, dict) or {}
    return section


def _read_rows(facts: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    rows = read_typed(facts, name, list) or []
    if any(not isinstance(row, dict) for row in rows):
        raise WrongFact(f"{name} must be a list of objects")
    return list(rows)


@dataclass(frozen=True)
class TrainingStep:
    """One training of a model: the run and iteration, the model that it started from, and the dataset."""

    model: str
    from_model: str
    run_id: str
    iteration: int
    dataset_sha256: str | None = None
    weights_sha256: str | None = None
    release: str | None = None
    release_sha256: str | None = None

    @classmethod
    def from_facts(cls, facts: Mapping[str, object]) -> Self:
        texts = {name: read_typed(facts, name, str) for name in cls.__dataclass_fields__ if name != "iteration"}
        iteration = read_typed(facts, "iteration", int)
        if None in (texts["model"], texts["from_model"], texts["run_id"], iteration):
            raise WrongFact("a step of a lineage has no model, run or iteration")
        return cls(iteration=iteration, **texts)


@dataclass(frozen=True)
class OutputModel:
    """A model that a training run made."""

    step: TrainingStep
    from_iteration: int | None
    """The iteration that made the model that this training started from; None for the run's start model."""
    game_iterations: tuple[int, ...]
    """The iterations whose games the model was trained on."""

    @classmethod
    def from_facts(cls, facts: Mapping[str, object]) -> Self:
        step, from_iteration = TrainingStep.from_facts(facts), read_typed(facts, "from_iteration", int)
        game_iterations = read_typed(facts, "trained_on", list) or [step.iteration]
        if any(type(item) is not int for item in game_iterations):
            raise WrongFact("trained_on must be a list of iterations")
        if from_iteration is not None and from_iteration >= step.iteration:
            raise WrongFact("a model cannot be made from a later one")
        return cls(step, from_iteration, tuple(game_iterations))


@dataclass(frozen=True)
class Effort:
    """The games that a training used, and their tokens and cost. Unknown numbers are None."""

    datapoints: int | None = None
    rollouts: int | None = None
    completions: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None

    @classmethod
    def from_facts(cls, facts: Mapping[str, object]) -> Self:
        numbers = {name: read_typed(facts, name, int, *([float] if name == "cost_usd" else [])) for name in EFFORT}
        if any(value is not None and not 0 <= value <= MAX_COUNT for value in numbers.values()):
            raise WrongFact(f"the effort of training must be between 0 and {MAX_COUNT:g}")
        return cls(**numbers)


@dataclass(frozen=True)
class Group:
    """A model group of a run: agents that share a model. It has a start model and the models that the run made."""

    name: str
    provider: str
    model: str | None
    """The name of the start model."""
    weights_sha256: str | None
    """The hash of the start model's weights."""
    lineage: tuple[TrainingStep, ...] = ()
    """The declared trainings of the start model before this run, from the first to the last."""
    output_models: tuple[OutputModel, ...] = ()
    games: Mapping[int, tuple[str, Effort]] = field(default_factory=dict)
    """The run id and the effort of each iteration's games, by iteration."""
    agents: tuple[str, ...] = ()
    base_model: str | None = None

    @classmethod
    def from_facts(cls, facts: Mapping[str, object]) -> Self:
        games = {}
        for row in _read_rows(facts, "games"):
            iteration, run_id = read_typed(row, "iteration", int), read_typed(row, "run_id", str)
            games[iteration] = (run_id or "", Effort.from_facts(row))
        models = map(OutputModel.from_facts, _read_rows(facts, "made"))
        return cls(
            read_typed(facts, "group", str) or "",
            read_typed(facts, "provider", str) or DEFAULT_PROVIDER,
            read_typed(facts, "model", str),
            read_typed(facts, "weights_sha256", str),
            tuple(map(TrainingStep.from_facts, _read_rows(facts, "lineage"))),
            tuple(sorted(models, key=lambda model: model.step.iteration)),
            games,
            tuple(map(str, read_typed(facts, "agents", list) or [])),
            read_typed(facts, "base_model", str),
        )


def parse_groups(facts: Mapping[str, object]) -> tuple[Group, ...]:
    return tuple(map(Group.from_facts, _read_rows(facts, "trained")))


_TEXTS = (
    "name", "benchmark", "protocol", "task", "status", "started_at", "finished_at", "parent_run_id", "stopped",
    "version", "python", "group", "provider", "model", "base_model", "address",
)  # fmt: skip
MAX_COUNT = 10**15
"""Maximum number of games, calls, tokens and dollars in a fact; larger numbers are refused."""


def check_types(facts: Mapping[str, object]) -> None:
    """Check the types of all facts that nip-run reads. Raises WrongFact: a fact has a wrong type or value."""
    for name in _TEXTS:
        read_typed(facts, name, str)
    for name in ("seed", "iteration"):
        read_typed(facts, name, int)
    if facts.get("kind") not in (None, "training", "benchmark"):
        raise WrongFact(f"kind cannot be {str(facts['kind'])[:60]!r}")
    for name in (*COUNTED, "cost_usd"):
        value = read_typed(facts, name, int, *([float] if name == "cost_usd" else []))
        _check_range(name, value, 0, MAX_COUNT)
    for name, kind in (("pinned", bool), ("point", dict), ("cleaned", list)):
        read_typed(facts, name, kind)
    _check_source(facts, "replay_of", (str,), (int, type(None)))
    _check_source(facts, "rejudge_of", (str,), (str,), (str,))
    for section in ("models", "shutdowns"):
        texts = read_section(facts, section)
        for name in texts:
            read_typed(texts, name, str)
    accuracy = read_section(facts, "accuracy")
    for name in ("value", "stderr", "ci_low", "ci_high", "n", "clusters"):
        value = read_typed(accuracy, name, int, float)
        _check_range(f"accuracy.{name}", value, -1, MAX_COUNT if name in ("n", "clusters") else 2)


def _check_range(name: str, value: float | None, lowest: float, highest: float) -> None:
    if value is not None and not lowest <= value <= highest:
        raise WrongFact(f"{name} cannot be {str(value)[:60]!r}")


def _check_source(facts: Mapping[str, object], name: str, *types: tuple[type, ...]) -> None:
    """Check that a fact is null, or a list whose values have one of the types at their position in `types`."""
    source = read_typed(facts, name, list)
    if source is None:
        return
    if len(source) != len(types) or any(type(value) not in allowed for value, allowed in zip(source, types)):  # noqa: B905
        raise WrongFact(f"{name} cannot be {str(source)[:60]!r}")
