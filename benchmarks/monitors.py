"""Check the coverage of intervals and bands of simulated monitors, whose ROC curve is known.

    python benchmarks/monitors.py [--times N] [--seed S] [--only TEXT]

Each situation has N data sets. Groups have one to four games with a common part of their suspicion. The suspicion is
normally distributed, with a higher mean for attacks, or it is one of 11 values (0, 0.1, ..., 1). The intervals of the
true positive rates must contain the truth in 93 % of the data sets or more, and so must the whole band of the audit
curve at all budgets, and the interval of the difference between two monitors of the same games. Data sets without an
interval do not count; the table has the share of those with one. With fewer than 2,000 data sets, coverage may be lower
by two standard errors. The truth of the audit curve is the one for the data set's share of attacks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from common import print_table, sample_parser
from scipy.special import ndtr, ndtri

from runner.results.metric_definitions import FALSE_POSITIVE_RATES, MONITOR_RULE
from runner.statistics.monitoring.order_measures import MeasureDifference
from runner.statistics.monitoring.ranked_games import RankedGames, ranked_games

MIN_COVERAGE, FULL_TIMES = 0.93, 2_000
COMMON = 0.3
"""The share of the variance of the suspicion that games of a group have in common."""
SEPARATIONS = (1.5, 1.0)
"""The difference of the mean suspicion of attacks and benign games, in standard deviations, of two monitors."""
LEVELS = ndtri((np.arange(10) + 0.5) / 10) + 0.7
"""The ends of the ranges of the normal suspicion that become one of 11 values."""
BAND, DIFFERENCE = "audit band", "difference at 10 %"
MEASURES = (*(f"TPR at {rate * 100:g} %" for rate in FALSE_POSITIVE_RATES), BAND, DIFFERENCE)


@dataclass(frozen=True)
class Situation:
    """The design of simulated data sets of monitors."""

    groups: int
    attack_share: float = 0.1
    is_discrete: bool = False
    largest: int = 4
    """The largest number of games in a group."""
    failures: float = 0.0
    """The share of games without a suspicion."""
    has_whole_groups: bool = False
    """Whether the games of a group are all attacks or all benign."""

    @property
    def name(self) -> str:
        parts = [f"{self.groups} groups of 1 to {self.largest}" if self.largest > 1 else f"{self.groups} games"]
        parts.append(f"{self.attack_share:.0%} attacks{' in whole groups' if self.has_whole_groups else ''}")
        parts.append("11 values" if self.is_discrete else "normal")
        return ", ".join([*parts, *([f"{self.failures:.0%} fail"] if self.failures else [])])

    def draw(self, rng: np.random.Generator) -> list[RankedGames] | None:
        """Return the games of each monitor; None without attacks or benign games."""
        clusters = np.repeat(np.arange(self.groups), rng.integers(1, self.largest + 1, self.groups))
        is_attack = rng.random(self.groups if self.has_whole_groups else len(clusters)) < self.attack_share
        is_attack = is_attack[clusters] if self.has_whole_groups else is_attack
        common, individual = rng.standard_normal(self.groups)[clusters], rng.standard_normal((2, len(clusters)))
        is_scored = rng.random(len(clusters)) >= self.failures
        individual[1] = (individual[0] + individual[1]) / np.sqrt(2)  # both monitors read the same transcripts
        monitors = []
        for separation, noise in zip(SEPARATIONS, individual, strict=True):
            suspicion = np.sqrt(COMMON) * common + np.sqrt(1 - COMMON) * noise + separation * is_attack
            suspicion = np.searchsorted(LEVELS, suspicion) / 10 if self.is_discrete else ndtr(suspicion)
            labels = (~is_attack).astype(int)
            games = ranked_games(1 - suspicion[is_scored], labels[is_scored], clusters[is_scored], self.groups)
            if games is None:
                return None
            monitors.append(games)
        return monitors

    def true_curve(self, separation: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the false and the true positive rates of all thresholds."""
        thresholds = LEVELS[::-1] if self.is_discrete else np.linspace(10, -10, 200_001)
        rates = [np.concatenate(([0.0], ndtr(mean - thresholds), [1.0])) for mean in (0.0, separation)]
        return rates[0], rates[1]


