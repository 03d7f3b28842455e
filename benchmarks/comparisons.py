"""Check comparisons of two judges: how often the test rejects, the interval contains the truth, and effects are found.

    python benchmarks/comparisons.py [--times N] [--seed S]

N pairs of judges in each situation judge groups of datapoints. The log odds that a datapoint is judged rightly vary
normally between datapoints; `shared` is their correlation between the two judges. Datapoints of one group share this
deviation, apart from one of their own that is half as large. Each judge is asked `repeats` times, in some situations
the first judge only once. Planted effects are found with 200 groups; the rows name what is assumed about the judges,
because the effects that can be found depend on how much they agree.

Without a difference, the test must reject 4 to 6 % of the pairs, or 5 % plus or minus three standard errors of the
share if that is wider: 3.5 to 6.5 % of 2,000 pairs, and up to 7.9 % of 500 tables of ranks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from common import coverage_limit, sample_arguments

from runner.statistics.differences import paired_difference
from runner.statistics.paired_groups import Pairs, least_share
from runner.statistics.rank_sets import rank_sets
from runner.statistics.sign_flip import sign_flip
from runner.statistics.significance import ALPHA, holm
from tests.support.soft_assertions import SoftAssertions

LOW, HIGH, LOW_IF_RARE = 0.925, 0.975, 0.92
MAX_REJECTED, MIN_REJECTED = 0.06, 0.04
"""The limits of the share of rejections without a difference, for a test at 5 %. They are wider for few repetitions;
see `rejection_limits`."""
MIN_DIFFERING_GROUPS = 50
"""The fewest differing groups for the lower limit of rejections and the upper limit of coverage.

With fewer, a test of sign flips cannot reject exactly 5 %: if 12 of 100 groups differ, it rejects 2.1 to 2.7 %,
and the interval covers the truth 97.3 to 97.9 % of the time.
"""
NOISE_STDERRS = 3.0
"""Standard errors that a share may be off by chance. A share of exactly 5 % is further off in 0.3 % of the checks, so
less than one of 200 checks is expected to fail by chance."""
MIN_POWER = 0.8
MIN_GROUP_VARIANCE = 5.0
"""The least K p (1 - p) for the full limits, for the judge with the smaller value; K is the number of groups."""


@dataclass(frozen=True)
class Situation:
    """Two judges, and the groups of datapoints that they judge."""

    groups: int
    members: int
    repeats: tuple[int, int]
    accuracy: tuple[float, float]
    deviation: float
    shared: float

    def __str__(self) -> str:
        first, second = self.accuracy
        repeats = (
            f"{self.repeats[0]}" if self.repeats[0] == self.repeats[1] else f"{self.repeats[0]} and {self.repeats[1]}"
        )
        return (
            f"{self.groups:4} groups of {self.members}, repeats {repeats:7}, accuracy {first:.2f} and {second:.2f}, "
            f"deviation {self.deviation}, shared {self.shared}"
        )

    @property
    def is_rare(self) -> bool:
        """True if right or wrong verdicts are so rare that intervals may be too long (but not too short)."""
        return self.groups * min(p * (1 - p) for p in self.accuracy) < MIN_GROUP_VARIANCE

    def pairs(self, rng: np.random.Generator, n: int) -> Iterator[Pairs]:
        """Draw `n` comparisons of the two judges: the second minus the first."""
        shape = (n, self.groups, 1)
        common, individual = rng.normal(0, 1, shape), rng.normal(0, 1, (2, *shape))
        member_deviation = rng.normal(0, 0.5, (n, self.groups, self.members)) if self.members > 1 else 0.0
        shared_weight, individual_weight = np.sqrt(self.shared), np.sqrt(1 - self.shared)
        spread = self.deviation * (1.25 if self.members > 1 else 1.0) ** 0.5
        fewest, means, extra_variances = min(self.repeats), [], np.zeros((n, self.groups))
        for judge, (accuracy, repeats) in enumerate(zip(self.accuracy, self.repeats, strict=True)):
            ease = shared_weight * common + individual_weight * individual[judge] + member_deviation
            chances = expit(find_mean_log_odds(accuracy, spread) + self.deviation * ease)
            group_means = rng.binomial(repeats, np.broadcast_to(chances, (n, self.groups, self.members))) / repeats
            means.append(group_means)
            if repeats > fewest:  # the variance of its verdicts, as in `missing_variance`
                verdict_variance = group_means * (1 - group_means) * repeats / (repeats - 1)
                extra_variances += (verdict_variance * (1 / fewest - 1 / repeats)).sum(axis=2)
        sizes, least_shares = [float(self.members)] * self.groups, [least_share(*self.repeats)] * self.groups
        step = 1 / (self.members * fewest)
        for sums, extra_variance in zip(
            (means[1] - means[0]).sum(axis=2).tolist(), extra_variances.tolist(), strict=True
        ):
            yield Pairs(sums, sizes, extra_variance, least_shares, step)


def expit(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = 1 / (1 + np.exp(-x))
    return result


def rejection_limits(n: int) -> tuple[float, float]:
    """Return the limits of the share of `n` repetitions that a test at 5 % rejects without a difference."""
    noise = NOISE_STDERRS * math.sqrt(ALPHA * (1 - ALPHA) / n)
    return min(MIN_REJECTED, ALPHA - noise), max(MAX_REJECTED, ALPHA + noise)


_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)


def find_mean_log_odds(accuracy: float, spread: float) -> float:
    """Return the mean log odds that give this mean chance, found by bisection and quadrature."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = float((_WEIGHTS * expit(middle + spread * _NODES)).sum() / _WEIGHTS.sum())
        low, high = (middle, high) if mean < accuracy else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class MeanResults:
    """Means over the comparisons of a situation."""

    rejected: float
    covered: float
    agreeing: float
    """The share of comparisons whose interval excludes 0 if and only if the test rejects."""
    differing: float
    width: float
    detectable: float


