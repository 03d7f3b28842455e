"""The rollouts of a published run into its numbers again: what follows from its records, and what does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import ReleaseError
from runner.base.storage.safe_files import open_to_read
from runner.base.storage.strict_json import is_same
from runner.game.protocols.schema import Parameters
from runner.registry.recomputed_run import check_claims
from runner.registry.records import ROLLOUTS_FILE, published_rows
from runner.results.baseline_scores import FILE, frozen
from runner.results.folder import RunFolder
from runner.results.metric_table import METRICS
from runner.results.metrics import Metrics
from runner.results.stopping_rule import StoppingDecision
from runner.results.tables import COLUMNS
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Outcome, Rollout

_COMPARED = ("value", "stderr", "ci_low", "ci_high", "n", "clusters")


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a `rollouts.jsonl`, with null for columns that its version did not know.

    Raises:
        RunError, ReleaseError: it cannot be read, or a row is none.
    """
    for number, row in enumerate(published_rows(path), 1):
        if not row.keys() <= COLUMNS["rollouts"].keys():
            raise ReleaseError(f"{path.name}:{number}: not a row of the table of rollouts")
        yield {name: row.get(name) for name in COLUMNS["rollouts"]}


class Records:
    """The rollouts of one run, each held against the game that stands at its place in the plan."""

    def __init__(self, folder: RunFolder, plan: Plan) -> None:
        """Take a run with so many rows as its folder has.

        Raises:
            ReleaseError: its spec plays more or fewer.
            RunDirectoryError: it plays far more, though it may have stopped once it was decided.
        """
        self._manifest = folder.manifest()
        self._jobs = plan.jobs()
        self._planned, there = plan.blocks * len(plan.variants), _lines(folder.path / ROLLOUTS_FILE)
        if plan.spec.experiment.until is not None:
            check_claims(folder, plan, there)
        elif there != self._planned or there != self._manifest.rollouts:
            said = self._manifest.rollouts
            raise ReleaseError(
                f"it has {there:,} rollouts, its manifest says {said}, and its spec plays {self._planned:,}"
            )
        protocol = plan.spec.protocol
        self._metrics = Metrics(protocol, plan.seats)
        self._rounds = protocol.max_message_rounds
        self._most = _most_reward(protocol.parameters, self._rounds)
        rule = plan.spec.experiment.until
        self._decision = None if rule is None else StoppingDecision(plan, rule, frozen(folder.path / "inputs" / FILE))
        self._rows = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a row.

        Raises:
            ReleaseError: it is not that of the game at its place, or says what does not follow from it.
        """
        name = str(row["rollout_id"])
        job = next(self._jobs, None)
        if job is None or job.rollout_id != name:
            raise ReleaseError(f"rollout {name!r} is not that of game {self._rows} of its spec")
        self._rows += 1
        self._check_bounds(row, name)
        rollout = _rollout(row, job)
        said = {"run_id": self._manifest.run_id, "datapoint_id": job.datapoint.id, "y": job.datapoint.label}
        said |= {"repeat": job.repeat, "seed": job.seed, "correct": rollout.correct}
        for column, value in said.items():
            if not is_same(row[column], value):
                raise ReleaseError(f"rollout {name}: {column} is {row[column]!r}, and follows to be {value!r}")
        self._metrics.add(rollout)
        if self._decision is not None:
            self._decision.add([rollout])

    def _check_bounds(self, row: Mapping[str, Any], name: str) -> None:
        """See that a row has the types of its columns, and no more than a game can come to.

        Raises:
            ReleaseError: it has not.
        """
        for column, value in row.items():
            if not _FITS[COLUMNS["rollouts"][column]](value):
                raise ReleaseError(f"rollout {name}: {column} cannot be {str(value)[:40]!r}")
        if not 0 <= (row["rounds"] or 0) <= self._rounds:
            raise ReleaseError(f"rollout {name}: it has {row['rounds']} rounds, and a game has at most {self._rounds}")
        rewards = row["rewards"] if isinstance(row["rewards"], dict) else {}
        if any(_is_number(value) and abs(value) > self._most for value in rewards.values()):
            raise ReleaseError(f"rollout {name}: a game gives nobody more than {self._most:g}")

    def summary(self) -> dict[str, Any]:
        """The numbers of all rows.

        Raises:
            ReleaseError: there are more or fewer than the run has.
        """
        if self._rows != self._manifest.rollouts:
            raise ReleaseError(f"it has {self._rows:,} rollouts, and its manifest says {self._manifest.rollouts}")
        if self._decision is not None and self._rows < self._planned and not self._decision.decided:
            raise ReleaseError(f"it stopped after {self._rows:,} rollouts, when nothing was decided")
        summary = self._metrics.summary()
        summary = summary if self._decision is None else self._decision.applied(summary)
        shown: dict[str, Any] = orjson.loads(orjson.dumps(summary))
        return shown


_REWARDS = (
    "prover_reward", "verifier_reward", "verifier_incorrect_penalty", "verifier_terminated_penalty",
    "verifier_no_guess_reward",
)  # fmt: skip


def _most_reward(parameters: Parameters, rounds: int) -> float:
    """What no agent gets more of in a game, or loses."""
    return (1 + rounds) * sum(abs(float(getattr(parameters, name))) for name in _REWARDS)


def _rollout(row: Mapping[str, Any], job: Job) -> Rollout:
    try:
        rewards = row["rewards"]
        if type(row["decision"]) is not int or row["decision"] not in (0, 1, 2):
            raise ValueError("a decision is 0, 1 or 2")
        if not isinstance(rewards, dict) or any(not _is_number(value) for value in rewards.values()):
            raise ValueError("rewards are numbers by agent")
        sure = [row["confidence_stated"], row["confidence_logprob"]]
        if any(one is not None and not (_is_number(one) and 0 <= one <= 1) for one in sure):
            raise ValueError("a confidence is from 0 to 1")
        if row["stance"] not in (None, 0, 1) or not isinstance(row["confidence_note"], (str, type(None))):
            raise ValueError("a stance is 0 or 1")
        outcome = Outcome(row["outcome"])
        if outcome == Outcome.DECIDED and row["decision"] == 2:
            raise ValueError("it was decided, without a decision")
    except (ValueError, TypeError) as error:
        raise ReleaseError(f"rollout {job.rollout_id}: {error}") from error
    return Rollout(
        job, (), row["decision"], outcome, row["stance"], rewards,
        confidence_stated=sure[0], confidence_logprob=sure[1], confidence_note=row["confidence_note"],
    )  # fmt: skip


def _lines(path: Path) -> int:
    with open_to_read(path) as file:
        return sum(piece.count(b"\n") for piece in iter(partial(file.read, 1 << 20), b""))


def _fits(bits: int) -> Callable[[Any], bool]:
    return lambda value: value is None or (type(value) is int and -(1 << bits) <= value < 1 << bits)


_FITS: Mapping[str, Callable[[Any], bool]] = {
    "TINYINT": _fits(7),
    "INTEGER": _fits(31),
    "BIGINT": _fits(63),
    "BOOLEAN": lambda value: value is None or type(value) is bool,
    "VARCHAR": lambda value: value is None or type(value) is str,
    "DOUBLE": lambda value: value is None or _is_number(value),
    "JSON": lambda value: value is None or isinstance(value, (list, dict)),
}
"""What each type of a column takes."""


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def differing(published: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    """The numbers that do not follow from the records, in words; those that need calls are not looked at."""
    ours, theirs = ({(row["agent"], row["metric"]): row for row in one["metrics"]} for one in (again, published))
    lines = [] if is_same(published.get("outcomes"), again["outcomes"]) else ["the outcomes"]
    if len(theirs) < len(published["metrics"]):
        lines.append("its metrics (some stand there twice)")
    for key in ours.keys() | theirs.keys():
        if _needs_calls(key[1]):
            continue
        mine, said = ours.get(key), theirs.get(key)
        name = key[1] if key[0] is None else f"{key[0]}.{key[1]}"
        if mine is None or said is None:
            lines.append(f"{name} (it is in one of them alone)")
        elif wrong := [one for one in _COMPARED if not is_same(said.get(one), mine[one])]:
            one = wrong[0]
            lines.append(f"{name}: {one} is {said.get(one)!r}, and {mine[one]!r} by the records")
    return sorted(lines)


def _needs_calls(name: str) -> bool:
    """Return whether a metric is counted from rounds and calls, which no row of a rollout has."""
    return name in METRICS and METRICS[name].needs_calls


def merged(published: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, Any]:
    """Published numbers, with those that follow from the records in their place."""
    kept = [row for row in published["metrics"] if _needs_calls(row["metric"])]
    counted = [row for row in again["metrics"] if not _needs_calls(row["metric"])]
    return {**published, "outcomes": again["outcomes"], "metrics": [*counted, *kept]}
