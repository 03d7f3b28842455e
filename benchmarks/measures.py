"""Check the other intervals of `compare` and `show`, and how often ranks and equivalence are wrong.

    python benchmarks/measures.py [--times N] [--seed S] [--only TEXT]

Each situation has N data sets: groups of datapoints, each played once or three times. A datapoint has its own ease,
which all judges share. An interval must contain the truth in 93 % of the data sets or more; of fewer than 1,200 data
sets, three standard errors below 95 %. With 100 groups or more it
must contain the truth in at most 97 %, plus two standard errors of a share of N data sets. This limit does not apply if
half of the intervals or more begin at 0, the least possible value: they cannot be too high, and an interval whose two
ends are each wrong in 2.5 % of the data sets then contains the truth in 97.5 %.
Two equivalent systems at the margin may be called equivalent in 5 % of the data sets. Equal systems may be separated in
5 % of the tables of ranks, and sets of ranks of systems that no test separates must overlap.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product

import numpy as np
from common import coverage_limit, sample_parser
from scipy.special import ndtr

from runner.spec.checks.fixed_verdicts import explain_fixed_verdicts
from runner.statistics.agreement import Agreement, Scale, agreement, krippendorff_alpha
from runner.statistics.calibration import LOG_FLOOR, Forecasts
from runner.statistics.gap_recovered import gap_recovered
from runner.statistics.paired_groups import Pairs
from runner.statistics.rank_sets import MAX_PAIRWISE, PAIR_LEVEL, rank_sets
from runner.statistics.sign_flip import sign_flip
from runner.statistics.signal_detection import sensitivity_difference
from runner.statistics.significance import ALPHA
from runner.statistics.verdicts import Verdicts
from tests.support.soft_assertions import SoftAssertions

LOW, HIGH, LIMITED_FROM = 0.93, 0.97, 100
MAX_ERROR_RATE = 0.06
"""5 %, and a tolerance for chance in 2,000 data sets."""
GROUPS, REPEATS = (10, 40, 100, 400), (1, 3)
Ends = tuple[float | None, float | None] | None


def simulate_plays(
    rng: np.random.Generator, groups: int, repeats: int, accuracies: Sequence[float]
) -> list[np.ndarray]:
    """Return which games of each datapoint each judge decides rightly; judges share how easy a datapoint is."""
    common, shape = rng.random((groups, 1)), (groups, repeats)
    return [np.where(rng.random(shape) < 0.7, common, rng.random(shape)) < accuracy for accuracy in accuracies]


def gap_interval(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    weak, score, strong = (judge.mean(axis=1) for judge in simulate_plays(rng, groups, repeats, (0.4, 0.65, 0.9)))
    result = gap_recovered((score - weak).tolist(), (strong - weak).tolist())
    return result.low, result.high


def simulate_agreement(rng: np.random.Generator, groups: int, repeats: int) -> Agreement | None:
    """Simulate two judges who give equal verdicts on 82 % of debates."""
    common, shape = rng.integers(0, 2, (groups, repeats)), (groups, repeats)
    first, second = (np.where(rng.random(shape) < 0.8, common, rng.integers(0, 2, shape)).ravel() for _ in range(2))
    return agreement(first.tolist(), second.tolist(), np.repeat(np.arange(groups), repeats).tolist(), groups)


def kappa_interval(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    result = simulate_agreement(rng, groups, repeats)
    return None if result is None else result.kappa.interval


def agreement_interval(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    result = simulate_agreement(rng, groups, repeats)
    return None if result is None else result.raw.interval


CORRELATION = 0.3
"""The correlation of the verdicts within a datapoint, for the tables below."""
VERDICT_TABLES = {
    "95 % equal verdicts": (0.475, 0.025, 0.025, 0.475),
    "98 % equal verdicts": (0.49, 0.01, 0.01, 0.49),
    "90 % accept, 90 % equal verdicts": (0.85, 0.05, 0.05, 0.05),
    "95 % accept, 95 % equal verdicts": (0.925, 0.025, 0.025, 0.025),
    "95 % accept, 98 % equal verdicts": (0.94, 0.01, 0.01, 0.04),
}
"""The chances that both judges accept, that only the first does, that only the second does, and that none does."""


def table_kappa_interval(rng: np.random.Generator, groups: int, repeats: int, chances: Sequence[float]) -> Ends:
    """Simulate two judges with these chances; those of a datapoint vary around them (Dirichlet)."""
    group_chances = rng.dirichlet(np.array(chances) * (1 / CORRELATION - 1), groups)
    cells = (rng.random((groups, repeats, 1)) > np.cumsum(group_chances, axis=1)[:, None, :3]).sum(axis=2).ravel()
    result = agreement(1 - cells // 2, 1 - cells % 2, np.repeat(np.arange(groups), repeats), groups)
    return None if result is None else result.kappa.interval


def true_kappa(chances: Sequence[float]) -> float:
    both, first, second, _ = chances
    accepted = both + first, both + second
    expected = accepted[0] * accepted[1] + (1 - accepted[0]) * (1 - accepted[1])
    return 1 - (first + second) / (1 - expected)


READERS, MISSING = 3, 0.2
ANSWERS: dict[str, tuple[tuple[float, ...], Scale]] = {
    "two answers": ((0.5, 0.5), "nominal"),
    "two answers, one of them rare": ((0.9, 0.1), "nominal"),
    "scores": ((0.3, 0.2, 0.2, 0.2, 0.1), "interval"),
    "ranks": ((0.3, 0.2, 0.2, 0.2, 0.1), "ordinal"),
}
"""The frequencies of answers, and the scale of alpha."""


@dataclass(frozen=True)
class Readers:
    """Readers who copy the true answer with a chance, or else choose at random; datapoints vary around both."""

    chances: tuple[float, ...]
    scale: Scale
    copied: float

    def alpha(self, rng: np.random.Generator, groups: int, repeats: int) -> Ends:
        shape, spread = (groups, repeats, READERS), 1 / CORRELATION - 1
        group_chances = rng.dirichlet(np.array(self.chances) * spread, groups)
        truth = (rng.random((groups, repeats, 1)) > np.cumsum(group_chances, axis=1)[:, None, :-1]).sum(axis=2)
        copies = rng.random(shape) < rng.beta(self.copied * spread, (1 - self.copied) * spread, (groups, 1, 1))
        ratings = np.where(copies, truth[:, :, None], rng.choice(len(self.chances), shape, p=self.chances)).astype(
            float
        )
        ratings[rng.random(shape) < MISSING] = np.nan
        numbers = np.repeat(np.arange(groups), repeats)
        return krippendorff_alpha(ratings.reshape(-1, READERS), numbers, self.scale).interval

    @property
    def true_alpha(self) -> float:
        """The chance that two readers of a unit both copy."""
        return self.copied**2 + self.copied * (1 - self.copied) * CORRELATION


SENSITIVITIES, EASE_DEVIATION, JUDGE_DEVIATION = (1.0, 1.6), 0.7, 0.3
TRUE_DIFFERENCE = (SENSITIVITIES[1] - SENSITIVITIES[0]) / np.sqrt(1 + EASE_DEVIATION**2 + JUDGE_DEVIATION**2)


def sensitivity_interval(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    """Simulate two judges of datapoints with a right and a wrong version, which are equally easy for both judges."""
    ease, counts = rng.normal(0, EASE_DEVIATION, groups), []
    for value in SENSITIVITIES:
        columns = []
        for sign in (1, -1):
            chance = ndtr(sign * (value / 2 + ease) + rng.normal(0, JUDGE_DEVIATION, groups))
            columns += [rng.binomial(repeats, chance), np.full(groups, repeats)]
        counts.append(np.stack(columns, axis=1).tolist())
    result = sensitivity_difference(*counts)
    return None if result is None else (result.ci_low, result.ci_high)


SLOPE = 0.7
TRUTH_GROUPS = 1_000_000


def simulate_forecasts(rng: np.random.Generator, groups: int, repeats: int, stated_slope: float = SLOPE) -> Forecasts:
    """Simulate a judge whose stated log odds are the true ones divided by the slope."""
    labels = rng.integers(0, 2, groups)
    evidence = (2 * labels - 1)[:, None] * 0.75 + rng.normal(0, 0.5, (groups, 1)) + rng.normal(0, 1, (groups, repeats))
    p = 1 / (1 + np.exp(-1.5 * evidence / 1.25 / stated_slope))
    return Forecasts(p.ravel(), np.repeat(labels, repeats), np.repeat(np.arange(groups), repeats), groups)


def slope_interval(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    return simulate_forecasts(rng, groups, repeats).slope.interval


def intercept_interval(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    return simulate_forecasts(rng, groups, repeats).intercept.interval


def ece_interval(rng: np.random.Generator, groups: int, repeats: int, stated_slope: float) -> Ends:
    return simulate_forecasts(rng, groups, repeats, stated_slope).corrected_calibration_error.interval


def reliability_interval(rng: np.random.Generator, groups: int, repeats: int, stated_slope: float) -> Ends:
    return simulate_forecasts(rng, groups, repeats, stated_slope).corrected_reliability.interval


def simulate_scores(rng: np.random.Generator, groups: int, repeats: int) -> tuple[Verdicts, np.ndarray, np.ndarray]:
    """Simulate games of a judge with log-probabilities. Return verdicts, random stances, and the judge's P(accept)."""
    points = np.repeat(np.arange(groups), repeats)
    labels = rng.integers(0, 2, groups)[points]
    log_odds = (2 * labels - 1) * 2 + rng.normal(0, 1, groups)[points] + rng.normal(0, 3, len(labels))
    p, stances = 1 / (1 + np.exp(-log_odds)), rng.integers(0, 2, len(labels))
    return Verdicts(labels, (p > 0.5).astype(int), points, points, groups, grouped=False), stances, p