def measure_situation(situation: Situation, n: int, rng: np.random.Generator) -> MeanResults:
    """Test `n` comparisons of one situation with the project's functions."""
    truth = situation.accuracy[1] - situation.accuracy[0]
    rejected = covered = agreeing = differing = 0
    width = detectable = 0.0
    for pairs in situation.pairs(rng, n):
        interval, test = pairs.compare(1.0)
        assert interval.low is not None
        assert interval.high is not None
        rejected += test.p <= ALPHA
        covered += interval.low <= truth <= interval.high
        agreeing += (interval.low <= 0 <= interval.high) == (test.p > ALPHA)
        differing += test.differing
        width += interval.high - interval.low
        detectable += interval.detectable or 1.0
    return MeanResults(rejected / n, covered / n, agreeing / n, differing / n, width / n, detectable / n)


def equal_situations() -> Iterator[Situation]:
    """Yield situations with judges of equal accuracy."""
    designs = ((1, (1, 1)), (1, (3, 3)), (5, (1, 1)), (2, (3, 3)), (1, (1, 5)), (1, (1, 20)))
    judges = ((0.5, 2.5, 0.9), (0.7, 1.0, 0.5), (0.9, 2.5, 0.9), (0.9, 0.5, 0.5), (0.98, 1.0, 0.5))
    for groups, (members, repeats), (accuracy, deviation, shared) in product((10, 40, 100, 400), designs, judges):
        yield Situation(groups, members, repeats, (accuracy, accuracy), deviation, shared)


def unequal_situations() -> Iterator[Situation]:
    """Yield situations with judges of different accuracy; some are rarely wrong."""
    designs = ((1, (1, 1)), (1, (3, 3)), (5, (1, 1)), (1, (10, 10)))
    pairs = ((0.6, 0.7), (0.8, 0.9), (0.9, 0.96), (0.97, 0.99))
    for groups, (members, repeats), accuracies in product((10, 40, 100, 400), designs, pairs):
        yield Situation(groups, members, repeats, accuracies, 2.0, 0.8)


