"""Recompute the metrics of a published run from the rows of its `rollouts.jsonl`, for a board, and list differences.

The rows are untrusted, so each value is checked against the run's plan and the limits of a game.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import ReleaseError, errors_as
from runner.base.storage.safe_files import open_to_read
from runner.base.storage.strict_json import is_same
from runner.game.protocols.statements import GameSubject
from runner.registry.recomputed_run import check_claims
from runner.registry.rollouts_file import ROLLOUTS_FILE, read_published_rows
from runner.results.baseline_scores import read_baseline
from runner.results.folder import RunFolder
from runner.results.metric_computation import Metrics
from runner.results.metric_definitions import METRICS
from runner.results.metrics_file import ESTIMATE_FIELDS
from runner.results.stopping_rule import StoppingDecision
from runner.results.table_columns import COLUMNS
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Outcome, PanelVerdict, Rollout


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a `rollouts.jsonl`. Columns that an earlier version of nip-run did not write are None.

    Raises:
        RunError, ReleaseError: the file cannot be read, or a line is not a rollout.
    """
    for number, row in enumerate(read_published_rows(path), 1):
        if not row.keys() <= COLUMNS["rollouts"].keys():
            raise ReleaseError(f"{path.name}:{number} has columns that the table of rollouts does not have")
        yield {name: row.get(name) for name in COLUMNS["rollouts"]}


class RolloutChecker:
    """Checks the rows of a run's rollouts, and computes its metrics. The rows must be in the order of the plan."""

    def __init__(self, folder: RunFolder, plan: Plan) -> None:
        """Check that the run has a row for each game in its plan.

        Raises:
            ReleaseError: the plan has more or fewer games.
            RunDirectoryError: the run may stop early, but the plan has far more games than the folder has rows.
        """
        self._manifest = folder.manifest()
        self._jobs = plan.jobs()
        self._planned_games = plan.block_count * len(plan.variants)
        row_count = _count_lines(folder.path / ROLLOUTS_FILE)
        if plan.spec.experiment.until is not None:
            check_claims(folder, plan, row_count)
        elif row_count != self._planned_games or row_count != self._manifest.rollouts:
            raise ReleaseError(
                f"the run has {row_count:,} rollouts, but its manifest says {self._manifest.rollouts}, and its spec "
                f"plays {self._planned_games:,}"
            )
        protocol = plan.spec.protocol
        self._metrics = Metrics.from_plan(plan)
        self._max_rounds = protocol.max_message_rounds
        rewards = [abs(float(getattr(protocol.parameters, name))) for name in _REWARD_PARAMETERS]
        self._max_reward = (1 + self._max_rounds) * sum(rewards)
        rule = plan.spec.experiment.until
        self._decision = None if rule is None else StoppingDecision(plan, rule, read_baseline(folder.path))
        self._row_count = 0

    def add(self, row: Mapping[str, object]) -> None:
        """Check a row, and add it to the metrics.

        Raises:
            ReleaseError: the row is not the next game of the plan, or contradicts this game.
        """
        rollout_id = str(row["rollout_id"])
        job = next(self._jobs, None)
        if job is None or job.rollout_id != rollout_id:
            raise ReleaseError(f"rollout {rollout_id!r} is not game {self._row_count} of its spec")
        self._row_count += 1
        self._check_bounds(row, rollout_id)
        rollout = _parse_rollout(row, job)
        expected = {"run_id": self._manifest.run_id, "datapoint_id": job.datapoint.id, "y": rollout.label}
        expected |= {"repeat": job.repeat, "seed": job.seed, "correct": rollout.correct}
        for column, value in expected.items():
            if not is_same(row[column], value):
                raise ReleaseError(f"rollout {rollout_id}: {column} is {row[column]!r}, but must be {value!r}")
        self._metrics.add(rollout)
        if self._decision is not None:
            self._decision.add([rollout])

    def _check_bounds(self, row: Mapping[str, Any], rollout_id: str) -> None:
        """Check that the values of a row have the types of their columns and are within the limits of a game.

        Raises:
            ReleaseError: a value has another type, or is beyond a limit.
        """
        for column, value in row.items():
            if not _TYPE_CHECKS[COLUMNS["rollouts"][column]](value):
                raise ReleaseError(f"rollout {rollout_id}: {column} has the impossible value {str(value)[:40]!r}")
        if not 0 <= (row["rounds"] or 0) <= self._max_rounds:
            raise ReleaseError(
                f"rollout {rollout_id}: {row['rounds']} rounds, but a game has at most {self._max_rounds}"
            )
        rewards = row["rewards"] if isinstance(row["rewards"], dict) else {}
        if any(_is_number(value) and abs(value) > self._max_reward for value in rewards.values()):
            raise ReleaseError(f"rollout {rollout_id}: a reward exceeds {self._max_reward:g}, the maximum of a game")

    def summary(self) -> dict[str, Any]:
        """Return the metrics of all added rows as JSON values.

        Raises:
            ReleaseError: the manifest has another number of rows, or the run ended before its stopping rule was met.
        """
        if self._row_count != self._manifest.rollouts:
            raise ReleaseError(
                f"the run has {self._row_count:,} rollouts, but its manifest says {self._manifest.rollouts}"
            )
        if self._decision is not None and self._row_count < self._planned_games and not self._decision.decided:
            raise ReleaseError(f"the run stopped after {self._row_count:,} rollouts, before its stopping rule was met")
        summary = self._metrics.summary()
        summary = summary if self._decision is None else self._decision.apply_to(summary)
        json_summary: dict[str, Any] = orjson.loads(orjson.dumps(summary))
        return json_summary


