"""The stopping rule of a run (the spec key `until`), and its effect on the run's metrics.

The independent observations are groups of datapoints; a datapoint without a group is a group by itself. A group counts
once all of its games have ended, and then the rule is evaluated. Groups count in the order of the plan, so the decision
does not depend on which game ends first. The rule estimates the accuracy that leaderboards show, where all games have
the same weight. So the weight of a group is the number of its games.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from runner.base.text import decimal
from runner.results.baseline_scores import BaselineScores
from runner.results.folder import RunFolder
from runner.results.metric_definitions import RANKING_METRIC
from runner.results.metrics_file import find_metric_row
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Rollout
from runner.spec.experiment import Until
from runner.statistics.confidence_sequences import ConfidenceSequence, DifferenceSequence

METHOD = (
    "95 %; accuracy: a confidence sequence, by betting on groups of datapoints (Waudby-Smith and Ramdas 2024), which "
    "holds at every look; other metrics as if the number of games had been fixed: "
)
"""The start of the key `interval` in the metrics of a run with a stopping rule."""

FEWEST_AHEAD = 8
"""Minimum number of games to play at the same time, since playing them one by one is slow."""


def games_ahead(games: int, progress: float, most: int, *, steady: bool) -> int:
    """Return the maximum number of games to play at the same time, so that few games are wasted after the decision.

    `games` is the number of games so far, and `progress` the share of the necessary evidence that they gave. The
    result is half of the expected remaining games. If the progress is not `steady`, as in a comparison, the result is
    also at most a tenth of `games`. The decision itself does not depend on this number.
    """
    expected = games / progress - games if progress > 0 else math.inf
    limit = expected / 2 if steady else min(expected / 2, games / 10)
    return int(min(max(limit, FEWEST_AHEAD), most))


class StoppingDecision:
    """The state of a run's stopping rule after the games so far."""

    def __init__(self, plan: Plan, rule: Until, baseline: BaselineScores | None = None) -> None:
        self._rule, self._baseline = rule, baseline
        self._planned = Counter(job.datapoint.group for job in plan.jobs())
        """The number of games of each group."""
        self._largest_group = max(self._planned.values(), default=1)
        self._most_points = _most_points(plan)
        self._accuracy, self._difference = ConfidenceSequence(), DifferenceSequence()
        self._group: list[Rollout] = []
        """The ended games of the current group."""
        self.games = 0
        self._progress = 0.0
        """The share of the evidence that a decision needs; 1 or more means decided."""

    @property
    def decided(self) -> bool:
        return self._progress >= 1

    def add(self, rollouts: Sequence[Rollout]) -> bool:
        """Add the next games of a group, in the order of the plan, and return whether the run is decided."""
        self.games += len(rollouts)
        self._group.extend(rollouts)
        if rollouts and len(self._group) == self._planned[rollouts[0].job.datapoint.group]:
            self._observe(self._group)
            self._group = []
            self._progress = self._measure_progress()
        return self.decided

    def max_games_ahead(self, most: int) -> int:
        """Return how many games may be in flight, at most `most`; see `games_ahead`."""
        return games_ahead(self.games, self._progress, most, steady=self._baseline is None)

    def _observe(self, group: Sequence[Rollout]) -> None:
        scores: dict[str, list[bool]] = {}
        for rollout in group:
            if rollout.correct is not None:
                scores.setdefault(rollout.job.datapoint.id, []).append(rollout.correct)
        games = sum(map(len, scores.values()))
        if games:
            self._accuracy.add(sum(map(sum, scores.values())) / games, games / self._largest_group)
        if self._baseline is not None:
            self._observe_difference(self._baseline, group, scores)

    def _observe_difference(
        self, baseline: BaselineScores, group: Sequence[Rollout], scores: Mapping[str, Sequence[bool]]
    ) -> None:
        points = {rollout.job.datapoint.id: rollout.job.datapoint for rollout in group}
        differences = [
            sum(scores_here) / len(scores_here) - baseline_score
            for id_, scores_here in scores.items()
            if (baseline_score := baseline.score(points[id_])) is not None
        ]
        if differences:
            mean = sum(differences) / len(differences)
            self._difference.add(min(max(mean, -1.0), 1.0), len(differences) / self._most_points)

    def _measure_progress(self) -> float:
        if self._rule.width is None:
            return self._difference.evidence
        low, high = self._accuracy.interval()
        width = high - low
        # The width of an interval is proportional to 1 / sqrt(games).
        return 1.0 if width <= self._rule.width else min((self._rule.width / width) ** 2, 1 - 1e-9)

    def note(self) -> str:
        """Return one line with the number of games after which the run was decided, and the result."""
        low, high = self._accuracy.interval()
        width = f"width {decimal(high - low)}"
        outcome = width if self._baseline is None else self._describe_difference(self._baseline)
        games, planned = f"{self.games:,}", f"{self._planned.total():,}"
        if self.decided:
            return f"stopped after {games} of {planned} games: {outcome}"
        return f"not decided after all {planned} games: {outcome}"

    def _describe_difference(self, baseline: BaselineScores) -> str:
        mean, (low, high) = self._difference.mean, self._difference.interval()
        if mean is None:
            return f"no game to compare with {baseline.run_id}"
        relation = "no difference to be seen from" if not self.decided else "better than" if mean > 0 else "worse than"
        return f"{relation} {baseline.run_id} ({mean:+.3f} [{low:+.3f}, {high:+.3f}])"

    def apply_to(self, summary: Mapping[str, Any]) -> dict[str, object]:
        """Return a run's metrics with the confidence sequence as the interval of accuracy, and the section `until`."""
        return {**_with_sequence_interval(summary, self._accuracy), "until": self._section()}

    def _section(self) -> dict[str, object]:
        low, high = self._accuracy.interval()
        section: dict[str, object] = {
            "decided": self.decided,
            "note": self.note(),
            "games": self.games,
            "planned_games": self._planned.total(),
            "groups": self._accuracy.n,
            "planned_groups": len(self._planned),
            "width": high - low,
        }
        if self._baseline is not None:
            low, high = self._difference.interval()
            section |= {
                "compared_with": self._baseline.run_id,
                "shared_groups": self._difference.n,
                "difference": self._difference.mean,
                "ci_low": low,
                "ci_high": high,
            }
        return section


