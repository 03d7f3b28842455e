"""Rollouts into estimates: means with standard errors clustered by the datapoints' groups, and intervals.

A datapoint is a group of its own where `dataset.group_by` says nothing. Rollouts stream through: of plain means, one
count, sum and sum of squares for each metric and group is kept; of what is made of verdicts and confidences together,
such as d' and AUROC, a few bytes a rollout (`judged`). Sources:
Miller 2024 (arXiv 2411.00640) for the clustered error; Wilson 1927 at the effective sample size, corrected by
Student's t, for proportions. `benchmarks/proofs/coverage.py` measures how often the intervals cover the truth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner.game.protocols.protocol import Protocol
from runner.results.game_measurements import ORIGINAL_LIMITED, GameMeasurement, measured
from runner.results.streaming_means import ClusterSums
from runner.results.verdict_columns import JudgedGames
from runner.rollouts.rollout import Outcome, Rollout
from runner.statistics.estimates import Number, methods
from runner.statistics.intervals import CONFIDENCE, load_intervals
from runner.statistics.simple_means import NOTHING, Mean, two_ends

PROPORTIONS = frozenset(
    (
        "accuracy", "accuracy_excluding_failures", "accuracy_0", "accuracy_1", "precision", "recall", "decided",
        "token_limit_proportion",
    )
)  # fmt: skip
NEED_LABELS = frozenset(
    (
        "accuracy", "accuracy_excluding_failures", "accuracy_0", "accuracy_1", "precision", "recall",
        "worst_datapoint_accuracy",
    )
)  # fmt: skip
"""Of the numbers that every run has; of others that need them a run without labels has none."""
NO_LABELS = "no labels"
NO_INTERVAL = "the lowest of several has no interval"
LEAST_PLAYS = 5
"""Of each datapoint, from which on the worst datapoint's accuracy is told."""


@dataclass(frozen=True)
class Estimate:
    """One number of a board: `agent` is None for the whole game, `clusters` the number of groups of datapoints.

    Of `worst_datapoint_accuracy`, the number of datapoints; of a number of right and of wrong solutions together, the
    groups of the rarer label.
    """

    agent: str | None
    metric: str
    value: float | None
    stderr: float | None
    ci_low: float | None
    ci_high: float | None
    n: int
    clusters: int
    reason: str | None = None
    """Why it has no interval, or no value."""
    plays: int | None = None
    """Of a number that depends on it, how often each datapoint was played; of vote@k, k."""

    def to_json(self) -> dict[str, Any]:
        """A row of `metrics.json`; `plays` stands where it is known."""
        return {name: value for name, value in vars(self).items() if name != "plays" or value is not None}

    @classmethod
    def of(cls, number: Number, agent: str | None = None) -> Estimate:
        return cls(agent, **vars(number))