_REWARD_PARAMETERS = (
    "prover_reward", "verifier_reward", "verifier_incorrect_penalty", "verifier_terminated_penalty",
    "verifier_no_guess_reward",
)  # fmt: skip
"""The parameters of a protocol that determine the rewards."""


def _parse_rollout(row: Mapping[str, Any], job: Job) -> Rollout:
    with errors_as(ReleaseError, f"rollout {job.rollout_id}", KeyError, ValueError, TypeError):
        rewards = row["rewards"]
        if type(row["decision"]) is not int or row["decision"] not in (0, 1, 2):
            raise ValueError("decision must be 0, 1 or 2")
        if not isinstance(rewards, dict) or any(not _is_number(value) for value in rewards.values()):
            raise ValueError("rewards must be numbers by agent")
        confidences = [row["confidence_stated"], row["confidence_logprob"]]
        if any(value is not None and not (_is_number(value) and 0 <= value <= 1) for value in confidences):
            raise ValueError("a confidence must be between 0 and 1")
        if row["stance"] not in (None, 0, 1) or not isinstance(row["confidence_note"], (str, type(None))):
            raise ValueError("stance must be 0 or 1, and confidence_note a text")
        panel = None if row["panel"] is None else [PanelVerdict.from_json(verdict) for verdict in row["panel"]]
        if any(verdict.verdict.decision not in (0, 1, 2) for verdict in panel or ()):
            raise ValueError("the decision of a judge must be 0 (reject), 1 (accept) or 2 (no decision)")
        is_checked = row.get("judged_text") is not None and not job.datapoint.is_labelled
        subject = GameSubject(row["judged_text"], row["y"]) if is_checked else None
        if row["y"] not in (None, 0, 1):
            raise ValueError("y must be 0, 1 or null")
        outcome = Outcome(row["outcome"])
        if outcome == Outcome.DECIDED and row["decision"] == 2:
            raise ValueError("the outcome is `decided`, but the decision is 2 (no decision)")
    return Rollout(
        job, (), row["decision"], outcome, row["stance"], rewards,
        confidence_stated=confidences[0], confidence_logprob=confidences[1], confidence_note=row["confidence_note"],
        panel=panel, subject=subject,
    )  # fmt: skip


def _count_lines(path: Path) -> int:
    with open_to_read(path) as file:
        return sum(piece.count(b"\n") for piece in iter(partial(file.read, 1 << 20), b""))


def _fits_integer(bits: int) -> Callable[[Any], bool]:
    """Return a function that checks for None or an integer with a sign and this number of other bits."""
    return lambda value: value is None or (type(value) is int and -(1 << bits) <= value < 1 << bits)


_TYPE_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "TINYINT": _fits_integer(7),
    "INTEGER": _fits_integer(31),
    "BIGINT": _fits_integer(63),
    "BOOLEAN": lambda value: value is None or type(value) is bool,
    "VARCHAR": lambda value: value is None or type(value) is str,
    "DOUBLE": lambda value: value is None or _is_number(value),
    "JSON": lambda value: value is None or isinstance(value, (list, dict)),
}
"""The function that checks a value, by the SQL type of its column."""


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def describe_differences(published: Mapping[str, Any], recomputed: Mapping[str, Any]) -> list[str]:
    """Return a line for each published metric that differs from the recomputed one.

    Metrics that need calls are skipped, because they cannot be recomputed from rollouts.
    """
    recomputed_metrics = {(row["agent"], row["metric"]): row for row in recomputed["metrics"]}
    published_metrics = {(row["agent"], row["metric"]): row for row in published["metrics"]}
    lines = [] if is_same(published.get("outcomes"), recomputed["outcomes"]) else ["the outcomes"]
    if len(published_metrics) < len(published["metrics"]):
        lines.append("metrics.json lists some metrics twice")
    for agent, metric in recomputed_metrics.keys() | published_metrics.keys():
        if _needs_calls(metric):
            continue
        expected, actual = recomputed_metrics.get((agent, metric)), published_metrics.get((agent, metric))
        name = metric if agent is None else f"{agent}.{metric}"
        if expected is None or actual is None:
            lines.append(f"{name} is {'not published' if actual is None else 'published, but cannot be recomputed'}")
        elif differing_fields := [
            field for field in ESTIMATE_FIELDS if not is_same(actual.get(field), expected[field])
        ]:
            field = differing_fields[0]
            lines.append(f"{name}: {field} is {actual.get(field)!r}, but {expected[field]!r} in the records")
    return sorted(lines)


def _needs_calls(name: str) -> bool:
    """Return whether a metric is computed from rounds or calls, which the row of a rollout does not have."""
    return name in METRICS and METRICS[name].needs_calls


def merge_metrics(published: Mapping[str, Any], recomputed: Mapping[str, Any]) -> dict[str, object]:
    """Return the content of metrics.json with recomputed metrics. Metrics that need calls do not change."""
    unchanged_rows = [row for row in published["metrics"] if _needs_calls(row["metric"])]
    recomputed_rows = [row for row in recomputed["metrics"] if not _needs_calls(row["metric"])]
    return {**published, "outcomes": recomputed["outcomes"], "metrics": [*recomputed_rows, *unchanged_rows]}
