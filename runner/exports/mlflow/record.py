"""The record of a run: plain values in MLflow's terms."""

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
from runner.exports.mlflow.limits import MlflowTexts
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
    """A value of a metric. The step is the number of games in a benchmark, or the iteration of a training run."""

    key: str
    step: int
    value: float
    time_ms: int | None = None
    """Time of the measurement; None means the start of the run."""


class TurnSpan(NamedTuple):
    """An answer in a game as a span, with JSON texts and times in nanoseconds since 1970."""

    name: str
    start_ns: int
    end_ns: int
    inputs: str
    outputs: str


class GameTrace(NamedTuple):
    """A game as a trace; `key` is 32 hexadecimal digits and unique to the game."""

    key: str
    name: str
    inputs: str
    outputs: str
    tags: Mapping[str, str]
    is_lost: bool
    spans: Sequence[TurnSpan]


class AssessmentRecord(NamedTuple):
    """An answer of a model, a function or a person about a part of a game."""

    trace: str
    """The key of the game's trace."""
    name: str
    value: str | None
    """The answer; None if `error` says why there is none."""
    source_type: Literal["LLM_JUDGE", "CODE", "HUMAN"]
    source: str
    """The model and its instrument, or the person."""
    rationale: str | None
    error: str | None
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class DatasetRecord:
    """A dataset that a run uses."""

    name: str
    sha256: str
    context: str
    """The purpose of the dataset in the run: `eval` or `training`."""
    facts: Mapping[str, Any]
    columns: Sequence[str] = ()
    rows: int | None = None


@dataclass(frozen=True)
class ModelRecord:
    """A model that a training run produced."""

    key: str
    """`model_key` of the model, which identifies it on the server."""
    name: str
    step: int
    params: Mapping[str, str]
    tags: Mapping[str, str]


class Artifact(NamedTuple):
    """A file of a run, and its path below the run's artifacts."""

    path: Path
    name: str


@dataclass(frozen=True)
class MlflowRun:
    """The complete content of the MLflow run that one run becomes."""

    key: str
    """`run_key` of the run, which identifies it on the server."""
    name: str
    status: RunStatus
    started_ms: int
    """The start of the run, and the time of points that have no own time.

    A point has the same time whenever it is sent, so that MLflow recognizes a point that is sent twice.
    """
    ended_ms: int | None
    params: Mapping[str, str]
    metrics: Sequence[MetricPoint]
    tags: Mapping[str, str]
    inputs: Sequence[DatasetRecord] = ()
    plays_with: Sequence[str] = ()
    """Keys of the trained models that play in the run."""
    models: Sequence[ModelRecord] = ()
    artifacts: Sequence[Artifact] = ()
    traces: Callable[[], Iterable[GameTrace]] = tuple
    """Returns the traces of a finished run's games, in the plan's order."""
    assessments: Callable[[], Iterable[AssessmentRecord]] = tuple
    """Returns the results of analyses and the labels of people about games with traces."""
    parent: str | None = None
    """The key of the training run that the run is a part of."""
    notes: Sequence[str] = field(default_factory=tuple)
    """Sentences about values that could not be sent unchanged."""


def run_key(manifest: Manifest) -> str:
    """Return a key that identifies a run. The key does not depend on the folder, and stays the same after a resume."""
    return tagged_hash("mlflow run", [manifest.run_id, manifest.identity, manifest.started_at])


def model_key(run_id: str, iteration: int, model: str) -> str:
    """Return a key that identifies a trained model, from the last step of the model's lineage."""
    return tagged_hash("mlflow model", [run_id, iteration, model])


@contextmanager
def convert_content_errors(folder: RunFolder) -> Iterator[None]:
    """Convert errors from unexpected content of a run's files, which a user may have edited, to `RunError`.

    Raises:
        RunError: a file has unexpected content.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        description = f"{type(error).__name__}: {shortened(in_one_line(str(error)), 200)}"
        raise RunError(
            f"{folder.path} is damaged: a file has unexpected content ({description}); restore the folder from a copy"
        ) from error


def to_ms(time: str) -> int:
    """Convert a time of a manifest to milliseconds since 1970.

    Raises:
        ValueError: the text is not a time, or before 1970.
    """
    time_ms = int(datetime.strptime(time, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp() * 1000)
    if time_ms < 0:
        raise ValueError(f"{time} is before 1970")
    return time_ms


def flat_params(data: Mapping[str, object], texts: MlflowTexts, prefix: str = "") -> dict[str, str]:
    """Return the values of a spec as texts, by dotted key; lists become JSON, and missing values are left out."""
    params: dict[str, str] = {}
    for name, value in data.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            params |= flat_params(value, texts, f"{key}.")
        elif value is not None and value != []:
            params[texts.key(key)] = texts.param(key, value)
    return params
