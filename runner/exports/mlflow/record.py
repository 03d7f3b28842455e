"""A run as MLflow has it, in plain values: what is sent, before any server is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from runner.base.errors import RunError
from runner.base.hashing import tagged_hash
from runner.base.text import in_one_line, shortened
from runner.exports.mlflow.limits import Fitted
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest, Status

RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]

STATUSES: Mapping[Status, RunStatus] = {
    Status.RUNNING: "RUNNING",
    Status.DONE: "FINISHED",
    Status.INCOMPLETE: "FAILED",
    Status.FAILED: "FAILED",
    Status.INTERRUPTED: "KILLED",
}


class MetricPoint(NamedTuple):
    """A value of a metric. Of a benchmark, a step is a number of games; of training, an iteration."""

    key: str
    step: int
    value: float
    time_ms: int | None = None
    """Time of the measurement; None means the start of the run."""


class TurnSpan(NamedTuple):
    """An answer in a game, as a span: texts of JSON, and times in nanoseconds since 1970."""

    name: str
    start_ns: int
    end_ns: int
    inputs: str
    outputs: str


class GameTrace(NamedTuple):
    """A game as MLflow shows it; `key` is 32 hexadecimal digits that no other game has."""

    key: str
    name: str
    inputs: str
    outputs: str
    tags: Mapping[str, str]
    is_lost: bool
    spans: Sequence[TurnSpan]


@dataclass(frozen=True)
class Data:
    """A dataset that a run has read."""

    name: str
    sha256: str
    context: str
    """What the run did with it: `eval` or `training`."""
    facts: Mapping[str, Any]
    columns: Sequence[str] = ()
    rows: int | None = None


@dataclass(frozen=True)
class Model:
    """A model that came out of a training."""

    key: str
    """What it is found by; see `model_key`."""
    name: str
    step: int
    params: Mapping[str, str]
    tags: Mapping[str, str]


class Artifact(NamedTuple):
    """A file of a run, and its path among the artifacts."""

    path: Path
    name: str


@dataclass(frozen=True)
class MlflowRun:
    """All that one MLflow run holds of one run."""

    key: str
    """What it is found by; see `run_key`."""
    name: str
    status: RunStatus
    started_ms: int
    """When it began, and the time of points without one. A point has the same time whenever it is sent: MLflow takes
    one that is sent again for the one that it has."""
    ended_ms: int | None
    params: Mapping[str, str]
    metrics: Sequence[MetricPoint]
    tags: Mapping[str, str]
    inputs: Sequence[Data] = ()
    plays_with: Sequence[str] = ()
    """The keys of the trained models that play in it."""
    models: Sequence[Model] = ()
    artifacts: Sequence[Artifact] = ()
    traces: Callable[[], Iterable[GameTrace]] = tuple
    """Yields a trace for each game of a finished run, in the plan's order."""
    parent: str | None = None
    """The key of the training run that it is a part of."""
    notes: Sequence[str] = field(default_factory=tuple)
    """What could not be sent as it is."""


def run_key(manifest: Manifest) -> str:
    """What tells a run from every other, in whatever folder it is, however often it was resumed."""
    return tagged_hash("mlflow run", [manifest.run_id, manifest.identity, manifest.started_at])


def model_key(run_id: str, iteration: int, model: str) -> str:
    """What tells a trained model from every other: it follows from the last step of a model's lineage."""
    return tagged_hash("mlflow model", [run_id, iteration, model])


@contextmanager
def as_written(folder: RunFolder) -> Iterator[None]:
    """Have what a file of a run should hold and does not come out as words; somebody else may have written it.

    Raises:
        RunError: it does not hold that.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        said = f"{type(error).__name__}: {shortened(in_one_line(str(error)), 200)}"
        raise RunError(f"{folder.path} is damaged: a file of it holds what nip-run does not write ({said})") from error


def milliseconds(time: str) -> int:
    """A time of a manifest, since 1970.

    Raises:
        ValueError: it is none, or before that.
    """
    found = int(datetime.strptime(time, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp() * 1000)
    if found < 0:
        raise ValueError(f"{time} is before 1970")
    return found


def flat_params(data: Mapping[str, Any], fitted: Fitted, prefix: str = "") -> dict[str, str]:
    """Every key of a spec that says something, by its dotted name; a list as JSON."""
    found: dict[str, str] = {}
    for name, value in data.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found |= flat_params(value, fitted, f"{key}.")
        elif value is not None and value != []:
            found[fitted.key(key)] = fitted.param(key, value)
    return found
