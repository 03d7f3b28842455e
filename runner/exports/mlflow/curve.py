"""Computes a benchmark's metrics as a function of the number of games, also for unfinished runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from runner.exports.mlflow.limits import MlflowTexts
from runner.exports.mlflow.record import MetricPoint
from runner.exports.run_source import CLOCK_SKEW_MS, started_ms
from runner.models.journal_index import FollowedIndex
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED, Manifest, Status
from runner.results.metric_computation import Metrics
from runner.results.metric_definitions import METRICS, RANKING_METRIC, Show, exported_name
from runner.rollouts.job import Job
from runner.rollouts.rollout import Outcome, Rollout
from runner.runs.finished.reconstruction import Reconstructor, played_jobs, played_plan


def is_step(games: int) -> bool:
    """Return whether a curve has a point after this number of games: about 100 points per power of ten."""
    spacing: int = 10 ** max(0, len(str(games)) - 2)
    return games % spacing == 0


def value_points(row: Mapping[str, Any], step: int, texts: MlflowTexts, prefix: str = "") -> Iterator[MetricPoint]:
    """Yield a point for the value of a metric, unless the value is missing."""
    if row["value"] is not None:
        yield MetricPoint(texts.key(prefix + exported_name(row["agent"], row["metric"])), step, float(row["value"]))


def interval_points(row: Mapping[str, Any], step: int, texts: MlflowTexts) -> Iterator[MetricPoint]:
    """Yield a point for each end of a metric's interval, unless the end is missing."""
    for end in ("ci_low", "ci_high"):
        if row[end] is not None:
            yield MetricPoint(texts.key(f"{exported_name(row['agent'], row['metric'])}.{end}"), step, float(row[end]))


class Curve:
    """Reads new records of a journal, and evaluates each game once, in the plan's order.

    Because of this order, the points depend neither on the order of answers nor on interruptions. The curve waits for a
    game that was lost in transport, because the run may play the game again until it is done.
    """

    def __init__(self, folder: RunFolder, texts: MlflowTexts) -> None:
        """Open the journal of a run.

        Raises:
            RunError, JournalError, SpecError: a file of the run is missing or damaged.
        """
        self.plan = played_plan(folder)
        self._folder, self._texts = folder, texts
        self._index = FollowedIndex(folder.journal, folder.manifest().identity)
        self._reconstructor = Reconstructor(folder, self.plan, followed=self._index)
        self._metrics = Metrics.from_plan(self.plan)
        self._games = 0
        self._jobs: Iterator[Job] | None = None
        self._unfinished: list[Job] = []
        """The next game, if it was not finished at the last read; at most one."""
        self.points: list[MetricPoint] = []

    def read(self, manifest: Manifest) -> list[MetricPoint]:
        """Return the points of all finished games in the plan's order, up to the first unfinished one."""
        while self._index.read():
            pass  # each call reads a part of the new records
        if self._waits_for_end(manifest):
            return []
        if self._jobs is None:
            self._jobs = played_jobs(self._folder, self.plan)
        unfinished, self._unfinished = self._unfinished, []
        for job in chain(unfinished, self._jobs):
            rollouts, answered = self._reconstructor.rollouts_and_requests_of(job)
            times = (request.created_ms for request in answered)
            earliest_ms = started_ms(manifest) - CLOCK_SKEW_MS
            ended_ms = max((round(time) for time in times if time and time >= earliest_ms), default=None)
            if not self._add_game(rollouts, ended_ms, is_run_done=manifest.status == Status.DONE):
                self._unfinished = [job]
                break
        return self.points

    def _waits_for_end(self, manifest: Manifest) -> bool:
        """Return whether a stopping rule decides the number of games, and the run has not ended."""
        has_rule = self.plan.spec.experiment.until is not None
        rejudges_stopped_run = self.plan.debates is not None and self.plan.debates.stopping_note is not None
        return (has_rule or rejudges_stopped_run) and manifest.status not in PLAYED

    def _add_game(self, rollouts: Sequence[Rollout], ended_ms: int | None, *, is_run_done: bool) -> bool:
        """Add the rollouts of a game (all branches of a tree); return False if the game is not finished yet."""
        is_lost = any(rollout.outcome == Outcome.TRANSPORT_FAILED for rollout in rollouts)
        if not rollouts or (is_lost and not is_run_done):
            return False
        for rollout in rollouts:
            self._metrics.add(rollout)
            self._games += rollout.outcome != Outcome.TRANSPORT_FAILED
        if self._games and is_step(self._games) and (not self.points or self.points[-1].step < self._games):
            self.points.extend(point._replace(time_ms=ended_ms) for point in self._current_points())
        return True

    def _current_points(self) -> Iterator[MetricPoint]:
        for estimate in self._metrics.estimates():
            if Show.CURVE in METRICS[estimate.metric].show:
                row = vars(estimate)
                yield from value_points(row, self._games, self._texts)
                if estimate.metric == RANKING_METRIC:
                    yield from interval_points(row, self._games, self._texts)

    def close(self) -> None:
        self._reconstructor.close()
