"""Tests and intervals of paired differences, compared with SciPy and statsmodels on 50 tables each."""

from __future__ import annotations

import math

import numpy as np
import pytest

from runner.statistics.differences import Sample, paired_difference, unpaired_difference
from runner.statistics.intervals import mean_interval
from runner.statistics.paired_groups import Pairs
from runner.statistics.sign_flip import MID_P_GROUPS, MOST_REJECTED, mid_p_mcnemar, sign_flip
from runner.statistics.significance import ALPHA, holm

TABLE_SEEDS = range(50)
TOLERANCE = 1e-12


def random_differences(rng: np.random.Generator, groups: int) -> np.ndarray:
    """Return differences of group means of two judges with a few games for each group."""
    first_games, second_games = rng.integers(1, 6, 2)
    differences: np.ndarray = (
        rng.binomial(first_games, 0.6, groups) / first_games - rng.binomial(second_games, 0.5, groups) / second_games
    )
    return differences


def test_sign_flip_matches_the_exact_permutation_test_of_scipy() -> None:
    from scipy.stats import permutation_test

    for table in TABLE_SEEDS:
        rng = np.random.default_rng(table)
        values = random_differences(rng, 10) if table % 2 else rng.normal(0.3, 1, 9)
        result = sign_flip(values.tolist())
        expected = permutation_test((values,), np.sum, permutation_type="samples", n_resamples=np.inf).pvalue
        assert result.exact
        assert abs(result.p - expected) < TOLERANCE


def test_counting_sums_matches_counting_flips() -> None:
    """Differences are exact multiples of a fraction, or differ from such multiples by rounding errors."""
    for table in range(10):
        values = random_differences(np.random.default_rng(table), 14)
        scaled = [value * np.pi for value in values]
        assert abs(sign_flip(values.tolist()).p - sign_flip(scaled).p) < TOLERANCE


def test_sampled_sign_flips_are_reproducible_and_match_scipy() -> None:
    from scipy.stats import permutation_test

    values = np.random.default_rng(1).normal(0.2, 1, 60).tolist()
    result = sign_flip(values)
    assert not result.exact
    assert result == sign_flip(values)
    expected = permutation_test(
        (np.array(values),), np.sum, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(2)
    ).pvalue
    assert abs(result.p - expected) < 0.015


def test_sampled_sign_flips_do_not_depend_on_the_order_of_groups() -> None:
    values = np.random.default_rng(1).normal(0.2, 1, 60).tolist()
    assert sign_flip(values) == sign_flip(values[::-1])


def test_unequal_numbers_of_repeats_do_not_cause_rejections() -> None:
    """One system plays once, the other 20 times, and both err in 2 % of games. Plain flips would reject a third."""
    rng, rejected = np.random.default_rng(5), 0
    for _ in range(300):
        single_play_scores, repeated_play_scores = rng.binomial(1, 0.98, 20), rng.binomial(20, 0.98, 20) / 20
        excess_variances = repeated_play_scores * (1 - repeated_play_scores) * 20 / 19 * (1 - 1 / 20)
        pairs = Pairs(
            (repeated_play_scores - single_play_scores).tolist(),
            [1.0] * 20,
            excess_variances.tolist(),
            [0.525] * 20,
            1.0,
        )
        rejected += pairs.test().p <= ALPHA
    assert rejected <= 300 * 0.06


def test_rounding_errors_do_not_count_as_differences() -> None:
    result = sign_flip([0.1 + 0.2 - 0.3, 0.0, 1 / 3 - (1 - 2 / 3)])
    assert (result.p, result.differing) == (1.0, 0)


def test_mid_p_mcnemar_matches_statsmodels_minus_half_the_observed_chance() -> None:
    from statsmodels.stats.contingency_tables import mcnemar

    for table in TABLE_SEEDS:
        rng = np.random.default_rng(table)
        first_only, second_only = (int(n) for n in rng.integers(0, 30, 2))
        exact = mcnemar([[3, first_only], [second_only, 5]], exact=True).pvalue
        assert (
            abs(sign_flip([1.0] * first_only + [-1.0] * second_only).p - exact) < TOLERANCE
            or first_only + second_only >= MID_P_GROUPS
        )
        observed_chance = np.prod(
            [(first_only + second_only - k) / (k + 1) for k in range(min(first_only, second_only))]
        ) / 2.0 ** (first_only + second_only)
        expected = (
            1 - observed_chance / 2 if first_only == second_only else exact - observed_chance
        )  # equal counts are in both tails
        assert abs(mid_p_mcnemar(first_only, second_only) - (expected if first_only + second_only else 1)) < TOLERANCE


