"""As many groups as `nip-run plan` says show the difference to the test of `nip-run compare` four times in five.

    python benchmarks/planning.py [--times N] [--seed S]

Two systems on the same datapoints, whose difference and its variance are known: binary scores of independent systems at
several accuracies, and repeats whose datapoints are easy or hard. K is what the plan says, and N pairs of runs of K
groups are tested at 5 %. Claimed: a power of at least 75 %, and of at most 85 % from 20 groups that differ on. With
fewer, the test is far from using its level up, and no number of groups may have a power in between. Last, differences
for which the plan is 20, 40, 100 and 400 groups, between systems that find the same datapoints hard or others; and the
same for 20 and 40 groups of 2 and 5 datapoints, of which a share is as hard as the whole group.
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
"""The accuracy of the worse system, and by how much the other is better."""
REPEATED = [(2, 0.1), (3, 0.15), (3, 0.3), (5, 0.1)]
"""How often each datapoint is played, and the difference."""

SIZES = (20, 40, 100, 400)
AGREEMENT = (0.1, 0.9)
"""How often a datapoint is as hard for one system as for the other."""
GROUPED_SIZES = (20, 40)
DATAPOINTS = (2, 5)
"""The number of datapoints in each group."""
ALIKE = 0.5
"""How often a datapoint is as hard as its group; all others are independent of their group."""


def main() -> int:
    args = sample_arguments(__doc__, 2000)
    check = SoftAssertions()
    for chance, difference in BINARY:
        better, worse = (chance + difference) * (1 - chance), chance * (1 - chance - difference)
        groups = groups_needed(difference, better + worse - difference**2)
        rng = np.random.default_rng([args.seed, groups])
        found = _found_binary(better, worse, groups, args.times, rng)
        differing = groups * (better + worse)
        name = f"accuracy {chance:.0%} and {chance + difference:.0%}, played once"
        _claim(check, name, found, groups, differing)
    for repeats, difference in REPEATED:
        rng = np.random.default_rng([args.seed, repeats, int(100 * difference)])
        groups = groups_needed(difference, _variance(repeats, difference), 1 / repeats)
        tests = [_differences(groups, repeats, difference, rng) for _ in range(args.times)]
        found = float(np.mean([sign_flip(one).p <= ALPHA for one in tests]))
        differing = float(np.mean([np.count_nonzero(one) for one in tests]))
        _claim(check, f"{difference:.0%} better, played {repeats} times", found, groups, differing)
    cells = [*product(SIZES, (1,), (1, 3), AGREEMENT), *product(GROUPED_SIZES, DATAPOINTS, (1, 3), AGREEMENT)]
    for size, datapoints, repeats, agreement in cells:
        difference = _difference_of(size, datapoints, repeats, agreement)
        variance = _variance_of(difference, datapoints, repeats, agreement)
        groups = groups_needed(difference, variance, 1 / (repeats * datapoints))
        rng = np.random.default_rng([args.seed, size, datapoints, repeats, int(10 * agreement)])
        tests = _hard_and_easy((args.times, groups, datapoints), repeats, difference, agreement, rng)
        found = float(np.mean([sign_flip(one).p <= ALPHA for one in tests]))
        name = f"{difference:.1%} better, played {repeats} times, equally hard in {agreement:.0%}"
        name += f", {datapoints} datapoints per group" if datapoints > 1 else ""
        check(0.75 <= found <= 0.85, f"{name}: found {found:.1%} of the time in {groups} groups")
    fewest = [sign_flip([1.0] * n).p <= ALPHA for n in (FEWEST_GROUPS - 1, FEWEST_GROUPS)]
    check(fewest == [False, True], f"the test rejects with {FEWEST_GROUPS} groups that differ, and never with fewer")
    return check.exit_code()


def _claim(check: SoftAssertions, name: str, found: float, groups: int, differing: float) -> None:
    holds = found >= 0.75 and (differing < 20 or found <= 0.85)
    check(holds, f"{name}: found {found:.1%} of the time in {groups} groups, of which {differing:.0f} differ")


def _found_binary(better: float, worse: float, groups: int, runs: int, rng: np.random.Generator) -> float:
    drawn = rng.multinomial(groups, [better, worse, max(1 - better - worse, 0.0)], runs)
    counts, times_ = np.unique(drawn[:, :2], axis=0, return_counts=True)
    rejected = [sign_flip([1.0] * int(b) + [-1.0] * int(w)).p <= ALPHA for b, w in counts]
    return float(np.sum(times_[np.array(rejected)]) / runs)


def _chances(groups: int, rng: np.random.Generator) -> np.ndarray:
    """The worse system's chance to be right; the other's is higher by the difference, so that none is over 1."""
    return 0.7 * rng.beta(1.0, 1.0, groups)


def _variance(repeats: int, difference: float) -> float:
    """Within datapoints alone: both systems find the same ones hard, and the difference is the same for all."""
    p = np.linspace(0, 0.7, 10_001)
    return float(np.mean(p * (1 - p) + (p + difference) * (1 - p - difference)) / repeats)


def _differences(groups: int, repeats: int, difference: float, rng: np.random.Generator) -> list[float]:
    chances = _chances(groups, rng)
    found: list[float] = (
        (rng.binomial(repeats, chances + difference) - rng.binomial(repeats, chances)) / repeats
    ).tolist()
    return found


def _hard_and_easy(
    shape: tuple[int, int, int], repeats: int, difference: float, agreement: float, rng: np.random.Generator
) -> np.ndarray:
    """Group differences of two systems whose chances to be right are uniform, up to the difference.

    `shape` has the numbers of tests, of groups in a test, and of datapoints in a group.
    """

    def chances(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
        worse = rng.random(shape)
        return worse, np.where(rng.random(shape) < agreement, worse, rng.random(shape))

    worse, better = chances((*shape[:2], 1))
    if shape[2] > 1:
        is_alike, own = rng.random(shape) < ALIKE, chances(shape)
        worse, better = np.where(is_alike, worse, own[0]), np.where(is_alike, better, own[1])
    gains = rng.binomial(repeats, difference + (1 - difference) * better)
    losses = rng.binomial(repeats, (1 - difference) * worse)
    differences: np.ndarray = (gains.sum(2) - losses.sum(2)) / (repeats * shape[2])
    return differences


def _variance_of(difference: float, datapoints: int, repeats: int, agreement: float) -> float:
    between = 2 * (1 - agreement) * (1 - difference) ** 2 / 12
    p = (1 - difference) * np.linspace(0, 1, 10_001)
    within = float(np.mean(p * (1 - p) + (p + difference) * (1 - p - difference)))
    return (between * (1 + (datapoints - 1) * ALIKE**2) + within / repeats) / datapoints


def _difference_of(groups: int, datapoints: int, repeats: int, agreement: float) -> float:
    """Return the smallest difference for which the plan is so many groups."""
    low, high = 0.01, 0.8
    for _ in range(30):
        middle = (low + high) / 2
        variance = _variance_of(middle, datapoints, repeats, agreement)
        needed = groups_needed(middle, variance, 1 / (repeats * datapoints))
        low, high = (low, middle) if needed <= groups else (middle, high)
    return high


if __name__ == "__main__":
    sys.exit(main())
