"""Coverage of what `compare` and `show` report besides metrics, and how often ranks and equivalence are wrong.

    python benchmarks/measures.py [--times N] [--seed S] [--only TEXT]

N data sets in each situation: groups of datapoints, each played once or three times. A datapoint has its own ease,
which all judges share. An interval must contain the truth in 93 % of the data sets or more. With 100 groups or more it
must contain the truth in at most 97 %: a situation fails above 97 % and two standard errors of a share of N data sets.
No such limit holds where half of the intervals or more begin at the least value that a measure can have, 0: they cannot
be too high, and an interval whose two ends are each wrong in 2.5 % of the data sets then contains the truth in 97.5 %.
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
from common import sample_parser
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
ERROR = 0.06
"""5 %, and what chance adds in 2,000 data sets."""
GROUPS, REPEATS = (10, 40, 100, 400), (1, 3)
Ends = tuple[float | None, float | None] | None


def plays(rng: np.random.Generator, groups: int, repeats: int, accuracies: Sequence[float]) -> list[np.ndarray]:
    """Return for each judge which plays of each datapoint are right; judges share how easy a datapoint is."""
    common, shape = rng.random((groups, 1)), (groups, repeats)
    return [np.where(rng.random(shape) < 0.7, common, rng.random(shape)) < accuracy for accuracy in accuracies]


def recovered(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    weak, score, strong = (judge.mean(axis=1) for judge in plays(rng, groups, repeats, (0.4, 0.65, 0.9)))
    result = gap_recovered((score - weak).tolist(), (strong - weak).tolist())
    return result.low, result.high


def judged(rng: np.random.Generator, groups: int, repeats: int) -> Agreement | None:
    """Two judges who give equal verdicts on 82 % of debates."""
    common, shape = rng.integers(0, 2, (groups, repeats)), (groups, repeats)
    first, second = (np.where(rng.random(shape) < 0.8, common, rng.integers(0, 2, shape)).ravel() for _ in range(2))
    return agreement(first.tolist(), second.tolist(), np.repeat(np.arange(groups), repeats).tolist(), groups)


def kappa(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    result = judged(rng, groups, repeats)
    return None if result is None else result.kappa.interval


def raw_agreement(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    result = judged(rng, groups, repeats)
    return None if result is None else result.raw.interval


ALIKE = 0.3
"""The correlation of the verdicts within a datapoint, for the tables below."""
TABLES = {
    "95 % equal verdicts": (0.475, 0.025, 0.025, 0.475),
    "98 % equal verdicts": (0.49, 0.01, 0.01, 0.49),
    "90 % accept, 90 % equal verdicts": (0.85, 0.05, 0.05, 0.05),
    "95 % accept, 95 % equal verdicts": (0.925, 0.025, 0.025, 0.025),
    "95 % accept, 98 % equal verdicts": (0.94, 0.01, 0.01, 0.04),
}
"""The chances that both judges accept, that only the first does, that only the second does, and that none does."""


def table_kappa(rng: np.random.Generator, groups: int, repeats: int, chances: Sequence[float]) -> Ends:
    """Two judges with these chances; those of a datapoint vary around them (Dirichlet)."""
    own = rng.dirichlet(np.array(chances) * (1 / ALIKE - 1), groups)
    cells = (rng.random((groups, repeats, 1)) > np.cumsum(own, axis=1)[:, None, :3]).sum(axis=2).ravel()
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
        shape, spread = (groups, repeats, READERS), 1 / ALIKE - 1
        own = rng.dirichlet(np.array(self.chances) * spread, groups)
        truth = (rng.random((groups, repeats, 1)) > np.cumsum(own, axis=1)[:, None, :-1]).sum(axis=2)
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
        return self.copied**2 + self.copied * (1 - self.copied) * ALIKE


SENSITIVITIES, LEANING, OWN = (1.0, 1.6), 0.7, 0.3
TRUE_DIFFERENCE = (SENSITIVITIES[1] - SENSITIVITIES[0]) / np.sqrt(1 + LEANING**2 + OWN**2)


def sensitivity(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    """Two judges of datapoints in a right and a wrong version, whose ease is one for both judges."""
    ease, counts = rng.normal(0, LEANING, groups), []
    for value in SENSITIVITIES:
        columns = []
        for sign in (1, -1):
            chance = ndtr(sign * (value / 2 + ease) + rng.normal(0, OWN, groups))
            columns += [rng.binomial(repeats, chance), np.full(groups, repeats)]
        counts.append(np.stack(columns, axis=1).tolist())
    result = sensitivity_difference(*counts)
    return None if result is None else (result.ci_low, result.ci_high)


SLOPE = 0.7
MANY = 1_000_000


def forecasts(rng: np.random.Generator, groups: int, repeats: int, told_slope: float = SLOPE) -> Forecasts:
    """A judge whose log odds are the true ones divided by the slope."""
    labels = rng.integers(0, 2, groups)
    evidence = (2 * labels - 1)[:, None] * 0.75 + rng.normal(0, 0.5, (groups, 1)) + rng.normal(0, 1, (groups, repeats))
    p = 1 / (1 + np.exp(-1.5 * evidence / 1.25 / told_slope))
    return Forecasts(p.ravel(), np.repeat(labels, repeats), np.repeat(np.arange(groups), repeats), groups)


def slope(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    return forecasts(rng, groups, repeats).slope.interval


def intercept(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    return forecasts(rng, groups, repeats).intercept.interval


def corrected_ece(rng: np.random.Generator, groups: int, repeats: int, told_slope: float) -> Ends:
    return forecasts(rng, groups, repeats, told_slope).corrected_calibration_error.interval


def corrected_reliability(rng: np.random.Generator, groups: int, repeats: int, told_slope: float) -> Ends:
    return forecasts(rng, groups, repeats, told_slope).corrected_reliability.interval


def scores(rng: np.random.Generator, groups: int, repeats: int) -> tuple[Verdicts, np.ndarray, np.ndarray]:
    """Games of a judge with log-probabilities: verdicts, stances at random, and the judge's P(accept)."""
    points = np.repeat(np.arange(groups), repeats)
    labels = rng.integers(0, 2, groups)[points]
    log_odds = (2 * labels - 1) * 2 + rng.normal(0, 1, groups)[points] + rng.normal(0, 3, len(labels))
    p, stances = 1 / (1 + np.exp(-log_odds)), rng.integers(0, 2, len(labels))
    return Verdicts(labels, (p > 0.5).astype(int), points, points, groups, grouped=False), stances, p