def test_sign_flip_of_many_single_verdicts_is_mcnemars_mid_p() -> None:
    for first_only, second_only in ((40, 20), (30, 30), (75, 41)):
        assert (
            abs(sign_flip([1.0] * first_only + [-1.0] * second_only).p - mid_p_mcnemar(first_only, second_only))
            < TOLERANCE
        )


def test_false_positive_rate_is_limited_if_judges_differ_everywhere() -> None:
    """The probability of each count of differences in one direction is known, so no simulation is needed."""
    for groups in (50, 57, 66, 73, 93, 120):
        rejected = sum(
            math.comb(groups, k) / 2.0**groups
            for k in range(groups + 1)
            if sign_flip([1.0] * k + [-1.0] * (groups - k)).p <= ALPHA
        )
        assert 0.03 < rejected <= MOST_REJECTED


@pytest.mark.full
def test_holm_matches_statsmodels() -> None:
    from statsmodels.stats.multitest import multipletests

    for table in TABLE_SEEDS:
        p = np.random.default_rng(table).random(table % 9 + 1) ** 3
        assert np.abs(multipletests(p, method="holm")[1] - holm(p.tolist())).max() < TOLERANCE


def test_holm_multiplies_by_the_remaining_tests_and_never_decreases() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_errors_of_groups_of_any_size_match_statsmodels() -> None:
    from statsmodels.regression.linear_model import OLS

    for table in TABLE_SEEDS:
        rng = np.random.default_rng(table)
        group = rng.integers(0, 12, 40)
        group[:12] = range(12)
        y = rng.random(40)
        sizes = np.bincount(group).astype(float)
        means = np.bincount(group, y) / sizes
        fit = OLS(y, np.ones(40)).fit(cov_type="cluster", cov_kwds={"groups": group, "use_correction": False})
        stderr = Sample(means.tolist(), sizes.tolist(), 40, proportion=False).stderr
        assert stderr is not None
        assert abs(stderr - fit.bse[0] * (12 / 11) ** 0.5) < TOLERANCE


def test_welch_test_matches_scipy() -> None:
    from scipy.stats import ttest_ind

    for table in TABLE_SEEDS:
        rng = np.random.default_rng(table)
        first, second = rng.random(rng.integers(3, 30)), rng.random(rng.integers(3, 30)) + 0.1
        samples = [Sample(x.tolist(), [1.0] * len(x), len(x), proportion=False) for x in (first, second)]
        difference, p = unpaired_difference(samples[0], samples[1])
        assert p is not None
        assert abs(p - ttest_ind(second, first, equal_var=False).pvalue) < TOLERANCE
        assert abs(difference.value - (second.mean() - first.mean())) < TOLERANCE


def test_interval_of_many_groups_is_students() -> None:
    d = np.random.default_rng(1).normal(0.1, 0.3, 2000)
    difference = paired_difference(d.tolist(), [1.0] * 2000, 1.0)
    stderr = d.std(ddof=1) / 2000**0.5
    low, high = mean_interval(float(d.mean()), float(stderr), 2000, 2000, proportion=False)
    assert difference.low == pytest.approx(low, abs=2e-4)
    assert difference.high == pytest.approx(high, abs=2e-4)


def test_equal_results_give_an_interval_with_a_width() -> None:
    difference = paired_difference([0.0] * 50, [1.0] * 50, 1.0)
    assert difference.low is not None
    assert difference.high is not None
    assert difference.low == -difference.high
    assert 0.06 < difference.high < 0.08  # the rule of three gives 3/50 for one direction
    assert paired_difference([0.0] * 50, [1.0] * 50, None).low is None
    assert paired_difference([0.4], [1.0], 1.0).low is None


def test_interval_covers_a_rare_difference_if_one_judge_is_always_right() -> None:
    """The probability of each number of groups with a wrong verdict is known, so no simulation is needed."""
    for groups in (20, 60, 200):
        counts = range(min(groups, 25))
        ends = []
        for wrong in counts:
            difference = paired_difference([-1.0] * wrong + [0.0] * (groups - wrong), [1.0] * groups, 1.0, 1.0)
            assert difference.low is not None
            assert difference.high is not None
            ends.append((difference.low, difference.high))
        for chance in (x / 10 / groups for x in range(2, 100)):
            weights = [math.comb(groups, k) * chance**k * (1 - chance) ** (groups - k) for k in counts]
            assert sum(w for w, (low, high) in zip(weights, ends, strict=True) if low <= -chance <= high) >= 0.92


