"""Measure the coverage of every interval in metrics.json: how often it contains the truth, in simulated runs.

    python benchmarks/coverage_metrics.py [--times N] [--seed S] [--write]

There are three parts. Judges accept right and wrong solutions with planted chances that vary between datapoints (beta,
with a correlation within datapoints) or between programs (groups of two versions); they play K datapoints R times.
Judges that state probabilities have evidence of a planted strength, which determines the true P(right). They state this
probability itself, or overconfident or biased values, exactly or rounded to tenths. Counts, such as the calls of a
message, have a planted distribution. The truth is the value for 400,000 datapoints. If a simulated run has no interval
for a metric, the interval counts as withheld; the coverage is that of the other runs. `--write` writes the tables to
`benchmarks/coverage.md`. `accuracy` is first and has its own limits; the others must cover at least 90 %.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from common import ROOT

from runner.results.estimates import Estimate, estimate, estimates_of, forecast_estimates
from runner.results.metric_definitions import METRICS, RANKING_METRIC, Source
from runner.statistics.calibration import Forecasts
from runner.statistics.clustered_means import mean_share
from runner.statistics.intervals import load_scipy
from runner.statistics.reporting_rules import NOTHING
from runner.statistics.simple_means import Mean, two_ends
from runner.statistics.verdicts import Verdicts
from tests.support.soft_assertions import SoftAssertions

TRUTH_DATAPOINTS = 400_000
MIN_COVERAGE = 0.90
ROUNDING = 1e-12
MIN_INTERVAL_SHARE = 0.2
"""If a smaller share of the simulated runs has an interval, its coverage is printed without a check."""


@cache
def beta_quantiles(mean: float, correlation: float) -> np.ndarray:
    """Return a thousand equally likely chances with this mean and this correlation within datapoints."""
    from scipy.special import betaincinv

    size = 1 / correlation - 1
    quantiles: np.ndarray = betaincinv(mean * size, (1 - mean) * size, np.linspace(0.0005, 0.9995, 1000))
    return quantiles


NOTES = (
    "H and F: the chances that a right and a wrong solution are accepted; ICC: the correlation within a datapoint.\n",
    "Some things to know. Labels are half and half, so that the accuracy of a judge that is right of one label more",
    "often than of the other (H + F is not 1) varies less than that of independent draws, and its interval may hold",
    "more often than 97.5 %. Intervals of `brier` and `log_score` are not told below 100 groups: of a judge too sure",
    "of strong evidence they held the truth 75.2 and 70.7 % of the time at 20 datapoints, 89.8 and 85.2 % at 50.",
    "Means that are no shares (`calls_per_message` stands for them all) have an interval where ten groups differ from",
    "the commonest value: without that rule those of counts held the truth in 32 to 93 % of runs at 20 datapoints.",
    "`reward` and `decision` have that of their share where they are one of two values, else that of a mean.\n",
)


@dataclass(frozen=True)
class Judge:
    """A judge on K datapoints, half of them right, each played R times."""

    datapoints: int
    repeats: int
    hits: float
    false_alarms: float
    correlation: float
    design: str = "alone"
    """alone; pairs: a right and a wrong version form a group with a common bias; stances; exchanged; seats."""
    undecided: float = 0.0

    def __str__(self) -> str:
        return (f"K {self.datapoints}, R {self.repeats}, H {self.hits:g}, F {self.false_alarms:g}, "
                f"ICC {self.correlation:g}, {self.design}")  # fmt: skip

    def simulate(self, rng: np.random.Generator, datapoints: int) -> list[Estimate]:
        """Return all metrics of one simulated run."""
        return list(self._estimates(self.simulate_verdicts(rng, datapoints)))

    def simulate_verdicts(self, rng: np.random.Generator, datapoints: int) -> Verdicts:
        way_count = {"stances": 2, "exchanged": 2, "seats": 2}.get(self.design, 1)
        points = np.repeat(np.arange(datapoints), self.repeats * way_count)
        labels = points % 2
        clusters = points // 2 if self.design == "pairs" else points
        units = (
            rng.random(datapoints // 2)[np.arange(datapoints) // 2]
            if self.design == "pairs"
            else rng.random(datapoints)
        )
        chances = np.empty(datapoints)
        for label, mean in enumerate((self.false_alarms, self.hits)):
            has_label = np.arange(datapoints) % 2 == label
            chances[has_label] = self._chances(mean, units[has_label])
        way = np.tile(np.arange(way_count), len(points) // way_count)
        shifted_chances = (
            chances[points] if way_count == 1 else np.clip(chances[points] + np.where(way == 1, 0.1, -0.1), 0, 1)
        )
        decisions = (rng.random(len(points)) < shifted_chances).astype(np.int64)
        decisions[rng.random(len(points)) < self.undecided] = 2
        return Verdicts(
            labels, decisions, points, clusters, int(clusters.max()) + 1, self.design == "pairs",
            *(way if self.design == way_design else None for way_design in ("stances", "seats", "exchanged")),
        )  # fmt: skip

    def _chances(self, mean: float, units: np.ndarray) -> np.ndarray:
        if not self.correlation:
            return np.full(len(units), mean)
        chances: np.ndarray = beta_quantiles(mean, self.correlation)[(units * 1000).astype(int)]
        return chances

    def _estimates(self, verdicts: Verdicts) -> Iterator[Estimate]:
        accuracy = verdicts.of(verdicts.right)
        assert accuracy is not None
        yield estimate(METRICS[RANKING_METRIC], accuracy)
        yield from self._game_estimates(verdicts)
        ways = [way for way in (verdicts.stances, verdicts.swapped, verdicts.exchanged) if way is not None]
        if ways:
            # The first player argues for rejection, and for acceptance if its stance or seat is swapped.
            yield from estimates_of(Source.BLOCKS, verdicts, None if verdicts.exchanged is None else ways[0])
            yield from estimates_of(Source.PLAYERS, verdicts, ways[0])
            if verdicts.swapped is not None:
                yield from estimates_of(Source.SEATS, verdicts, np.zeros(len(verdicts.labels), dtype=np.int64))
        else:
            yield from estimates_of(Source.VERDICTS, verdicts)

    def _game_estimates(self, verdicts: Verdicts) -> Iterator[Estimate]:
        """Yield the metrics that are means over games, as in `results.metrics`."""
        if self.design not in ("alone", "pairs"):
            return
        right, decided, accepted = verdicts.right, verdicts.decisions != 2, verdicts.decisions == 1
        is_right_label = verdicts.labels == 1
        all_games = np.ones(len(right), bool)
        selections = {
            "accuracy_excluding_failures": (right, decided), "accuracy_0": (right, ~is_right_label),
            "accuracy_1": (right, is_right_label), "precision": (is_right_label, accepted),
            "recall": (accepted, is_right_label & decided), "decided": (decided, all_games),
            "reward": (2.0 * right - 1, all_games), "decision": (verdicts.decisions, all_games),
        }  # fmt: skip
        for name, (values, selection) in selections.items():
            yield estimate_mean(
                name, values[selection].astype(float), verdicts.clusters[selection], grouped=verdicts.grouped
            )


def estimate_mean(name: str, values: np.ndarray, clusters: np.ndarray, *, grouped: bool = False) -> Estimate:
    """Return a mean with the interval for its kind."""
    sums, counts = np.bincount(clusters, weights=values), np.bincount(clusters)
    means = sums[counts > 0] / counts[counts > 0]
    share = mean_share(values, clusters, len(counts))
    if share is None:
        return Estimate(None, name, None, None, None, None, 0, 0, NOTHING)
    mean = Mean(METRICS[name].rule, share.value, share.stderr, share.n, share.clusters, grouped)
    ends = two_ends(values.tolist(), {"reward": (-1.0, 1.0), "decision": (0.0, 1.0)}.get(name, (0.0, 0.0)))
    if METRICS[name].is_proportion:
        interval, reason = mean.share_interval()
    elif ends is not None:
        interval, reason = mean.two_value_interval(ends)
    else:
        interval, reason = mean.student_interval(means.tolist())
    low, high = interval or (None, None)
    return Estimate(None, name, share.value, share.stderr, low, high, share.n, share.clusters, reason)


@dataclass(frozen=True)
class Counter:
    """Counts per datapoint; a share of the datapoints has more than the least count."""

    datapoints: int
    share: float
    kind: str
    """The excess over the least count. one: 1; several: a geometric number; seldom many: 10 for one in five, else 1."""

    def __str__(self) -> str:
        return f"K {self.datapoints}, {self.share:g} have more, {self.kind}"

    def simulate(self, rng: np.random.Generator, datapoints: int) -> list[Estimate]:
        draw_excess = {
            "one": lambda: np.ones(datapoints),
            "several": lambda: rng.geometric(0.5, datapoints),
            "seldom many": lambda: rng.choice([1, 1, 1, 1, 10], datapoints),
        }[self.kind]()
        values = np.where(rng.random(datapoints) < self.share, draw_excess, 0) + 1.0
        return [estimate_mean("calls_per_message", values, np.arange(datapoints))]


def counters() -> Iterator[Counter]:
    for datapoints in (20, 50, 100, 200, 500):
        for share in (0.02, 0.1, 0.5):
            for kind in ("one", "several", "seldom many"):
                yield Counter(datapoints, share, kind)


@dataclass(frozen=True)
class Forecaster:
    """A judge that states probabilities: the strength of its evidence, and the calibration of its statements."""

    datapoints: int
    repeats: int
    strength: float
    calibration: str
    """calibrated, sure (doubled log odds), leaning (log odds of acceptance plus 1) or vague (halved log odds)."""
    rounded: bool

    def __str__(self) -> str:
        rounding = "rounded to tenths" if self.rounded else "whole"
        return f"K {self.datapoints}, R {self.repeats}, evidence {self.strength:g}, {self.calibration}, {rounding}"

    def simulate(self, rng: np.random.Generator, datapoints: int) -> list[Estimate]:
        points = np.repeat(np.arange(datapoints), self.repeats)
        labels = points % 2
        shared = rng.normal(0, 1, datapoints)[points]
        noise = np.sqrt(0.5) * (shared + rng.normal(0, 1, len(points)))
        log_odds = self.strength * (self.strength * (labels - 0.5) + noise)
        log_odds = {"calibrated": log_odds, "sure": 2 * log_odds, "leaning": log_odds + 1, "vague": log_odds / 2}[
            self.calibration
        ]
        p = 1 / (1 + np.exp(-log_odds))
        p = np.round(p, 1) if self.rounded else p
        return list(forecast_estimates(Forecasts(p, labels, points, datapoints), "stated"))


Situation = Judge | Forecaster | Counter


def judges() -> Iterator[Judge]:
    for datapoints in (10, 20, 50, 100, 200, 500):
        yield Judge(datapoints, 1, 0.7, 0.3, 0)
        yield Judge(datapoints, 5, 0.8, 0.4, 0.3)
        yield Judge(datapoints, 3, 0.95, 0.1, 0.3)
    for datapoints in (20, 50, 200):
        yield Judge(datapoints, 1, 0.98, 0.3, 0)
        yield Judge(datapoints, 5, 0.7, 0.5, 0.6, undecided=0.1)
        for design in ("pairs", "stances", "exchanged", "seats"):
            yield Judge(datapoints, 2, 0.8, 0.3, 0.4, design)
            yield Judge(datapoints, 1, 0.9, 0.15, 0.2, design)
    yield Judge(500, 5, 0.99, 0.02, 0.3)


def forecasters() -> Iterator[Forecaster]:
    for datapoints in (10, 20, 50, 100, 200, 500):
        for calibration in ("calibrated", "sure"):
            yield Forecaster(datapoints, 1, 1.5, calibration, rounded=False)
            yield Forecaster(datapoints, 3, 2.0, calibration, rounded=True)
    for datapoints in (20, 50, 200):
        yield Forecaster(datapoints, 1, 0.5, "vague", rounded=False)
        yield Forecaster(datapoints, 1, 0.5, "sure", rounded=False)
        yield Forecaster(datapoints, 2, 1.0, "leaning", rounded=True)
        yield Forecaster(datapoints, 2, 3.5, "sure", rounded=False)


@dataclass
class CoverageCount:
    """The coverage of one metric in one situation."""

    truth: float
    interval_count: int = 0
    covered: int = 0

    def add(self, row: Estimate) -> None:
        low, high = row.ci_low, row.ci_high
        if low is not None or high is not None or row.reason is None:
            self.interval_count += 1
            above = low is None or low - ROUNDING <= self.truth
            self.covered += above and (high is None or self.truth <= high + ROUNDING)

    @property
    def coverage(self) -> float | None:
        return self.covered / self.interval_count if self.interval_count else None


def measure_coverage(
    situation: Situation, times: int, seed: list[int], many: int = TRUTH_DATAPOINTS
) -> dict[str, CoverageCount]:
    """Measure the coverage of every metric in one situation; the truth is the metric of `many` datapoints."""
    rng = np.random.default_rng(seed)
    counts = {row.metric: CoverageCount(row.value) for row in situation.simulate(rng, many) if row.value is not None}
    for _ in range(times):
        for row in situation.simulate(rng, situation.datapoints):
            counts[row.metric].add(row)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1000, metavar="N", help="runs in each situation (1000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="put the tables into benchmarks/coverage.md")
    parser.add_argument("--only", default="", metavar="WORDS", help="situations whose name has these words")
    args = parser.parse_args()
    if args.write and args.only:
        parser.error("--write takes all situations")
    load_scipy()
    check, rows = SoftAssertions(), []
    for part, situations in enumerate((judges(), forecasters(), counters())):
        for number, situation in enumerate(situations):
            if args.only not in str(situation):
                continue
            measurements = measure_coverage(situation, args.times, [args.seed, part, number])
            rows.append((situation, measurements))
            for claim, holds in check_coverage(situation, measurements, args.times):
                check(holds, claim)
    text = "\n".join(render_markdown(rows, args.times))
    print(f"\n{text}")
    if args.write:
        (ROOT / "benchmarks" / "coverage.md").write_text(text)
    return check.exit_code()


def check_coverage(situation: Situation, counts: dict[str, CoverageCount], times: int) -> Iterator[tuple[str, bool]]:
    """Yield the coverage of each metric with enough intervals, and whether it is within its limits."""
    slack = 2 * (0.05 * 0.95 / times) ** 0.5 if times < 1000 else 0.0
    for metric, count in counts.items():
        if count.coverage is None or count.interval_count < MIN_INTERVAL_SHARE * times:
            continue
        low, high = MIN_COVERAGE, 1.0
        if metric == "accuracy" and isinstance(situation, Judge):
            clusters = situation.datapoints / (2 if situation.design == "pairs" else 1)
            has_equal_chances = (
                abs(situation.hits + situation.false_alarms - 1) < 1e-9
            )  # else balanced labels reduce the variance
            has_enough_groups = clusters * count.truth * (1 - count.truth) >= 5
            low, high = (0.925, 0.975) if has_enough_groups and has_equal_chances else (0.92, 1.0)
        holds = low - slack <= count.coverage <= high + slack
        yield f"{situation}: {metric} {count.coverage:.1%}", holds


def render_markdown(rows: list[tuple[Situation, dict[str, CoverageCount]]], times: int) -> Iterator[str]:
    """Yield a table for each kind of situation: coverage in percent, and the share of runs without an interval."""
    yield "# Coverage of the intervals\n"
    yield "Share of 95 % intervals that hold the truth, in percent; in brackets, of how many runs no interval is told."
    yield f"{times:,} simulated runs a row: `python benchmarks/coverage_metrics.py --write`."
    yield from NOTES
    by_names: dict[tuple[str, ...], list[Any]] = defaultdict(list)
    for situation, counts in rows:
        by_names[tuple(counts)].append((situation, counts))
    for names, group in by_names.items():
        short_names = [name.removesuffix("_stated") for name in names]
        yield f"| situation | {' | '.join(short_names)} |"
        yield f"| --- |{' --- |' * len(names)}"
        for situation, counts in group:
            yield f"| {situation} | {' | '.join(format_cell(counts[name], times) for name in names)} |"
        yield ""


def format_cell(count: CoverageCount, times: int) -> str:
    withheld_share = 1 - count.interval_count / times
    coverage = "none" if count.coverage is None else f"{100 * count.coverage:.1f}"
    return coverage if withheld_share < 0.005 or count.coverage is None else f"{coverage} ({100 * withheld_share:.0f})"


if __name__ == "__main__":
    sys.exit(main())