def score_difference_interval(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    """Return the difference of a player's score by log-probabilities, or None if a kind of game has one datapoint."""
    verdicts, stances, p = simulate_scores(rng, groups, repeats)
    result = verdicts.log_probability_gain(stances, p)
    return None if result is None or result.clusters < 2 else result.interval


def true_score_difference() -> float:
    verdicts, stances, p = simulate_scores(np.random.default_rng(0), TRUTH_GROUPS, 1)
    score = np.log(np.clip(np.where(stances == 1, p, 1 - p), LOG_FLOOR, 1 - LOG_FLOOR))
    return float(score[stances == verdicts.labels].mean() - score[stances != verdicts.labels].mean())


MARGIN = 0.1


def is_equivalent_at_margin(rng: np.random.Generator, groups: int, repeats: int) -> bool:
    """Return whether two systems that differ by the margin are called equivalent."""
    first, second = (judge.mean(axis=1) for judge in simulate_plays(rng, groups, repeats, (0.6, 0.6 + MARGIN)))
    sums = (second - first).tolist()
    pairs = Pairs(sums, [1.0] * groups, [0.0] * groups, [1.0] * groups, 1 / repeats)
    return pairs.equivalence(1.0, MARGIN).is_shown


Interval = Callable[[np.random.Generator, int, int], Ends]
JUDGES = {"very overconfident": 0.4, "overconfident": SLOPE, "calibrated": 1.0}
"""The calibration slope of judges. ECE and reliability of a calibrated judge are 0."""


def list_intervals() -> Iterator[tuple[str, Interval, float, float]]:
    """Yield the name of each interval, a function that simulates it, the truth, and the least possible value."""
    yield "performance gap recovered", gap_interval, 0.5, -math.inf
    yield "raw agreement", agreement_interval, 0.82, 0.0
    yield "Cohen's kappa", kappa_interval, 0.64, -1.0
    for name, chances in VERDICT_TABLES.items():
        yield f"Cohen's kappa, {name}", partial(table_kappa_interval, chances=chances), true_kappa(chances), -1.0
    for (name, (frequencies, scale)), copied in product(ANSWERS.items(), (0.6, 0.95)):
        readers = Readers(frequencies, scale, copied)
        yield f"Krippendorff's alpha, {name}, {copied:.0%} copied", readers.alpha, readers.true_alpha, -math.inf
    yield "difference of d'", sensitivity_interval, float(TRUE_DIFFERENCE), -math.inf
    yield "calibration slope", slope_interval, SLOPE, -math.inf
    yield "calibration intercept", intercept_interval, 0.0, -math.inf
    for name, stated_slope in JUDGES.items():
        true_forecasts = simulate_forecasts(np.random.default_rng(0), TRUTH_GROUPS, 1, stated_slope)
        ece, reliability = (0.0, 0.0) if stated_slope == 1 else (true_forecasts.ece, true_forecasts.reliability)
        yield f"corrected ECE, {name}", partial(ece_interval, stated_slope=stated_slope), ece, 0.0
        yield (
            f"corrected reliability, {name}",
            partial(reliability_interval, stated_slope=stated_slope),
            reliability,
            0.0,
        )
    yield "score difference by log-probabilities", score_difference_interval, true_score_difference(), -math.inf


def build_rank_table(
    rng: np.random.Generator, groups: int, accuracies: Sequence[float], forced: str | None = None
) -> dict[int, tuple[int, int]]:
    """Return the set of ranks of each ranked system by a run on the same datapoints.

    With `forced`, the last run has verdicts that this value of `protocol.force_guess` fixes. As on a leaderboard, a
    system with fixed verdicts has no rank, and no test with it counts.
    """
    means = [judge.mean(axis=1) for judge in simulate_plays(rng, groups, 1, accuracies)]
    guesses: list[str | None] = [None] * len(means)
    if forced is not None:
        means, guesses = [*means, np.ones(groups)], [*guesses, forced]
    ranked = [system for system, guess in enumerate(guesses) if explain_fixed_verdicts(guess, []) is None]
    order = sorted(ranked, key=lambda system: -float(means[system].sum()))

    def p_values(pairs: Sequence[tuple[int, int]]) -> list[float]:
        return [sign_flip((means[first] - means[second]).tolist(), level=PAIR_LEVEL).p for first, second in pairs]

    return rank_sets(order, p_values)


def disjoint_pairs(ranks: dict[int, tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of systems whose sets of ranks have no rank in common."""
    for first, second in combinations(ranks, 2):
        if ranks[first][1] < ranks[second][0] or ranks[second][1] < ranks[first][0]:
            yield first, second


def main() -> int:
    parser = sample_parser(__doc__, 2000)
    parser.add_argument("--only", metavar="TEXT", help="only the intervals with this text in their name, or `ranks`")
    args = parser.parse_args()
    check = SoftAssertions()
    selected = [row for row in list_intervals() if (args.only or "") in row[0]] if args.only != "ranks" else []
    for (name, interval, truth, least_value), groups, repeats in product(selected, GROUPS, REPEATS):
        rng = np.random.default_rng([args.seed, groups, repeats, len(name)])
        interval_count = covered_count = low_end_count = 0
        for _ in range(args.times):
            low, high = interval(rng, groups, repeats) or (None, None)
            if low is not None and high is not None:
                interval_count, covered_count, low_end_count = (
                    interval_count + 1,
                    covered_count + (low <= truth <= high),
                    low_end_count + (low <= least_value),
                )
        if not interval_count:
            print(f"      {name}, {groups:3} groups, {repeats} repeats: never estimable")
            continue
        covered = covered_count / interval_count
        is_limited = groups >= LIMITED_FROM and low_end_count < interval_count / 2
        highest = HIGH + 2 * float(np.sqrt(HIGH * (1 - HIGH) / interval_count))
        availability = "" if interval_count == args.times else f", estimable in {interval_count / args.times:.1%}"
        note = f", above {HIGH:.0%}" if is_limited and covered > HIGH else ""
        note += (
            f", and {low_end_count / interval_count:.0%} of the intervals begin at {least_value:g}"
            if low_end_count
            else ""
        )
        check(
            covered >= coverage_limit(LOW, interval_count) and not (is_limited and covered > highest),
            f"{name}, {groups:3} groups, {repeats} repeats: covered {covered:.1%}{availability}{note}",
        )
    if args.only == "ranks":
        _check_ranks(check, args.seed, args.times)
    if args.only:
        return check.exit_code()
    for groups, repeats in product(GROUPS, REPEATS):
        rng = np.random.default_rng([args.seed, groups, repeats, 100])
        shown_share = sum(is_equivalent_at_margin(rng, groups, repeats) for _ in range(args.times)) / args.times
        check(
            shown_share <= max(MAX_ERROR_RATE, 1 - coverage_limit(0.95, args.times)),
            f"equivalence at the margin, {groups:3} groups, {repeats} repeats: shown {shown_share:.1%}",
        )
    _check_ranks(check, args.seed, args.times)
    return check.exit_code()


def _check_ranks(check: SoftAssertions, seed: int, times: int) -> None:
    rng, tables = np.random.default_rng([seed, 200]), max(times // 4, 1)
    forced_tables = [build_rank_table(rng, 100, [0.7] * 20, forced="y") for _ in range(tables)]
    check(
        all(set(ranks) == set(range(20)) for ranks in forced_tables),
        "20 equal systems and a forced run: it has no rank",
    )
    separated = sum(any(disjoint_pairs(ranks)) for ranks in forced_tables) / tables
    check(
        separated <= MAX_ERROR_RATE,
        f"20 equal systems, 100 groups: some are separated in {separated:.1%} of {tables} tables",
    )
    levels = [0.5] * 3 + [0.7] * 3 + [0.9] * 3
    separated_pairs = [set(disjoint_pairs(build_rank_table(rng, 200, levels))) for _ in range(tables)]
    cross_level_pairs = [pair for pair in combinations(range(9), 2) if levels[pair[0]] != levels[pair[1]]]
    found_share = np.mean(
        [
            sum(pair in pairs or pair[::-1] in pairs for pair in cross_level_pairs) / len(cross_level_pairs)
            for pairs in separated_pairs
        ]
    )
    false_share = np.mean([any(levels[a] == levels[b] for a, b in pairs) for pairs in separated_pairs])
    check(
        found_share >= 0.8,
        f"three levels (0.5, 0.7, 0.9), 200 groups: {found_share:.1%} of pairs across levels are separated",
    )
    check(false_share <= MAX_ERROR_RATE, f"and a pair within a level in {false_share:.1%} of the tables")
    for count in (20, MAX_PAIRWISE, 60, 1000):
        start = time.perf_counter()
        build_rank_table(rng, 100, [0.7] * count)
        method = "all pairs" if count <= MAX_PAIRWISE else "against the leader"
        print(f"      {count} systems on 100 groups, {method}: {time.perf_counter() - start:.2f} s")
    print(f"      each test rejects at {ALPHA}")


if __name__ == "__main__":
    sys.exit(main())
