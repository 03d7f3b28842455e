"""The tests of paired differences against SciPy and statsmodels, on 50 tables each, and what ranks come of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from runner.statistics.differences import Sample, paired_difference, unpaired_difference
from runner.statistics.intervals import mean_interval
from runner.statistics.paired_groups import Pairs
from runner.statistics.sign_flip import MID_P_GROUPS, MOST_REJECTED, mid_p_mcnemar, sign_flip
from runner.statistics.significance import ALPHA, holm

TABLES = range(50)
EXACTLY = 1e-12


def shares(rng: np.random.Generator, groups: int) -> np.ndarray:
    """Differences of group means of judges who were asked a few times each."""
    one, two = rng.integers(1, 6, 2)
    found: np.ndarray = rng.binomial(one, 0.6, groups) / one - rng.binomial(two, 0.5, groups) / two
    return found


def test_sign_flip_is_the_exact_permutation_test_of_scipy() -> None:
    from scipy.stats import permutation_test

    for table in TABLES:
        rng = np.random.default_rng(table)
        values = shares(rng, 10) if table % 2 else rng.normal(0.3, 1, 9)
        found = sign_flip(values.tolist())
        theirs = permutation_test((values,), np.sum, permutation_type="samples", n_resamples=np.inf).pvalue
        assert found.exact
        assert abs(found.p - theirs) < EXACTLY


def test_counting_sums_is_counting_flips() -> None:
    """Where differences are whole multiples of a fraction, and where they are the same but for a hair."""
    for table in range(10):
        values = shares(np.random.default_rng(table), 14)
        same = [value * np.pi for value in values]
        assert abs(sign_flip(values.tolist()).p - sign_flip(same).p) < EXACTLY


def test_what_cannot_be_counted_is_drawn_and_the_same_each_time() -> None:
    from scipy.stats import permutation_test

    values = np.random.default_rng(1).normal(0.2, 1, 60).tolist()
    found = sign_flip(values, seed=3)
    assert not found.exact
    assert found == sign_flip(values, seed=3)
    theirs = permutation_test(
        (np.array(values),), np.sum, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(2)
    ).pvalue
    assert abs(found.p - theirs) < 0.015


def test_the_order_of_groups_does_not_change_what_is_drawn() -> None:
    values = np.random.default_rng(1).normal(0.2, 1, 60).tolist()
    assert sign_flip(values) == sign_flip(values[::-1])


def test_more_repeats_of_one_system_are_no_evidence_against_the_other() -> None:
    """One is asked once and the other twenty times, and both are wrong once in fifty: plain flips reject a third."""
    rng, rejected = np.random.default_rng(5), 0
    for _ in range(300):
        once, often = rng.binomial(1, 0.98, 20), rng.binomial(20, 0.98, 20) / 20
        spare = often * (1 - often) * 20 / 19 * (1 - 1 / 20)
        pairs = Pairs((often - once).tolist(), [1.0] * 20, spare.tolist(), [0.525] * 20, 1.0)
        rejected += pairs.test().p <= ALPHA
    assert rejected <= 300 * 0.06


def test_nothing_differs_where_only_floating_point_does() -> None:
    found = sign_flip([0.1 + 0.2 - 0.3, 0.0, 1 / 3 - (1 - 2 / 3)])
    assert (found.p, found.differing) == (1.0, 0)


def test_mid_p_mcnemar_is_that_of_statsmodels_less_half_of_what_was_seen() -> None:
    from statsmodels.stats.contingency_tables import mcnemar

    for table in TABLES:
        rng = np.random.default_rng(table)
        one, two = (int(n) for n in rng.integers(0, 30, 2))
        exact = mcnemar([[3, one], [two, 5]], exact=True).pvalue
        assert abs(sign_flip([1.0] * one + [-1.0] * two).p - exact) < EXACTLY or one + two >= MID_P_GROUPS
        seen = np.prod([(one + two - k) / (k + 1) for k in range(min(one, two))]) / 2.0 ** (one + two)
        expected = 1 - seen / 2 if one == two else exact - seen  # where they are equal, both tails have what was seen
        assert abs(mid_p_mcnemar(one, two) - (expected if one + two else 1)) < EXACTLY


def test_many_single_verdicts_give_mcnemars_mid_p() -> None:
    for one, two in ((40, 20), (30, 30), (75, 41)):
        assert abs(sign_flip([1.0] * one + [-1.0] * two).p - mid_p_mcnemar(one, two)) < EXACTLY


def test_judges_who_differ_everywhere_are_not_rejected_too_often() -> None:
    """With the chance of each count of differences in one direction, at no difference, there is nothing to simulate."""
    for groups in (50, 57, 66, 73, 93, 120):
        rejected = sum(
            math.comb(groups, k) / 2.0**groups
            for k in range(groups + 1)
            if sign_flip([1.0] * k + [-1.0] * (groups - k)).p <= ALPHA
        )
        assert 0.03 < rejected <= MOST_REJECTED


@pytest.mark.full
def test_holm_is_that_of_statsmodels() -> None:
    from statsmodels.stats.multitest import multipletests

    for table in TABLES:
        p = np.random.default_rng(table).random(table % 9 + 1) ** 3
        assert np.abs(multipletests(p, method="holm")[1] - holm(p.tolist())).max() < EXACTLY


def test_holm_multiplies_by_how_many_are_left_and_never_falls() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_errors_of_groups_of_any_size_are_those_of_statsmodels() -> None:
    from statsmodels.regression.linear_model import OLS

    for table in TABLES:
        rng = np.random.default_rng(table)
        group = rng.integers(0, 12, 40)
        group[:12] = range(12)
        y = rng.random(40)
        sizes = np.bincount(group).astype(float)
        means = np.bincount(group, y) / sizes
        fit = OLS(y, np.ones(40)).fit(cov_type="cluster", cov_kwds={"groups": group, "use_correction": False})
        stderr = Sample(means.tolist(), sizes.tolist(), 40, proportion=False).stderr
        assert stderr is not None
        assert abs(stderr - fit.bse[0] * (12 / 11) ** 0.5) < EXACTLY


def test_welch_is_that_of_scipy() -> None:
    from scipy.stats import ttest_ind

    for table in TABLES:
        rng = np.random.default_rng(table)
        one, two = rng.random(rng.integers(3, 30)), rng.random(rng.integers(3, 30)) + 0.1
        samples = [Sample(x.tolist(), [1.0] * len(x), len(x), proportion=False) for x in (one, two)]
        difference, p = unpaired_difference(samples[0], samples[1])
        assert p is not None
        assert abs(p - ttest_ind(two, one, equal_var=False).pvalue) < EXACTLY
        assert abs(difference.value - (two.mean() - one.mean())) < EXACTLY


def test_the_interval_of_many_groups_is_students() -> None:
    d = np.random.default_rng(1).normal(0.1, 0.3, 2000)
    found = paired_difference(d.tolist(), [1.0] * 2000, 1.0)
    stderr = d.std(ddof=1) / 2000**0.5
    low, high = mean_interval(float(d.mean()), float(stderr), 2000, 2000, proportion=False)
    assert found.low == pytest.approx(low, abs=2e-4)
    assert found.high == pytest.approx(high, abs=2e-4)


def test_no_difference_seen_is_no_proof_of_none() -> None:
    found = paired_difference([0.0] * 50, [1.0] * 50, 1.0)
    assert found.low is not None
    assert found.high is not None
    assert found.low == -found.high
    assert 0.06 < found.high < 0.08  # the rule of three says 3/50 for one direction
    assert paired_difference([0.0] * 50, [1.0] * 50, None).low is None
    assert paired_difference([0.4], [1.0], 1.0).low is None


def test_an_interval_holds_what_a_few_groups_show_where_one_is_always_right() -> None:
    """With the chance of each count of groups in which the other is wrong, there is nothing to simulate."""
    for groups in (20, 60, 200):
        counts = range(min(groups, 25))
        ends = []
        for wrong in counts:
            found = paired_difference([-1.0] * wrong + [0.0] * (groups - wrong), [1.0] * groups, 1.0, 1.0)
            assert found.low is not None
            assert found.high is not None
            ends.append((found.low, found.high))
        for chance in (x / 10 / groups for x in range(2, 100)):
            weights = [math.comb(groups, k) * chance**k * (1 - chance) ** (groups - k) for k in counts]
            assert sum(w for w, (low, high) in zip(weights, ends, strict=True) if low <= -chance <= high) >= 0.92


def test_a_large_difference_of_unequal_terms_does_not_make_a_small_one_look_detectable() -> None:
    """Groups of two datapoints: 60 differ by 1, 114 by 0.5, and 17 in the other direction."""
    differences = [1.0] * 60 + [0.5] * 114 + [-0.5] * 17 + [0.0] * 109
    small = [0.5 * sign for sign in (1.0, -1.0) for _ in range(87)] + [1.0, -1.0] * 8 + [0.0] * 110
    found, baseline = (paired_difference(values, [2.0] * 300, 1.0, 0.5) for values in (differences, small))
    assert found.detectable is not None
    assert baseline.detectable is not None
    assert 0.04 < found.detectable < 1.3 * baseline.detectable


def test_what_is_said_to_be_detectable_is_found_where_nothing_differed() -> None:
    """Of 60 groups of which none differs it takes six in one direction, and so 13 points; of five nothing is seen."""
    said = paired_difference([0.0] * 60, [1.0] * 60, 1.0).detectable
    assert said is not None
    assert sum(math.comb(60, k) * said**k * (1 - said) ** (60 - k) for k in range(6, 61)) == pytest.approx(
        0.8, abs=0.01
    )
    assert paired_difference([0.0] * 5, [1.0] * 5, 1.0).detectable is None
    assert paired_difference([1.0] * 5, [1.0] * 5, None).detectable is None
    assert 0.95 < (paired_difference([0.0] * 6, [1.0] * 6, 1.0).detectable or 0) <= 1


def test_a_larger_group_weighs_more() -> None:
    found = paired_difference([1.0, 0.0, 0.0], [2.0, 1.0, 1.0], 1.0)
    assert found.value == 0.5
    assert (found.low or 0) <= 0.5 <= (found.high or 0)


def test_opposite_differences_have_opposite_intervals() -> None:
    d = shares(np.random.default_rng(4), 30).tolist()
    one, two = paired_difference(d, [1.0] * 30, 1.0), paired_difference([-x for x in d], [1.0] * 30, 1.0)
    assert (one.low, one.high, one.stderr) == pytest.approx((-(two.high or 0), -(two.low or 0), two.stderr))


def test_all_right_against_all_wrong_is_seen_unpaired() -> None:
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
def test_the_test_and_the_interval_keep_what_they_promise() -> None:
    """Small; `benchmarks/comparisons.py` is the full size."""
    rng = np.random.default_rng(7)
    rejected = covered = 0
    for _ in range(400):
        ease = rng.normal(0, 1.5, 60)
        chances = 1 / (1 + np.exp(-(ease + rng.normal(0, 0.7, (2, 60)))))
        d = (rng.binomial(2, chances[1]) - rng.binomial(2, chances[0])) / 2
        found = paired_difference(d.tolist(), [1.0] * 60, 1.0)
        assert found.low is not None
        assert found.high is not None
        rejected += sign_flip(d.tolist()).p <= 0.05
        covered += found.low <= 0 <= found.high
    assert rejected <= 400 * 0.075
    assert 400 * 0.92 <= covered <= 400 * 0.985