class StoppedDebates:
    """The accuracy of a second judge on the debates of a run that a stopping rule ended.

    The first judge's verdicts determined the number of games, and they correlate with the second judge's, so an
    interval for a fixed number of games would cover the true value too seldom. A confidence sequence is valid, since
    it allows a stop at any time that depends only on earlier groups.
    """

    def __init__(self, plan: Plan, stopping_note: str) -> None:
        self._stopping_note = stopping_note
        plays = plan.spec.experiment.rollouts.per_datapoint * len(plan.variants)
        self._largest_group = plays * _most_points(plan)
        self._groups: dict[str, tuple[int, int]] = {}
        """The number of right verdicts and of games with a verdict, by group."""

    def add(self, rollout: Rollout) -> None:
        """Count the verdict of a rollout, if it has one."""
        if rollout.correct is not None:
            right, games = self._groups.get(rollout.job.datapoint.group, (0, 0))
            self._groups[rollout.job.datapoint.group] = (right + rollout.correct, games + 1)

    def apply_to(self, summary: Mapping[str, Any]) -> dict[str, object]:
        """Return the run's metrics with the confidence sequence as accuracy's interval, and the section `until`."""
        sequence = ConfidenceSequence()
        for right, games in self._groups.values():
            sequence.add(right / games, games / self._largest_group)
        low, high = sequence.interval()
        own_section = summary.get("until") or {}
        notes = [own_section["note"], self._stopping_note] if own_section else [self._stopping_note]
        section = {"groups": sequence.n, "width": high - low, **own_section, "note": "; ".join(notes)}
        base = summary if not own_section else {**summary, "interval": summary["interval"].removeprefix(METHOD)}
        return {**_with_sequence_interval(base, sequence), "until": section}


def _most_points(plan: Plan) -> int:
    """Return the number of datapoints in the largest group."""
    return max(Counter(point.group for point in plan.spec.dataset.datapoints).values(), default=1)


def _with_sequence_interval(summary: Mapping[str, Any], accuracy: ConfidenceSequence) -> dict[str, object]:
    """Return a run's metrics with the confidence sequence as the interval of accuracy."""
    low, high = accuracy.interval()
    return {
        **summary,
        "interval": METHOD + summary["interval"],
        "metrics": [
            {**row, "ci_low": low, "ci_high": high, **({"reason": None} if "reason" in row else {})}
            if (row["agent"], row["metric"]) == (None, RANKING_METRIC) and row["value"] is not None
            else row
            for row in summary["metrics"]
        ],
    }


def accuracy_sequence(folder: RunFolder) -> tuple[float, float] | None:
    """Return the ends of the confidence sequence of a run's accuracy; None for a run without a stopping rule.

    Raises:
        RunError: the run's metrics cannot be read.
    """
    if not folder.metrics.is_file():
        return None
    metrics = folder.read_metrics()
    if not metrics.get("until"):
        return None
    row = find_metric_row(metrics, RANKING_METRIC)
    assert row is not None
    return (0.0, 1.0) if row["ci_low"] is None or row["ci_high"] is None else (row["ci_low"], row["ci_high"])


def stopping_columns(spec: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, object]:
    """Return the values of the leaderboard's columns about the stopping rule; None for runs without one."""
    rule = spec.get("until")
    return {
        "until": None if rule is None else json.dumps({name: v for name, v in rule.items() if v is not None}),
        "stopped": (metrics.get("until") or {}).get("note"),
    }