class Metrics:
    """Collects rollouts and gives estimates. `seats`: the two that exchange their players in swapped games."""

    def __init__(self, protocol: Protocol, seats: tuple[str, str] | None = None) -> None:
        load_intervals()
        self._protocol = protocol
        self._tallies: dict[tuple[str | None, str], ClusterSums] = {}
        self.outcomes: Counter[Outcome] = Counter()
        self._judged = JudgedGames(protocol, seats)

    def add(self, rollout: Rollout) -> None:
        """Count one rollout. A failure of transport is counted as an outcome and in nothing else."""
        self.count(measured(self._protocol, rollout))

    def count(self, game: GameMeasurement) -> None:
        """Count what a game adds."""
        self.outcomes[Outcome(game.outcome)] += 1
        if game.verdict is None:
            return
        self._judged.count(game.verdict)
        tallies, cluster = self._tallies, game.cluster
        for agent, metric, values in game.added:
            tally = tallies.get((agent, metric))
            if tally is None:
                tally = tallies[agent, metric] = ClusterSums()
            tally.add_all(cluster, values)

    def estimates(self) -> list[Estimate]:
        """All metrics in a fixed order, the whole game's first."""
        order = [
            "accuracy", "accuracy_excluding_failures", "accuracy_0", "accuracy_1", "precision", "recall", "decided",
            "decision", "worst_datapoint_accuracy", "episode_length", "rounds_played",
        ]  # fmt: skip
        rows = [self._estimate(None, name) for name in order]
        for agent in self._protocol.agent_names:
            rows.extend(
                self._estimate(agent, name)
                for name in ("reward", "retries_per_round", "token_limit_proportion", "calls_per_message")
            )
        rows.extend(Estimate.of(number, agent) for agent, number in self._judged.numbers())
        return rows

    def _estimate(self, agent: str | None, metric: str) -> Estimate:
        if not self._judged.is_labelled and (metric in NEED_LABELS or (agent, metric) not in self._tallies):
            return Estimate(agent, metric, None, None, None, None, 0, 0, NO_LABELS)
        if metric == "worst_datapoint_accuracy":
            return self._worst_datapoint()
        tally = self._tallies.get((agent, metric), ClusterSums())
        grouped = self._judged.is_grouped
        mean = Mean(metric, tally.mean, tally.stderr, tally.n, len(tally.clusters), grouped)
        if metric in PROPORTIONS:
            found, reason = mean.of_share()
        elif ends := self._two_ends(agent, metric, tally):
            found, reason = mean.between(ends)
        else:
            found, reason = mean.by_student(tally.by_cluster)
        low, high = found or (None, None)
        return Estimate(agent, metric, mean.value, mean.stderr, low, high, mean.n, mean.clusters, reason)

    def _two_ends(self, agent: str | None, metric: str, tally: ClusterSums) -> tuple[float, float] | None:
        """What a value is one of, where it is one of two: a decision where all decided, a reward for a verdict."""
        if metric == "decision":
            return two_ends(tally.values, (0.0, 1.0))
        if metric != "reward":
            return None
        p = self._protocol.parameters
        if agent == self._protocol.verifier_name or p.shared_reward:
            return two_ends(tally.values, (p.verifier_incorrect_penalty, p.verifier_reward))
        return two_ends(tally.values, (0.0, p.prover_reward))

    def _worst_datapoint(self) -> Estimate:
        """The lowest mean of a datapoint; NULL where so few repeats make it a matter of luck."""
        games = self._judged
        value, reason = worst_datapoint(games.worst, games.least_plays)
        return Estimate(None, "worst_datapoint_accuracy", value, None, None, None, games.n, games.datapoints, reason)

    def original_statistics(self, prefix: str = "") -> dict[str, float | None]:
        """What the original implementation counts, under its names; deviations are population ones."""

        def stat(agent: str | None, metric: str, name: str) -> Iterator[tuple[str, float | None]]:
            tally = self._tallies.get((agent, metric), ClusterSums())
            head = f"{agent}.{prefix}" if agent else prefix
            yield f"{head}mean_{name}", tally.mean
            yield f"{head}std_{name}", tally.deviation

        result: dict[str, float | None] = {}
        for agent in self._protocol.agent_names:
            result.update(stat(agent, "reward", "episode_reward"))
            for metric, name in (
                ("retries_per_round", "retry_proportion"), (ORIGINAL_LIMITED, "token_limit_proportion"),
            ):  # fmt: skip
                result[f"{agent}.{prefix}{name}"] = self._tallies.get((agent, metric), ClusterSums()).mean
        for metric, name in (
            ("episode_length", "episode_length"), ("accuracy", "accuracy"), ("accuracy_0", "0_accuracy"),
            ("accuracy_1", "1_accuracy"), ("decision", "decision"),
        ):  # fmt: skip
            result.update(stat(None, metric, name))
        result[f"{prefix}worst_datapoint_accuracy"] = self._judged.worst
        for name in ("precision", "recall"):
            result[f"{prefix}{name}"] = self._tallies.get((None, name), ClusterSums()).mean
        return result

    def summary(self) -> dict[str, Any]:
        """What `metrics.json` holds."""
        rows = self.estimates()
        shown: dict[str, Any] = {
            "interval": f"{CONFIDENCE:.0%}; proportions: Wilson at the effective sample size; others: Student's t; "
            f"errors clustered by {'group' if self._judged.is_grouped else 'datapoint'}",
            "outcomes": {outcome.value: self.outcomes[outcome] for outcome in Outcome},
            "metrics": [row.to_json() for row in rows],
        }
        if self._judged.n:
            shown["methods"] = methods({row.metric for row in rows})
        if votes := self._judged.vote_curve():
            shown["vote_curve"] = [_vote(one) for one in votes]
        if curves := self._judged.reliability_curves():
            shown["reliability_curves"] = curves
        return shown


def worst_datapoint(lowest: float | None, plays: int) -> tuple[float | None, str]:
    """The lowest accuracy of a datapoint, as it is told where each was played so often, and why it has no interval."""
    if lowest is None:
        return None, NOTHING
    if plays < LEAST_PLAYS:
        return None, f"a datapoint was played fewer than {LEAST_PLAYS} times: the lowest mean is luck"
    return lowest, NO_INTERVAL


def is_by_group(metrics: Mapping[str, Any]) -> bool:
    """Whether what `metrics.json` says is of clusters with several datapoints."""
    return str(metrics.get("interval", "")).endswith("by group")


def _vote(at: Number) -> dict[str, Any]:
    return {"k": at.plays, **{name: value for name, value in vars(at).items() if name not in ("metric", "plays")}}
