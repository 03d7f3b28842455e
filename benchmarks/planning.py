"""Check the sample size of `nip-run plan`: with this size, `nip-run compare` must find the difference in 80 %.

    python benchmarks/planning.py [--times N] [--seed S]

Two systems play the same datapoints; the difference between them and its variance are known. The plan gives a number of
groups, K, and N pairs of runs of K groups are tested at 5 %. The power must be at least 75 %, and at most 85 % if 20
groups or more differ. With fewer, the test rejects much less than its level allows, and perhaps no number of groups has
a power between these limits.

There are binary scores of independent systems at several accuracies; repeats of easy and hard datapoints; differences
that need 20, 40, 100 and 400 groups, between systems that find the same or other datapoints hard; and the same for 20
and 40 groups of 2 and 5 datapoints, half of them as hard as their group.
"""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
from common import sample_arguments

from runner.statistics.sign_flip import FEWEST_GROUPS, sign_flip
from runner.statistics.significance import ALPHA
from runner.statistics.variance_components import groups_needed
from tests.support.soft_assertions import SoftAssertions

BINARY = [
    (0.5, 0.05), (0.5, 0.1), (0.85, 0.1), (0.6, 0.15), (0.7, 0.15), (0.5, 0.2), (0.7, 0.2), (0.6, 0.3), (0.4, 0.4),
    (0.4, 0.5), (0.1, 0.6), (0.05, 0.9), (0.0, 0.3), (0.0, 0.5),
]  # fmt: skip
"""The accuracy of the worse system, and how much better the other one is."""
REPEATED = [(2, 0.1), (3, 0.15), (3, 0.3), (5, 0.1)]
"""The number of games of each datapoint, and the difference."""

SIZES = (20, 40, 100, 400)
AGREEMENT = (0.1, 0.9)
"""The share of datapoints that are as hard for one system as for the other."""
GROUPED_SIZES = (20, 40)
DATAPOINTS = (2, 5)
"""The number of datapoints in each group."""
SHARE_AS_HARD = 0.5
"""The share of datapoints that are as hard as their group; all others are independent of it."""


def main() -> int:
    args = sample_arguments(__doc__, 2000)
    check = SoftAssertions()
    for chance, difference in BINARY:
        better, worse = (chance + difference) * (1 - chance), chance * (1 - chance - difference)
        groups = groups_needed(difference, better + worse - difference**2)
        rng = np.random.default_rng([args.seed, groups])
        power = _binary_power(better, worse, groups, args.times, rng)
        differing = groups * (better + worse)
        name = f"accuracy {chance:.0%} and {chance + difference:.0%}, played once"
        _check_power(check, name, power, groups, differing)
    for repeats, difference in REPEATED:
        rng = np.random.default_rng([args.seed, repeats, int(100 * difference)])
        groups = groups_needed(difference, _variance(repeats, difference), 1 / repeats)
        samples = [_draw_differences(groups, repeats, difference, rng) for _ in range(args.times)]
        power = float(np.mean([sign_flip(differences).p <= ALPHA for differences in samples]))
        differing = float(np.mean([np.count_nonzero(differences) for differences in samples]))
        _check_power(check, f"{difference:.0%} better, played {repeats} times", power, groups, differing)
    cells = [*product(SIZES, (1,), (1, 3), AGREEMENT), *product(GROUPED_SIZES, DATAPOINTS, (1, 3), AGREEMENT)]
    for size, datapoints, repeats, agreement in cells:
        difference = _smallest_difference(size, datapoints, repeats, agreement)
        variance = _grouped_variance(difference, datapoints, repeats, agreement)
        groups = groups_needed(difference, variance, 1 / (repeats * datapoints))
        rng = np.random.default_rng([args.seed, size, datapoints, repeats, int(10 * agreement)])
        samples = _draw_hard_and_easy((args.times, groups, datapoints), repeats, difference, agreement, rng)
        power = float(np.mean([sign_flip(differences).p <= ALPHA for differences in samples]))
        name = f"{difference:.1%} better, played {repeats} times, equally hard in {agreement:.0%}"
        name += f", {datapoints} datapoints per group" if datapoints > 1 else ""
        check(0.75 <= power <= 0.85, f"{name}: found {power:.1%} of the time in {groups} groups")
    fewest = [sign_flip([1.0] * n).p <= ALPHA for n in (FEWEST_GROUPS - 1, FEWEST_GROUPS)]
    check(fewest == [False, True], f"the test rejects with {FEWEST_GROUPS} groups that differ, and never with fewer")
    return check.exit_code()