def score_difference(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    """The difference of a player's score by log-probabilities; no interval if a kind of game has one datapoint."""
    verdicts, stances, p = scores(rng, groups, repeats)
    result = verdicts.log_probability_gain(stances, p)
    return None if result is None or result.clusters < 2 else result.interval


def true_score_difference() -> float:
    verdicts, stances, p = scores(np.random.default_rng(0), MANY, 1)
    score = np.log(np.clip(np.where(stances == 1, p, 1 - p), LOG_FLOOR, 1 - LOG_FLOOR))
    return float(score[stances == verdicts.labels].mean() - score[stances != verdicts.labels].mean())


MARGIN = 0.1


def at_margin(rng: np.random.Generator, groups: int, repeats: int) -> bool:
    """Tell whether two systems that differ by the margin are called equivalent."""
    first, second = (judge.mean(axis=1) for judge in plays(rng, groups, repeats, (0.6, 0.6 + MARGIN)))
    sums = (second - first).tolist()
    pairs = Pairs(sums, [1.0] * groups, [0.0] * groups, [1.0] * groups, 1 / repeats)
    return pairs.equivalence(1.0, MARGIN).is_shown


Interval = Callable[[np.random.Generator, int, int], Ends]
JUDGES = {"very overconfident": 0.4, "overconfident": SLOPE, "calibrated": 1.0}
"""The calibration slope of judges. ECE and reliability of a calibrated judge are 0."""


def intervals() -> Iterator[tuple[str, Interval, float, float]]:
    """Yield the name of an interval, how to get one, the truth, and the least value that the measure can have."""
    yield "performance gap recovered", recovered, 0.5, -math.inf
    yield "raw agreement", raw_agreement, 0.82, 0.0
    yield "Cohen's kappa", kappa, 0.64, -1.0
    for name, chances in TABLES.items():
        yield f"Cohen's kappa, {name}", partial(table_kappa, chances=chances), true_kappa(chances), -1.0
    for (name, (frequencies, scale)), copied in product(ANSWERS.items(), (0.6, 0.95)):
        readers = Readers(frequencies, scale, copied)
        yield f"Krippendorff's alpha, {name}, {copied:.0%} copied", readers.alpha, readers.true_alpha, -math.inf
    yield "difference of d'", sensitivity, float(TRUE_DIFFERENCE), -math.inf
    yield "calibration slope", slope, SLOPE, -math.inf
    yield "calibration intercept", intercept, 0.0, -math.inf
    for name, told_slope in JUDGES.items():
        truth = forecasts(np.random.default_rng(0), MANY, 1, told_slope)
        ece, reliability = (0.0, 0.0) if told_slope == 1 else (truth.ece, truth.reliability)
        yield f"corrected ECE, {name}", partial(corrected_ece, told_slope=told_slope), ece, 0.0
        yield f"corrected reliability, {name}", partial(corrected_reliability, told_slope=told_slope), reliability, 0.0
    yield "score difference by log-probabilities", score_difference, true_score_difference(), -math.inf


def table(
    rng: np.random.Generator, groups: int, accuracies: Sequence[float], forced: str | None = None
) -> dict[int, tuple[int, int]]:
    """Return the set of ranks of each ranked system by a run on the same datapoints.

    With `forced`, one more run comes last, whose verdicts are fixed by this value of `protocol.force_guess`. As on a
    leaderboard, a system whose verdicts are fixed has no rank, and no test with it counts.
    """
    means = [judge.mean(axis=1) for judge in plays(rng, groups, 1, accuracies)]
    guesses: list[str | None] = [None] * len(means)
    if forced is not None:
        means, guesses = [*means, np.ones(groups)], [*guesses, forced]
    ranked = [system for system, guess in enumerate(guesses) if explain_fixed_verdicts(guess, []) is None]
    order = sorted(ranked, key=lambda system: -float(means[system].sum()))

    def p_values(pairs: Sequence[tuple[int, int]]) -> list[float]:
        return [sign_flip((means[first] - means[second]).tolist(), level=PAIR_LEVEL).p for first, second in pairs]

    return rank_sets(order, p_values)


def disjoint(ranks: dict[int, tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of systems whose sets of ranks have no rank in common."""
    for first, second in combinations(ranks, 2):
        if ranks[first][1] < ranks[second][0] or ranks[second][1] < ranks[first][0]:
            yield first, second


def main() -> int:
    parser = sample_parser(__doc__, 2000)
    parser.add_argument("--only", metavar="TEXT", help="only the intervals with this text in their name, or `ranks`")
    args = parser.parse_args()
    check = SoftAssertions()
    chosen = [row for row in intervals() if (args.only or "") in row[0]] if args.only != "ranks" else []
    for (name, interval, truth, least), groups, repeats in product(chosen, GROUPS, REPEATS):
        rng = np.random.default_rng([args.seed, groups, repeats, len(name)])
        known = held = at_end = 0
        for _ in range(args.times):
            low, high = interval(rng, groups, repeats) or (None, None)
            if low is not None and high is not None:
                known, held, at_end = known + 1, held + (low <= truth <= high), at_end + (low <= least)
        if not known:
            print(f"      {name}, {groups:3} groups, {repeats} repeats: never estimable")
            continue
        covered = held / known
        limited = groups >= LIMITED_FROM and at_end < known / 2
        highest = HIGH + 2 * float(np.sqrt(HIGH * (1 - HIGH) / known))
        share = "" if known == args.times else f", estimable in {known / args.times:.1%}"
        above = f", above {HIGH:.0%}" if limited and covered > HIGH else ""
        above += f", and {at_end / known:.0%} of the intervals begin at {least:g}" if at_end else ""
        check(
            covered >= LOW and not (limited and covered > highest),
            f"{name}, {groups:3} groups, {repeats} repeats: covered {covered:.1%}{share}{above}",
        )
    if args.only == "ranks":
        _check_ranks(check, args.seed, args.times)
    if args.only:
        return check.exit_code()
    for groups, repeats in product(GROUPS, REPEATS):
        rng = np.random.default_rng([args.seed, groups, repeats, 100])
        shown = sum(at_margin(rng, groups, repeats) for _ in range(args.times)) / args.times
        check(shown <= ERROR, f"equivalence at the margin, {groups:3} groups, {repeats} repeats: shown {shown:.1%}")
    _check_ranks(check, args.seed, args.times)
    return check.exit_code()


def _check_ranks(check: SoftAssertions, seed: int, times: int) -> None:
    rng, tables = np.random.default_rng([seed, 200]), max(times // 4, 1)
    forced = [table(rng, 100, [0.7] * 20, forced="y") for _ in range(tables)]
    check(all(set(ranks) == set(range(20)) for ranks in forced), "20 equal systems and a forced run: it has no rank")
    separated = sum(any(disjoint(ranks)) for ranks in forced) / tables
    check(separated <= ERROR, f"20 equal systems, 100 groups: some are separated in {separated:.1%} of {tables} tables")
    levels = [0.5] * 3 + [0.7] * 3 + [0.9] * 3
    separated_pairs = [set(disjoint(table(rng, 200, levels))) for _ in range(tables)]
    across = [pair for pair in combinations(range(9), 2) if levels[pair[0]] != levels[pair[1]]]
    right = np.mean(
        [sum(pair in pairs or pair[::-1] in pairs for pair in across) / len(across) for pairs in separated_pairs]
    )
    wrong = np.mean([any(levels[a] == levels[b] for a, b in pairs) for pairs in separated_pairs])
    check(right >= 0.8, f"three levels (0.5, 0.7, 0.9), 200 groups: {right:.1%} of pairs across levels are separated")
    check(wrong <= ERROR, f"and a pair within a level in {wrong:.1%} of the tables")
    for count in (20, MAX_PAIRWISE, 60, 1000):
        start = time.perf_counter()
        table(rng, 100, [0.7] * count)
        method = "all pairs" if count <= MAX_PAIRWISE else "against the leader"
        print(f"      {count} systems on 100 groups, {method}: {time.perf_counter() - start:.2f} s")
    print(f"      each test rejects at {ALPHA}")


if __name__ == "__main__":
    sys.exit(main())
