"""Coverage of what `compare` and `show` report besides metrics, and how often ranks and equivalence are wrong.

    python benchmarks/measures.py [--times N] [--seed S]

N data sets in each situation: groups of datapoints, each played once or three times. A datapoint has its own ease,
which all judges share. An interval must contain the truth in 93 % of the data sets or more, and in at most 97.5 % with
100 groups or more. Two equivalent systems at the margin may be called equivalent in 5 % of the data sets. Equal systems
may be separated in 5 % of the tables of ranks, and sets of ranks of systems that no test separates must overlap.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product

import numpy as np
from common import sample_arguments
from scipy.special import ndtr

from runner.statistics.agreement import agreement
from runner.statistics.calibration import Forecasts
from runner.statistics.gap_recovered import gap_recovered
from runner.statistics.paired_groups import Pairs
from runner.statistics.rank_sets import MAX_PAIRWISE, PAIR_LEVEL, rank_sets
from runner.statistics.sign_flip import ALPHA, sign_flip
from runner.statistics.signal_detection import sensitivity_difference
from tests.support.claims import Claims

LOW, HIGH, LIMITED_FROM = 0.93, 0.975, 100
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


def kappa(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    common, shape = rng.integers(0, 2, (groups, repeats)), (groups, repeats)
    first, second = (np.where(rng.random(shape) < 0.8, common, rng.integers(0, 2, shape)).ravel() for _ in range(2))
    result = agreement(first.tolist(), second.tolist(), np.repeat(np.arange(groups), repeats).tolist(), groups)
    return None if result is None else result.kappa.interval


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


def slope(rng: np.random.Generator, groups: int, repeats: int) -> Ends:
    """A judge whose log odds are the true ones divided by the slope."""
    labels = rng.integers(0, 2, groups)
    evidence = (2 * labels - 1)[:, None] * 0.75 + rng.normal(0, 0.5, (groups, 1)) + rng.normal(0, 1, (groups, repeats))
    p = 1 / (1 + np.exp(-1.5 * evidence / 1.25 / SLOPE))
    clusters = np.repeat(np.arange(groups), repeats)
    return Forecasts(p.ravel(), np.repeat(labels, repeats), clusters, groups).slope.interval


MARGIN = 0.1


def at_margin(rng: np.random.Generator, groups: int, repeats: int) -> bool:
    """Tell whether two systems that differ by the margin are called equivalent."""
    first, second = (judge.mean(axis=1) for judge in plays(rng, groups, repeats, (0.6, 0.6 + MARGIN)))
    sums = (second - first).tolist()
    pairs = Pairs(sums, [1.0] * groups, [0.0] * groups, [1.0] * groups, 1 / repeats)
    return pairs.equivalence(1.0, MARGIN).is_shown


INTERVALS: dict[str, tuple[Callable[[np.random.Generator, int, int], Ends], float]] = {
    "performance gap recovered": (recovered, 0.5),
    "Cohen's kappa": (kappa, 0.64),
    "difference of d'": (sensitivity, float(TRUE_DIFFERENCE)),
    "calibration slope": (slope, SLOPE),
}


def table(rng: np.random.Generator, groups: int, accuracies: Sequence[float]) -> dict[int, tuple[int, int]]:
    """Return the set of ranks of each system by a run on the same datapoints."""
    means = [judge.mean(axis=1) for judge in plays(rng, groups, 1, accuracies)]
    order = sorted(range(len(means)), key=lambda system: -float(means[system].sum()))

    def p_values(pairs: Sequence[tuple[int, int]]) -> list[float]:
        return [sign_flip((means[first] - means[second]).tolist(), level=PAIR_LEVEL).p for first, second in pairs]

    return rank_sets(order, p_values)


def disjoint(ranks: dict[int, tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of systems whose sets of ranks have no rank in common."""
    for first, second in combinations(ranks, 2):
        if ranks[first][1] < ranks[second][0] or ranks[second][1] < ranks[first][0]:
            yield first, second


def main() -> int:
    args = sample_arguments(__doc__, 2000)
    claims = Claims()
    for (name, (interval, truth)), groups, repeats in product(INTERVALS.items(), GROUPS, REPEATS):
        rng = np.random.default_rng([args.seed, groups, repeats, len(name)])
        known = held = 0
        for _ in range(args.times):
            low, high = interval(rng, groups, repeats) or (None, None)
            if low is not None and high is not None:
                known, held = known + 1, held + (low <= truth <= high)
        covered = held / max(known, 1)
        holds = covered >= LOW and (groups < LIMITED_FROM or covered <= HIGH)
        share = "" if known == args.times else f", estimable in {known / args.times:.1%}"
        claims(holds, f"{name}, {groups:3} groups, {repeats} repeats: covered {covered:.1%}{share}")
    for groups, repeats in product(GROUPS, REPEATS):
        rng = np.random.default_rng([args.seed, groups, repeats, 100])
        shown = sum(at_margin(rng, groups, repeats) for _ in range(args.times)) / args.times
        claims(shown <= ERROR, f"equivalence at the margin, {groups:3} groups, {repeats} repeats: shown {shown:.1%}")
    rng, tables = np.random.default_rng([args.seed, 200]), max(args.times // 4, 1)
    separated = sum(any(disjoint(table(rng, 100, [0.7] * 20))) for _ in range(tables)) / tables
    claims(
        separated <= ERROR, f"20 equal systems, 100 groups: some are separated in {separated:.1%} of {tables} tables"
    )
    levels = [0.5] * 3 + [0.7] * 3 + [0.9] * 3
    found = [set(disjoint(table(rng, 200, levels))) for _ in range(tables)]
    across = [pair for pair in combinations(range(9), 2) if levels[pair[0]] != levels[pair[1]]]
    right = np.mean([sum(pair in one or pair[::-1] in one for pair in across) / len(across) for one in found])
    wrong = np.mean([any(levels[a] == levels[b] for a, b in one) for one in found])
    claims(right >= 0.8, f"three levels (0.5, 0.7, 0.9), 200 groups: {right:.1%} of pairs across levels are separated")
    claims(wrong <= ERROR, f"and a pair within a level in {wrong:.1%} of the tables")
    for count in (20, MAX_PAIRWISE, 60, 1000):
        start = time.perf_counter()
        table(rng, 100, [0.7] * count)
        method = "all pairs" if count <= MAX_PAIRWISE else "against the leader"
        print(f"      {count} systems on 100 groups, {method}: {time.perf_counter() - start:.2f} s")
    print(f"      each test rejects at {ALPHA}")
    return claims.exit_code()


if __name__ == "__main__":
    sys.exit(main())