PLANTED = (
    Situation(200, 1, (1, 1), (0.70, 0.80), 2.5, 0.9),
    Situation(200, 1, (1, 1), (0.80, 0.90), 2.0, 0.8),
    Situation(200, 1, (3, 3), (0.70, 0.80), 2.0, 0.8),
    Situation(200, 1, (5, 5), (0.60, 0.70), 2.0, 0.8),
    Situation(100, 2, (3, 3), (0.70, 0.80), 2.0, 0.8),
)
ALWAYS_RIGHT_CASES = tuple((groups, by / groups) for groups in (6, 20, 60, 200) for by in (0.5, 1.0, 2.0, 3.5, 5.0))
"""The number of groups, and the chance that the other judge is wrong in a group."""
ALL_DIFFERING = (50, 57, 66, 73, 93, 120, 200)
"""Numbers of groups that all differ by exactly 1, as for a judge who accepts all and one who rejects all."""
REPORTED_EFFECTS = (
    Situation(60, 1, (1, 1), (0.9999, 0.9999), 0.1, 0.5),
    Situation(60, 1, (1, 1), (0.99, 0.99), 1.0, 0.5),
    Situation(200, 1, (1, 1), (0.98, 0.98), 1.0, 0.5),
    Situation(200, 1, (3, 3), (0.98, 0.98), 1.0, 0.5),
    Situation(40, 1, (1, 1), (0.90, 0.90), 2.0, 0.8),
    Situation(20, 1, (5, 5), (0.80, 0.80), 2.0, 0.8),
    Situation(50, 5, (1, 1), (0.90, 0.90), 2.0, 0.8),
    Situation(200, 1, (1, 1), (0.70, 0.70), 2.5, 0.9),
    Situation(200, 1, (5, 5), (0.70, 0.70), 2.0, 0.8),
    Situation(100, 1, (1, 5), (0.80, 0.80), 2.0, 0.8),
    Situation(60, 1, (1, 20), (0.95, 0.95), 1.0, 0.5),
)
"""Judges of equal accuracy. The median of the effects that are reported as detectable for them is then planted."""
MIN_REPORTED_POWER, MAX_REPORTED_POWER = 0.60, 0.95
"""The limits of the power to find it: under 75 % only if rarely wrong judges are compared and one gets worse."""
EQUAL_SYSTEMS = ((5, 100), (10, 100), (20, 100), (40, 100), (10, 30))
"""Numbers of systems of equal accuracy, and of groups in their ranking."""
UNRELATED_JUDGES = Situation(200, 1, (1, 1), (0.60, 0.70), 0.0, 0.0)
"""Judges who share nothing. The detectable effect is smallest for them; it is printed without a check."""


