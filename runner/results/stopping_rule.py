"""Runs that stop once they are decided: the stopping rule, and its effect on the run's metrics.

Groups are the independent observations; a datapoint without a group is its own group. A group counts once all of its
games have ended, and then the rule is evaluated: after every game if each group is a single game. Groups count in the
order of the plan, so the decision depends only on the games up to it, not on the order of answers. The estimated
quantity is the accuracy of the board, where all games have the same weight: a group's weight is the number of its
games.
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
from runner.results.metric_table import RANKING_METRIC
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Rollout
from runner.spec.experiment import Until
from runner.statistics.confidence_sequences import ConfidenceSequence, DifferenceSequence

METHOD = (
    "95 %; accuracy: a confidence sequence, by betting on groups of datapoints (Waudby-Smith and Ramdas 2024), which "
    "holds at every look; other metrics as if the number of games had been fixed: "
)


FEWEST_AHEAD = 8
"""The games to start at once even if the next one may be decisive, so that they do not run one after another."""


def games_ahead(games: int, progress: float, most: int, *, steady: bool) -> int:
    """Return how many games to play at once, at most, after this many, so that few are paid for beyond the last one.

    The number is half of the expected remaining games: evidence grows with the games, and the progress is its share so
    far. The progress of a comparison is not steady and may jump, so at most a tenth of the played games is started
    ahead. The decision does not depend on this number.
    """
    expected = games / progress - games if progress > 0 else math.inf
    ahead = expected / 2 if steady else min(expected / 2, games / 10)
    return int(min(max(ahead, FEWEST_AHEAD), most))


class StoppingDecision:
    """The decision of a run's stopping rule after the games so far."""

    def __init__(self, plan: Plan, rule: Until, baseline: BaselineScores | None = None) -> None:
        self._rule, self._baseline = rule, baseline
        self._planned = Counter(job.datapoint.group for job in plan.jobs())
        self._most_games = max(self._planned.values(), default=1)
        points = Counter(point.group for point in plan.spec.dataset.datapoints)
        self._most_points = max(points.values(), default=1)
        self._accuracy, self._difference = ConfidenceSequence(), DifferenceSequence()
        self._group: list[Rollout] = []
        self.games = 0
        self._progress = 0.0
        """The progress towards a decision, as a share of the evidence that it needs."""

    @property
    def decided(self) -> bool:
        return self._progress >= 1

    def add(self, rollouts: Sequence[Rollout]) -> bool:
        """Add the next game of the plan and return whether the run is decided."""
        self.games += len(rollouts)
        self._group.extend(rollouts)
        if rollouts and len(self._group) == self._planned[rollouts[0].job.datapoint.group]:
            self._observe(self._group)
            self._group = []
            self._progress = self._measure_progress()
        return self.decided

    def ahead(self, most: int) -> int:
        """Return how many games may be started before the next one has ended."""
        return games_ahead(self.games, self._progress, most, steady=self._baseline is None)

    def _observe(self, group: Sequence[Rollout]) -> None:
        scores: dict[str, list[bool]] = {}
        for rollout in group:
            if rollout.correct is not None:
                scores.setdefault(rollout.job.datapoint.id, []).append(rollout.correct)
        games = sum(map(len, scores.values()))
        if games:
            self._accuracy.add(sum(map(sum, scores.values())) / games, games / self._most_games)
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
        # An interval narrows with the root of the number of games.
        return 1.0 if width <= self._rule.width else min((self._rule.width / width) ** 2, 1 - 1e-9)

    def note(self) -> str:
        """Return the outcome in one line."""
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

    def applied(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Return a run's metrics with the confidence sequence as the interval of accuracy, and the section `until`."""
        return {**_with_sequence_interval(summary, self._accuracy), "until": self._section()}

    def _section(self) -> dict[str, Any]:
        low, high = self._accuracy.interval()
        section: dict[str, Any] = {
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
    """Debates of a run that stopped once it was decided, judged by another judge.

    The first judge's verdicts determined the number of games, and they correlate with the second's, so an interval for
    a fixed number of games would cover the truth too seldom. A confidence sequence is valid here, too: each group is
    new to both judges when it comes, and the first judge's earlier verdicts may stop the run at any time.
    """

    def __init__(self, plan: Plan, stopped: str) -> None:
        self._stopping_note = stopped
        points = Counter(point.group for point in plan.spec.dataset.datapoints)
        plays = plan.spec.experiment.rollouts.per_datapoint * len(plan.variants)
        self._most_games = plays * max(points.values(), default=1)
        self._groups: dict[str, tuple[int, int]] = {}

    def add(self, rollout: Rollout) -> None:
        """Count the verdict of a rollout, if it has one."""
        if rollout.correct is not None:
            right, games = self._groups.get(rollout.job.datapoint.group, (0, 0))
            self._groups[rollout.job.datapoint.group] = (right + rollout.correct, games + 1)

    def applied(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Return the run's metrics with the confidence sequence as accuracy's interval, and the section `until`."""
        sequence = ConfidenceSequence()
        for right, games in self._groups.values():
            sequence.add(right / games, games / self._most_games)
        low, high = sequence.interval()
        own_section = summary.get("until") or {}
        notes = [own_section["note"], self._stopping_note] if own_section else [self._stopping_note]
        section = {"groups": sequence.n, "width": high - low, **own_section, "note": "; ".join(notes)}
        base = summary if not own_section else {**summary, "interval": summary["interval"].removeprefix(METHOD)}
        return {**_with_sequence_interval(base, sequence), "until": section}


def _with_sequence_interval(summary: Mapping[str, Any], accuracy: ConfidenceSequence) -> dict[str, Any]:
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
    """Return the confidence sequence of the accuracy of a run with a stopping rule; None for other runs.

    Raises:
        RunError: its metrics cannot be read.
    """
    if not folder.metrics.is_file():
        return None
    metrics = folder.read_metrics()
    if not metrics.get("until"):
        return None
    (row,) = (row for row in metrics["metrics"] if (row["agent"], row["metric"]) == (None, RANKING_METRIC))
    return (0.0, 1.0) if row["ci_low"] is None else (row["ci_low"], row["ci_high"])


def stopping_columns(spec: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the board's columns about the stopping rule; null for runs without one."""
    rule = spec.get("until")
    return {
        "until": None if rule is None else json.dumps({name: v for name, v in rule.items() if v is not None}),
        "stopped": (metrics.get("until") or {}).get("note"),
    }
