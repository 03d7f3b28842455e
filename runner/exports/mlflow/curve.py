"""A benchmark's numbers after so many games, as they come: of a run that plays, of a killed one, of a finished one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from runner.exports.mlflow.limits import Fitted
from runner.exports.mlflow.record import MetricPoint
from runner.exports.run_source import CLOCK_SKEW_MS, started_ms
from runner.models.journal_index import FollowedIndex
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED, Manifest, Status
from runner.results.metric_table import METRICS, RANKING_METRIC, Show, exported_name
from runner.results.metrics import Metrics
from runner.rollouts.job import Job
from runner.rollouts.rollout import Outcome, Rollout
from runner.runs.finished.reconstruction import Reconstructor, played_jobs, played_plan


def is_step(games: int) -> bool:
    """Whether a curve has a point after so many games: about a hundred for each power of ten."""
    apart: int = 10 ** max(0, len(str(games)) - 2)
    return games % apart == 0


def value_points(row: Mapping[str, Any], step: int, fitted: Fitted, prefix: str = "") -> Iterator[MetricPoint]:
    """The value of a metric; nothing where it has none."""
    if row["value"] is not None:
        yield MetricPoint(fitted.key(prefix + exported_name(row["agent"], row["metric"])), step, float(row["value"]))


def interval_points(row: Mapping[str, Any], step: int, fitted: Fitted) -> Iterator[MetricPoint]:
    """The ends of a metric's interval, as far as it has any."""
    for end in ("ci_low", "ci_high"):
        if row[end] is not None:
            yield MetricPoint(fitted.key(f"{exported_name(row['agent'], row['metric'])}.{end}"), step, float(row[end]))


class Curve:
    """Reads a journal as far as it goes, and each game of the plan once, in the plan's order.

    In that order, what stands after so many games does not depend on who answered first, nor on kills in between. A
    game that was lost in transport may be played again as long as the run can go on: the curve waits for it.
    """

    def __init__(self, folder: RunFolder, fitted: Fitted) -> None:
        """Raises:
        RunError, JournalError, SpecError: a file of the run is gone or damaged.
        """
        self.plan = played_plan(folder)
        self._folder, self._fitted = folder, fitted
        self._followed = FollowedIndex(folder.journal, folder.manifest().identity)
        self._reconstructor = Reconstructor(folder, self.plan, followed=self._followed)
        self._metrics = Metrics(self.plan.spec.protocol, self.plan.seats)
        self._games = 0
        self._jobs: Iterator[Job] | None = None
        self._waiting: list[Job] = []
        """The next game, where it was not finished at the last look."""
        self.points: list[MetricPoint] = []

    def read(self, manifest: Manifest) -> list[MetricPoint]:
        """The points of all games that are finished by now, in the plan's order up to the first that is not."""
        while self._followed.read():
            pass
        if self._waits(manifest):
            return []
        if self._jobs is None:
            self._jobs = played_jobs(self._folder, self.plan)
        waiting, self._waiting = self._waiting, []
        for job in chain(waiting, self._jobs):
            rollouts, answered = self._reconstructor.with_answered_of(job)
            times = (self._reconstructor.created_ms(one.sample) for one in answered)
            began = started_ms(manifest) - CLOCK_SKEW_MS
            ended = max((round(time) for time in times if time and time >= began), default=None)
            if not self._add(rollouts, ended, is_over=manifest.status == Status.DONE):
                self._waiting = [job]
                break
        return self.points

    def _waits(self, manifest: Manifest) -> bool:
        """Whether the number of games that count is not known before the run has ended: it stops when it is decided."""
        stops = self.plan.spec.experiment.until is not None
        chosen = self.plan.debates is not None and self.plan.debates.stopped is not None
        return (stops or chosen) and manifest.status not in PLAYED

    def _add(self, rollouts: Sequence[Rollout], ended_ms: int | None, *, is_over: bool) -> bool:
        """Count a game, or all branches of a tree; whether it is finished."""
        lost = any(one.outcome == Outcome.TRANSPORT_FAILED for one in rollouts)
        if not rollouts or (lost and not is_over):
            return False
        for rollout in rollouts:
            self._metrics.add(rollout)
            self._games += rollout.outcome != Outcome.TRANSPORT_FAILED
        if self._games and is_step(self._games) and (not self.points or self.points[-1].step < self._games):
            self.points.extend(point._replace(time_ms=ended_ms) for point in self._now())
        return True

    def _now(self) -> Iterator[MetricPoint]:
        for estimate in self._metrics.estimates():
            if Show.CURVE in METRICS[estimate.metric].show:
                row = vars(estimate)
                yield from value_points(row, self._games, self._fitted)
                if estimate.metric == RANKING_METRIC:
                    yield from interval_points(row, self._games, self._fitted)

    def close(self) -> None:
        self._reconstructor.close()
