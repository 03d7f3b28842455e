"""Compute the metrics of a run from its rollouts: estimates with intervals, clustered by groups of datapoints.

Without `dataset.group_by`, each datapoint is a group. Rollouts are streamed: a mean needs a count, a sum and a sum of
squares for each group (`ClusterSums`), and metrics such as the area under the ROC curve need a few bytes for each
rollout (`JudgedGames`). The clustered error follows Miller 2024 (arXiv 2411.00640). The interval of proportions follows
Wilson 1927 at the effective sample size, corrected by Student's t. `benchmarks/coverage.py` measures the coverage of
the intervals.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.game.protocols.protocol import Protocol
from runner.results.answer_games import AnswerGames
from runner.results.estimates import Estimate, estimate, interval_methods
from runner.results.game_measurements import ORIGINAL_LIMITED, GameMeasurement, measure_game
from runner.results.metric_definitions import Metric, Source, metrics_of
from runner.results.verdict_columns import JudgedGames
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Outcome, Rollout
from runner.statistics.clustered_means import Quantity
from runner.statistics.intervals import CONFIDENCE, clustered_error, load_scipy
from runner.statistics.reporting_rules import NOTHING
from runner.statistics.simple_means import Mean, two_ends

NO_LABELS = "no labels"
NO_GAMES = Quantity(None, None, None, 0, 0, NOTHING)
_ORIGINAL_NAMES = (
    ("episode_length", "episode_length"), ("accuracy", "accuracy"), ("accuracy_0", "0_accuracy"),
    ("accuracy_1", "1_accuracy"), ("decision", "decision"),
)  # fmt: skip
"""Metrics of whole games, each with its name in the original implementation."""


class Metrics:
    """The metrics of the rollouts that were added.

    `seats` are the two seats that the run swaps, if any. `confidence_kinds` are the kinds of confidence that the spec
    requests, so that games without it count even if no game has it.
    """

    def __init__(
        self, protocol: Protocol, seats: tuple[str, str] | None = None, confidence_kinds: Collection[str] = ()
    ) -> None:
        load_scipy()
        self._protocol = protocol
        self._tallies: dict[tuple[str | None, str], ClusterSums] = {}
        self._cluster_positions: dict[str, int] = {}
        self.outcomes: Counter[Outcome] = Counter()
        self._judged = JudgedGames(protocol, seats, confidence_kinds)
        self._answers = AnswerGames(seats)

    @classmethod
    def from_plan(cls, plan: Plan) -> Metrics:
        """Return the metrics for the rollouts of a plan."""
        return cls(plan.spec.protocol, plan.seats, plan.spec.experiment.verdict.confidence_kinds)

    def add(self, rollout: Rollout) -> None:
        """Count one rollout. A rollout that was lost in transport only counts as an outcome."""
        self.add_measurement(measure_game(self._protocol, rollout))

    def add_measurement(self, game: GameMeasurement) -> None:
        """Add the values that `measure_game` returned for a rollout."""
        self.outcomes[Outcome(game.outcome)] += 1
        if game.verdict is None:
            return
        self._judged.add(game.verdict)
        if (facts := game.verdict.answers) is not None:
            swapped = bool(game.verdict.swapped)
            self._answers.add(game.verdict.group, game.verdict.datapoint, facts, swapped=swapped)
        tallies, cluster = self._tallies, game.cluster
        for agent, metric, values in game.added:
            tally = tallies.get((agent, metric))
            if tally is None:
                tally = tallies[agent, metric] = ClusterSums(self._cluster_positions)
            tally.add(cluster, values)

    def estimates(self) -> list[Estimate]:
        """Return all metrics in a fixed order, metrics of the whole game first."""
        rows = [self._estimate(None, metric) for metric in self._metrics_of(Source.GAMES, Source.DATAPOINTS)]
        with_candidates = {agent for agent, _ in self._protocol.selections}
        for agent in self._protocol.agent_names:
            rows.extend(
                self._estimate(agent, metric)
                for metric in self._metrics_of(Source.AGENTS)
                if agent in with_candidates or not metric.needs_candidates
            )
        for judge in self._protocol.verifier_names if self._protocol.file.panel is not None else ():
            rows.extend(self._estimate(judge, metric) for metric in self._metrics_of(Source.JUDGES))
        rows.extend(self._judged.estimates())
        rows.extend(self._answers.estimates())
        return rows

    def _metrics_of(self, *sources: Source) -> Iterator[Metric]:
        """Yield the metrics of these sources that have a meaning for the verdicts of the protocol.

        Metrics of probabilities and of plugins are left out if no game has one.
        """
        for metric in metrics_of(*sources):
            is_optional = metric.only_answers or metric.kind is not None or metric.is_plugin
            is_missing = is_optional and not any(name == metric.name for _, name in self._tallies)
            if metric.applies(lists_answers=self._protocol.lists_answers) and not is_missing:
                yield metric

    def _estimate(self, agent: str | None, metric: Metric) -> Estimate:
        is_counted = (agent, metric.name) in self._tallies or metric.source is Source.DATAPOINTS
        if not self._judged.is_labelled and (metric.needs_labels or not is_counted):
            return Estimate(agent, metric.name, None, None, None, None, 0, 0, NO_LABELS)
        if metric.source is Source.DATAPOINTS:
            assert metric.compute is not None
            return estimate(metric, metric.compute(self._judged.verdicts) if self._judged.n else NO_GAMES)
        tally = self._tally(agent, metric.name)
        mean = Mean(metric.rule, tally.mean, tally.stderr, tally.n, len(tally.clusters), self._judged.is_grouped)
        if metric.is_proportion:
            interval, reason = mean.share_interval()
        elif metric.two_values and (ends := two_ends(tally.values, metric.two_values(self._protocol, agent))):
            interval, reason = mean.two_value_interval(ends)
        else:
            interval, reason = mean.student_interval(tally.by_cluster)
        low, high = interval or (None, None)
        return Estimate(agent, metric.name, mean.value, mean.stderr, low, high, mean.n, mean.clusters, reason)

    def _tally(self, agent: str | None, metric: str) -> ClusterSums:
        return self._tallies.get((agent, metric), ClusterSums())

    def original_statistics(self, prefix: str = "") -> dict[str, float | None]:
        """Return the statistics of the original implementation under its names, with population standard deviations."""
        result: dict[str, float | None] = {}
        for agent in self._protocol.agent_names:
            reward = self._tally(agent, "reward")
            result[f"{agent}.{prefix}mean_episode_reward"] = reward.mean
            result[f"{agent}.{prefix}std_episode_reward"] = reward.deviation
            result[f"{agent}.{prefix}retry_proportion"] = self._tally(agent, "retries_per_round").mean
            result[f"{agent}.{prefix}token_limit_proportion"] = self._tally(agent, ORIGINAL_LIMITED).mean
        for metric, name in _ORIGINAL_NAMES:
            tally = self._tally(None, metric)
            result[f"{prefix}mean_{name}"], result[f"{prefix}std_{name}"] = tally.mean, tally.deviation
        has_verdicts = self._judged.n and self._judged.is_labelled
        result[f"{prefix}worst_datapoint_accuracy"] = self._judged.verdicts.lowest_accuracy if has_verdicts else None
        for name in ("precision", "recall"):
            result[f"{prefix}{name}"] = self._tally(None, name).mean
        return result

    def summary(self) -> dict[str, Any]:
        """Return the content of `metrics.json`."""
        rows = self.estimates()
        content: dict[str, Any] = {
            "interval": f"{CONFIDENCE:.0%}; proportions: Wilson at the effective sample size; others: Student's t; "
            f"errors clustered by {'group' if self._judged.is_grouped else 'datapoint'}",
            "outcomes": {outcome.value: self.outcomes[outcome] for outcome in Outcome},
            "metrics": [row.to_json() for row in rows],
        }
        if self._judged.n:
            content["methods"] = interval_methods({row.metric for row in rows})
        if votes := self._judged.vote_curve():
            content["vote_curve"] = [_vote_row(vote) for vote in votes]
        if pairs := self._judged.judge_pairs():
            content["judge_pairs"] = pairs
        if curves := {**self._judged.reliability_curves(), **self._answers.reliability_curves()}:
            content["reliability_curves"] = curves
        if monitor_curves := self._judged.monitor_curves():
            content["monitor_curves"] = monitor_curves
        return content


def is_by_group(metrics: Mapping[str, object]) -> bool:
    """Return whether the clusters in a `metrics.json` are groups of several datapoints."""
    return str(metrics.get("interval", "")).endswith("by group")


def _vote_row(vote: Estimate) -> dict[str, object]:
    omitted = ("agent", "metric", "plays")
    return {"k": vote.plays, **{name: value for name, value in vars(vote).items() if name not in omitted}}


@dataclass
class ClusterSums:
    """Sums by cluster: enough for the mean, its clustered error and the population standard deviation."""

    positions: dict[str, int] = field(default_factory=dict)
    """The position of each cluster in `_sums`. The metrics of a run share this dictionary, to save memory."""
    values: set[float] = field(default_factory=set)
    """The distinct values. If there are more than two, some may be missing."""
    n: int = 0
    _sums: array[float] = field(default_factory=lambda: array("d"))
    """Three numbers for each position: the count of the values, their sum and their sum of squares."""
    _mean: tuple[int, float] | None = None
    """The number of values and their mean, cached since a sum over many clusters is slow."""

    def add(self, cluster: str, values: Collection[float]) -> None:
        """Add several values of one cluster, in this order."""
        self.n += len(values)
        if len(self.values) < 3:
            self.values.update(values)
        sums, start = self._sums, 3 * self.positions.setdefault(cluster, len(self.positions))
        if len(sums) <= start:
            sums.extend([0.0] * (start + 3 - len(sums)))
        for value in values:
            sums[start] += 1
            sums[start + 1] += value
            sums[start + 2] += value * value

    @property
    def clusters(self) -> list[tuple[float, float, float]]:
        """The count of the values, their sum and their sum of squares, for each cluster with values."""
        return [row for row in zip(self._sums[::3], self._sums[1::3], self._sums[2::3], strict=True) if row[0]]

    @property
    def by_cluster(self) -> list[float]:
        """The mean of each cluster."""
        return [total / count for count, total, _ in self.clusters]

    @property
    def mean(self) -> float | None:
        if self._mean is None or self._mean[0] != self.n:
            if not self.n:
                return None
            self._mean = self.n, math.fsum(self._sums[1::3]) / self.n
        return self._mean[1]

    @property
    def deviation(self) -> float | None:
        """The population standard deviation of the values."""
        mean = self.mean
        if mean is None:
            return None
        mean_square = math.fsum(self._sums[2::3]) / self.n
        return math.sqrt(max(mean_square - mean * mean, 0.0))

    @property
    def stderr(self) -> float | None:
        """The clustered standard error of the mean; None for a single cluster."""
        return clustered_error([(count, total) for count, total, _ in self.clusters], self.mean, self.n)