def situations() -> Iterator[Situation]:
    for groups in (30, 100, 300):
        for is_discrete in (False, True):
            for attack_share in (0.05, 0.1, 0.5):
                yield Situation(groups, attack_share, is_discrete)
    for groups in (100, 300):
        yield Situation(groups, failures=0.1)
        yield Situation(groups, is_discrete=True, failures=0.1)
        yield Situation(groups, has_whole_groups=True)
        yield Situation(groups, largest=1)


def measure(situation: Situation, times: int, seed: int) -> dict[str, tuple[int, int]]:
    """Return for each measure the number of data sets with an interval, and of those whose interval has the truth."""
    rng = np.random.default_rng([seed, situation.groups, round(100 * situation.attack_share), situation.is_discrete])
    counts = {name: [0, 0] for name in MEASURES}
    false_rates, true_rates = situation.true_curve(SEPARATIONS[0])
    truths = np.interp(FALSE_POSITIVE_RATES, false_rates, true_rates)
    difference = float(np.interp(0.1, *situation.true_curve(SEPARATIONS[1])) - truths[-1])
    for _ in range(times):
        monitors = situation.draw(rng)
        if monitors is None or MONITOR_RULE.missing_reason(monitors[0].cluster_count) is not None:
            continue
        first, second = monitors
        for name, rate, truth in zip(MEASURES, FALSE_POSITIVE_RATES, truths, strict=False):
            if (rate_measure := first.rate_measure(rate)) is not None:
                low, high = rate_measure.interval_at(0.95)
                count_interval(counts[name], low <= truth <= high)
        share, band = first.attacks / first.n, first.audit_curve()
        mixture = share * true_rates + (1 - share) * false_rates
        truth_of_band = np.interp([point.share for point in band], mixture, true_rates)
        band_ends = np.array([(point.ci_low, point.ci_high) for point in band], dtype=float)
        count_interval(
            counts[BAND],
            bool(np.all((band_ends[:, 0] <= truth_of_band + 1e-9) & (truth_of_band <= band_ends[:, 1] + 1e-9))),
        )
        measures = first.rate_measure(0.1), second.rate_measure(0.1)
        if measures[0] is not None and measures[1] is not None:
            difference_interval = MeasureDifference(measures[0], measures[1], is_paired=True).at(0.95)
            assert difference_interval.low is not None
            assert difference_interval.high is not None
            count_interval(counts[DIFFERENCE], difference_interval.low <= difference <= difference_interval.high)
    return {name: (interval_count, covered_count) for name, (interval_count, covered_count) in counts.items()}


def count_interval(counts: list[int], is_covered: bool) -> None:
    counts[0] += 1
    counts[1] += is_covered


def main() -> int:
    parser = sample_parser(__doc__, 200)
    parser.add_argument("--only", metavar="TEXT", default="", help="only the situations with this text in their name")
    args = parser.parse_args()
    rows, low_coverage = [], []
    for situation in situations():
        if args.only not in situation.name:
            continue
        cells = []
        for name, (interval_count, covered_count) in measure(situation, args.times, args.seed).items():
            cells.append(
                f"{covered_count / interval_count:.1%} of {interval_count / args.times:.0%}"
                if interval_count
                else "none"
            )
            tolerance = (
                0.0
                if args.times >= FULL_TIMES
                else 2 * np.sqrt(MIN_COVERAGE * (1 - MIN_COVERAGE) / max(interval_count, 1))
            )
            if interval_count and covered_count / interval_count < MIN_COVERAGE - tolerance:
                share = covered_count / interval_count
                low_coverage.append(f"{situation.name}: {name} covered {share:.1%} of {interval_count} data sets")
        rows.append((situation.name, *cells))
        print("; ".join((situation.name, *cells)), file=sys.stderr, flush=True)
    print_table("coverage, of the share of data sets with an interval", ("situation", *MEASURES), rows)
    print("\n".join(f"FAIL  {line}" for line in low_coverage) or f"ok    all at least {MIN_COVERAGE:.0%}")
    return 1 if low_coverage else 0


if __name__ == "__main__":
    sys.exit(main())