def _check_power(check: SoftAssertions, name: str, power: float, groups: int, differing: float) -> None:
    holds = power >= 0.75 and (differing < 20 or power <= 0.85)
    check(holds, f"{name}: found {power:.1%} of the time in {groups} groups, of which {differing:.0f} differ")


def _binary_power(better: float, worse: float, groups: int, runs: int, rng: np.random.Generator) -> float:
    outcomes = rng.multinomial(groups, [better, worse, max(1 - better - worse, 0.0)], runs)
    counts, occurrences = np.unique(outcomes[:, :2], axis=0, return_counts=True)
    rejected = [sign_flip([1.0] * int(b) + [-1.0] * int(w)).p <= ALPHA for b, w in counts]
    return float(np.sum(occurrences[np.array(rejected)]) / runs)


def _draw_chances(groups: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the worse system's chances to be right: at most 0.7, because the other's are higher, and at most 1."""
    return 0.7 * rng.beta(1.0, 1.0, groups)


def _variance(repeats: int, difference: float) -> float:
    """Return the variance within datapoints; there is none between them, since all have the same difference."""
    p = np.linspace(0, 0.7, 10_001)
    return float(np.mean(p * (1 - p) + (p + difference) * (1 - p - difference)) / repeats)


def _draw_differences(groups: int, repeats: int, difference: float, rng: np.random.Generator) -> list[float]:
    chances = _draw_chances(groups, rng)
    gains = rng.binomial(repeats, chances + difference) - rng.binomial(repeats, chances)
    return [float(gain) for gain in gains / repeats]


def _draw_hard_and_easy(
    shape: tuple[int, int, int], repeats: int, difference: float, agreement: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw the group differences of two systems; apart from the difference, their chances to be right are uniform.

    `shape` has the numbers of tests, of groups in a test, and of datapoints in a group.
    """

    def chances(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
        worse = rng.random(shape)
        return worse, np.where(rng.random(shape) < agreement, worse, rng.random(shape))

    worse, better = chances((*shape[:2], 1))
    if shape[2] > 1:
        is_alike, individual = rng.random(shape) < SHARE_AS_HARD, chances(shape)
        worse, better = np.where(is_alike, worse, individual[0]), np.where(is_alike, better, individual[1])
    gains = rng.binomial(repeats, difference + (1 - difference) * better)
    losses = rng.binomial(repeats, (1 - difference) * worse)
    differences: np.ndarray = (gains.sum(2) - losses.sum(2)) / (repeats * shape[2])
    return differences


def _grouped_variance(difference: float, datapoints: int, repeats: int, agreement: float) -> float:
    between = 2 * (1 - agreement) * (1 - difference) ** 2 / 12
    p = (1 - difference) * np.linspace(0, 1, 10_001)
    within = float(np.mean(p * (1 - p) + (p + difference) * (1 - p - difference)))
    return (between * (1 + (datapoints - 1) * SHARE_AS_HARD**2) + within / repeats) / datapoints


def _smallest_difference(groups: int, datapoints: int, repeats: int, agreement: float) -> float:
    """Return the smallest difference whose plan needs at most this number of groups."""
    low, high = 0.01, 0.8
    for _ in range(30):
        middle = (low + high) / 2
        variance = _grouped_variance(middle, datapoints, repeats, agreement)
        needed = groups_needed(middle, variance, 1 / (repeats * datapoints))
        low, high = (low, middle) if needed <= groups else (middle, high)
    return high


if __name__ == "__main__":
    sys.exit(main())