def test_detectable_difference_ignores_the_size_of_the_observed_difference() -> None:
    """Groups of two datapoints: 60 differ by 1, 114 by 0.5, and 17 in the other direction."""
    differences = [1.0] * 60 + [0.5] * 114 + [-0.5] * 17 + [0.0] * 109
    small = [0.5 * sign for sign in (1.0, -1.0) for _ in range(87)] + [1.0, -1.0] * 8 + [0.0] * 110
    estimate, baseline = (paired_difference(values, [2.0] * 300, 1.0, 0.5) for values in (differences, small))
    assert estimate.detectable is not None
    assert baseline.detectable is not None
    assert 0.04 < estimate.detectable < 1.3 * baseline.detectable


def test_no_share_has_a_detectable_difference_above_1() -> None:
    """With unequal weights, even the largest possible difference may be too small to detect."""
    differences = [1.0] * 15 + [-1.0] * 14 + [0.0] * 31 + [1.0] * 3
    estimate = paired_difference(differences, [63 / 120] * 60 + [63 / 6] * 3, 1.0, 1.0)
    assert estimate.low is not None
    assert estimate.detectable is None


def test_detectable_difference_has_80_percent_power_if_nothing_differed() -> None:
    """A rejection needs six groups in one direction: 13 points of 60 groups, and impossible with five groups."""
    detectable = paired_difference([0.0] * 60, [1.0] * 60, 1.0).detectable
    assert detectable is not None
    assert sum(math.comb(60, k) * detectable**k * (1 - detectable) ** (60 - k) for k in range(6, 61)) == pytest.approx(
        0.8, abs=0.01
    )
    assert paired_difference([0.0] * 5, [1.0] * 5, 1.0).detectable is None
    assert paired_difference([1.0] * 5, [1.0] * 5, None).detectable is None
    assert 0.95 < (paired_difference([0.0] * 6, [1.0] * 6, 1.0).detectable or 0) <= 1


def test_larger_groups_weigh_more() -> None:
    difference = paired_difference([1.0, 0.0, 0.0], [2.0, 1.0, 1.0], 1.0)
    assert difference.value == 0.5
    assert (difference.low or 0) <= 0.5 <= (difference.high or 0)


def test_opposite_differences_have_opposite_intervals() -> None:
    d = random_differences(np.random.default_rng(4), 30).tolist()
    estimate, opposite_estimate = (
        paired_difference(d, [1.0] * 30, 1.0),
        paired_difference([-x for x in d], [1.0] * 30, 1.0),
    )
    assert (estimate.low, estimate.high, estimate.stderr) == pytest.approx(
        (-(opposite_estimate.high or 0), -(opposite_estimate.low or 0), opposite_estimate.stderr)
    )


def test_unpaired_test_detects_all_right_against_all_wrong() -> None:
    difference, p = unpaired_difference(
        Sample([1.0] * 5, [1.0] * 5, 5, proportion=True), Sample([0.0] * 5, [1.0] * 5, 5, proportion=True)
    )
    assert p is not None
    assert p < 0.01
    assert difference.high is not None
    assert difference.high < 0
    assert unpaired_difference(
        Sample([1.0] * 5, [1.0] * 5, 5, proportion=True), Sample([1.0], [1.0], 1, proportion=True)
    )[1] is None  # fmt: skip


@pytest.mark.full
def test_paired_test_and_interval_keep_their_error_rates() -> None:
    """`benchmarks/comparisons.py` has the full simulation."""
    rng = np.random.default_rng(7)
    rejected = covered = 0
    for _ in range(400):
        easiness = rng.normal(0, 1.5, 60)
        chances = 1 / (1 + np.exp(-(easiness + rng.normal(0, 0.7, (2, 60)))))
        d = (rng.binomial(2, chances[1]) - rng.binomial(2, chances[0])) / 2
        difference = paired_difference(d.tolist(), [1.0] * 60, 1.0)
        assert difference.low is not None
        assert difference.high is not None
        rejected += sign_flip(d.tolist()).p <= 0.05
        covered += difference.low <= 0 <= difference.high
    assert rejected <= 400 * 0.075
    assert 400 * 0.92 <= covered <= 400 * 0.985
