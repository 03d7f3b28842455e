"""A run that stops when it is decided: the rule, and what it makes of the run's numbers.

Groups are the independent observations; a datapoint without a group is one of its own. Each counts once all of its
games are in, and then the rule is looked at: after every game where each group is one. Groups count in the order of the
plan, so the decision follows from the games up to it alone, whoever answered first. What is estimated is the accuracy
of the board, in which every game weighs the same: a group counts with a weight, the number of its games.
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
"""Games that are begun at once even where the next one may decide it: it is not to wait for one after the other."""


def games_ahead(games: int, progress: float, most: int, *, steady: bool) -> int:
    """How many games to play at once, at most, after so many, that little is paid for beyond the last one.

    Half of what is still expected, as evidence grows with the games and the progress is the share of it that is there.
    That of a comparison is not steady: it may leap, and no more than a tenth of what was played is begun beyond. What
    is decided does not depend on this.
    """
    expected = games / progress - games if progress > 0 else math.inf
    wanted = expected / 2 if steady else min(expected / 2, games / 10)
    return int(min(max(wanted, FEWEST_AHEAD), most))


class StoppingDecision:
    """What the games of a run have decided so far."""

    def __init__(self, plan: Plan, rule: Until, compared: BaselineScores | None = None) -> None:
        self._rule, self._compared = rule, compared
        self._planned = Counter(job.datapoint.group for job in plan.jobs())
        self._most_games = max(self._planned.values(), default=1)
        points = Counter(point.group for point in plan.spec.dataset.datapoints)
        self._most_points = max(points.values(), default=1)
        self._accuracy, self._difference = ConfidenceSequence(), DifferenceSequence()
        self._group: list[Rollout] = []
        self.games = 0
        self._progress = 0.0
        """How far it has come to a decision, as a share of the games that it takes."""

    @property
    def decided(self) -> bool:
        return self._progress >= 1

    def add(self, rollouts: Sequence[Rollout]) -> bool:
        """Take the next game of the plan; whether the run is decided with it."""
        self.games += len(rollouts)
        self._group.extend(rollouts)
        if rollouts and len(self._group) == self._planned[rollouts[0].job.datapoint.group]:
            self._observe(self._group)
            self._group = []
            self._progress = self._looked()
        return self.decided

    def ahead(self, most: int) -> int:
        """How many games may be begun before the next one is in."""
        return games_ahead(self.games, self._progress, most, steady=self._compared is None)

    def _observe(self, group: Sequence[Rollout]) -> None:
        scores: dict[str, list[bool]] = {}
        for rollout in group:
            if rollout.correct is not None:
                scores.setdefault(rollout.job.datapoint.id, []).append(rollout.correct)
        games = sum(map(len, scores.values()))
        if games:
            self._accuracy.add(sum(map(sum, scores.values())) / games, games / self._most_games)
        if self._compared is not None:
            self._observe_difference(self._compared, group, scores)

    def _observe_difference(
        self, compared: BaselineScores, group: Sequence[Rollout], scores: Mapping[str, Sequence[bool]]
    ) -> None:
        points = {rollout.job.datapoint.id: rollout.job.datapoint for rollout in group}
        differences = [
            sum(ours) / len(ours) - theirs
            for id_, ours in scores.items()
            if (theirs := compared.score(points[id_])) is not None
        ]
        if differences:
            mean = sum(differences) / len(differences)
            self._difference.add(min(max(mean, -1.0), 1.0), len(differences) / self._most_points)

    def _looked(self) -> float:
        if self._rule.width is None:
            return self._difference.evidence
        low, high = self._accuracy.interval()
        width = high - low
        # An interval narrows with the root of the number of games.
        return 1.0 if width <= self._rule.width else min((self._rule.width / width) ** 2, 1 - 1e-9)

    def note(self) -> str:
        """What came of it, in a line."""
        what = self._width() if self._compared is None else self._against(self._compared)
        games, planned = f"{self.games:,}", f"{self._planned.total():,}"
        if self.decided:
            return f"stopped after {games} of {planned} games: {what}"
        return f"not decided after all {planned} games: {what}"

    def _width(self) -> str:
        low, high = self._accuracy.interval()
        return f"width {decimal(high - low)}"

    def _against(self, compared: BaselineScores) -> str:
        mean, (low, high) = self._difference.mean, self._difference.interval()
        if mean is None:
            return f"no game to compare with {compared.run_id}"
        word = "no difference to be seen from" if not self.decided else "better than" if mean > 0 else "worse than"
        return f"{word} {compared.run_id} ({mean:+.3f} [{low:+.3f}, {high:+.3f}])"

    def applied(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """A run's numbers with accuracy's interval by the confidence sequence, and what was decided."""
        return {**_by_sequence(summary, self._accuracy), "until": self._section()}

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
        if self._compared is not None:
            low, high = self._difference.interval()
            section |= {
                "compared_with": self._compared.run_id,
                "shared_groups": self._difference.n,
                "difference": self._difference.mean,
                "ci_low": low,
                "ci_high": high,
            }
        return section


class StoppedDebates:
    """Debates of a run that had stopped since it was decided, under another judge.

    The first judge's verdicts said how many games there are, and the second's go with them: an interval for so many
    games would hold too seldom. A confidence sequence holds here, too: each group is new to both judges when it comes,
    and what the first one has said until then may stop it at any time.
    """

    def __init__(self, plan: Plan, stopped: str) -> None:
        self._stopped = stopped
        points = Counter(point.group for point in plan.spec.dataset.datapoints)
        plays = plan.spec.experiment.rollouts.per_datapoint * len(plan.variants)
        self._most_games = plays * max(points.values(), default=1)
        self._groups: dict[str, tuple[int, int]] = {}

    def add(self, rollout: Rollout) -> None:
        """Count a verdict, if there is one."""
        if rollout.correct is not None:
            right, games = self._groups.get(rollout.job.datapoint.group, (0, 0))
            self._groups[rollout.job.datapoint.group] = (right + rollout.correct, games + 1)

    def applied(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """The run's numbers with accuracy's interval by the confidence sequence, and who chose the games."""
        sequence = ConfidenceSequence()
        for right, games in self._groups.values():
            sequence.add(right / games, games / self._most_games)
        low, high = sequence.interval()
        own = summary.get("until") or {}
        notes = [own["note"], self._stopped] if own else [self._stopped]
        section = {"groups": sequence.n, "width": high - low, **own, "note": "; ".join(notes)}
        base = summary if not own else {**summary, "interval": summary["interval"].removeprefix(METHOD)}
        return {**_by_sequence(base, sequence), "until": section}


def _by_sequence(summary: Mapping[str, Any], accuracy: ConfidenceSequence) -> dict[str, Any]:
    """A run's numbers with accuracy's interval by the confidence sequence."""
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


def sequence_of(folder: RunFolder) -> tuple[float, float] | None:
    """The confidence sequence of the accuracy of a run with such a rule, whether it stopped or not; None of any other.

    Raises:
        RunError: its metrics cannot be read.
    """
    if not folder.metrics.is_file():
        return None
    found = folder.read_metrics()
    if not found.get("until"):
        return None
    (row,) = (one for one in found["metrics"] if (one["agent"], one["metric"]) == (None, RANKING_METRIC))
    return (0.0, 1.0) if row["ci_low"] is None else (row["ci_low"], row["ci_high"])


def board_facts(spec: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What the board has of a run that may stop when it is decided; nulls of any other."""
    rule = spec.get("until")
    return {
        "until": None if rule is None else json.dumps({name: v for name, v in rule.items() if v is not None}),
        "stopped": (metrics.get("until") or {}).get("note"),
    }