def measure_detectable_effect(situation: Situation, n: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return the effect that is reported as detectable without a difference, and how often it is found if planted."""
    reported = [pairs.difference(1.0).detectable for pairs in situation.pairs(rng, n // 4 + 1)]
    effect = float(np.median([detectable for detectable in reported if detectable is not None]))
    accuracy = situation.accuracy[0]
    planted = replace(situation, accuracy=(accuracy, accuracy - effect))
    return effect, sum(pairs.test().p <= ALPHA for pairs in planted.pairs(rng, n)) / n


def measure_false_separations(systems: int, groups: int, n: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return how often equal systems get different ranks, and how often if only the leader's tests are corrected."""
    separated = leader_only = 0
    for _ in range(n):
        ease = rng.normal(0, 1, (groups, 1)) + rng.normal(0, 1, (groups, systems))
        verdicts = (rng.random((groups, systems)) < expit(0.8 + ease)).astype(float)
        order = sorted(range(systems), key=lambda system: -verdicts[:, system].sum())

        def p_values(pairs: Sequence[tuple[int, int]], verdicts: np.ndarray = verdicts) -> list[float]:
            return [sign_flip((verdicts[:, first] - verdicts[:, second]).tolist()).p for first, second in pairs]

        separated += any(ranks != (1, systems) for ranks in rank_sets(order, p_values).values())
        leader_only += min(holm(p_values([(order[0], follower) for follower in order[1:]]))) <= ALPHA
    return separated / n, leader_only / n


def measure_coverage_at_extreme(groups: int, chance: float, n: int, rng: np.random.Generator) -> float:
    """Return how often the interval contains the truth if one judge is always right and the other wrong by `chance`."""
    covered = 0
    for wrong_count in rng.binomial(groups, chance, n).tolist():
        interval = paired_difference([-1.0] * wrong_count + [0.0] * (groups - wrong_count), [1.0] * groups, 1.0, 1.0)
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= -chance <= interval.high
    return covered / n


def rejected_share_if_all_differ(groups: int) -> float:
    """Return the share of sign patterns that the test rejects, if each group differs by exactly 1."""
    return sum(
        math.comb(groups, k) / 2.0**groups
        for k in range(groups + 1)
        if sign_flip([1.0] * k + [-1.0] * (groups - k)).p <= ALPHA
    )


def main() -> int:
    args = sample_arguments(__doc__, 4000)
    check = SoftAssertions()
    print(f"\n{'':86}rejected  covered  differ  width")
    for number, situation in enumerate((*equal_situations(), *unequal_situations())):
        shares = measure_situation(situation, args.times, np.random.default_rng([args.seed, number]))
        line = f"{situation!s:86}{shares.rejected:8.1%}{shares.covered:9.1%}{shares.differing:8.1f}{shares.width:7.3f}"
        holds = True
        if situation.accuracy[0] == situation.accuracy[1]:
            low, high = rejection_limits(args.times)
            holds = (low if shares.differing >= MIN_DIFFERING_GROUPS else 0.0) <= shares.rejected <= high
        highest = max(HIGH, 1 - rejection_limits(args.times)[0])
        is_limited = not situation.is_rare and shares.differing >= MIN_DIFFERING_GROUPS
        lowest = coverage_limit(LOW_IF_RARE if situation.is_rare else LOW, args.times)
        is_covered = shares.covered >= lowest and (shares.covered <= highest or not is_limited)
        check(holds and is_covered and shares.agreeing == 1, line)
    for number, (groups, chance) in enumerate(ALWAYS_RIGHT_CASES):
        covered = measure_coverage_at_extreme(
            groups, chance, args.times, np.random.default_rng([args.seed, 3000 + number])
        )
        check(
            covered >= coverage_limit(LOW_IF_RARE, args.times),
            f"{groups:4} groups, one always right, the other wrong in {chance:.3f}: {covered:.1%}",
        )
    for groups in ALL_DIFFERING:
        share = rejected_share_if_all_differ(groups)
        check(
            share <= MAX_REJECTED,
            f"{groups:4} groups that all differ by 1: {share:.1%} rejected (exactly, of all ways)",
        )
    noise = NOISE_STDERRS * math.sqrt(MIN_POWER * (1 - MIN_POWER) / args.times) if args.times < 1000 else 0.0
    for number, situation in enumerate(PLANTED):
        shares = measure_situation(situation, args.times, np.random.default_rng([args.seed, 1000 + number]))
        check(
            shares.rejected >= MIN_POWER - noise,
            f"{situation}: 10 points found in {shares.rejected:.1%}; said to be detectable: {shares.detectable:.3f}",
        )
    for number, situation in enumerate(REPORTED_EFFECTS):
        effect, power = measure_detectable_effect(
            situation, args.times, np.random.default_rng([args.seed, 4000 + number])
        )
        check(
            MIN_REPORTED_POWER <= power <= MAX_REPORTED_POWER,
            f"{situation}: {effect:.3f} is said to be detectable, and is found in {power:.1%}",
        )
    for number, (systems, groups) in enumerate(EQUAL_SYSTEMS):
        times_ranked = max(args.times // 8, 1)
        separated, leader_only = measure_false_separations(
            systems, groups, times_ranked, np.random.default_rng([args.seed, 5000 + number])
        )
        check(
            separated <= rejection_limits(times_ranked)[1],
            f"{systems:3} systems alike on {groups} groups: some are told apart in {separated:.1%} of tables; "
            f"corrected for the leader's tests alone, in {leader_only:.1%}",
        )
    shares = measure_situation(UNRELATED_JUDGES, args.times, np.random.default_rng([args.seed, 2000]))
    print(f"      {UNRELATED_JUDGES}: 10 points found in {shares.rejected:.1%}; said: {shares.detectable:.3f}")
    return check.exit_code()


if __name__ == "__main__":
    sys.exit(main())
