"""Two one-sided tests of equivalence, compared with statsmodels, and their error rate at the margin."""

from __future__ import annotations

import numpy as np
import pytest

from runner.statistics.equivalence import equivalence_test, student_p


@pytest.mark.parametrize("seed", range(10))
def test_equivalence_p_value_matches_statsmodels(seed: int) -> None:
    from statsmodels.stats.weightstats import ttost_paired

    rng = np.random.default_rng(seed)
    first, second = rng.binomial(3, 0.6, (2, 40)) / 3
    expected = ttost_paired(first, second, -0.2, 0.2)[0]
    differences, sizes = (first - second).tolist(), [1.0] * 40
    assert student_p(differences, sizes, 0.2) == pytest.approx(expected, abs=1e-9)


def test_equivalence_interval_and_p_value_match_students_t() -> None:
    differences = [1.0, -1.0, 0.0, 0.0, 0.0, 0.0]
    half = 2.015048373 * np.std(differences, ddof=1) / 6**0.5
    result = equivalence_test(differences, [1.0] * 6, 0.5, 1.0, 1.0)
    assert result.low == pytest.approx(-half)
    assert result.high == pytest.approx(half)
    assert result.p == pytest.approx(student_p(differences, [1.0] * 6, 0.5))
    assert not result.is_shown
    wide_margin_result = equivalence_test(differences, [1.0] * 6, 1.5, 1.0, 1.0)
    assert wide_margin_result.is_shown


@pytest.mark.gate
def test_interval_is_within_the_margin_exactly_if_equivalence_is_shown() -> None:
    for seed in range(60):
        rng = np.random.default_rng([seed, 1])
        groups = int(rng.integers(3, 15))
        differences = rng.choice([-1.0, 0.0, 1.0], groups, p=(0.15, 0.7, 0.15)).tolist()
        margin = float(rng.uniform(0.2, 0.9))
        result = equivalence_test(differences, [1.0] * groups, margin, 1.0, 1.0)
        if result.low is not None and result.high is not None:
            assert result.is_shown == (-margin < result.low and result.high < margin)
            assert result.p is None or result.is_shown == (result.p <= 0.05)


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", range(40))
def test_p_value_interval_and_conclusion_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = (10, 40)[seed % 2]
    first, second = rng.binomial(3, 0.8, (2, groups)) / 3
    result = equivalence_test((first - second).tolist(), [1.0] * groups, 0.12, 1.0, 1 / 3)
    assert result.p is not None
    assert result.low is not None
    assert result.high is not None
    assert result.is_shown == (result.p <= 0.05)
    if result.is_shown:
        assert -0.12 < result.low <= result.high < 0.12


def test_equal_verdicts_on_few_groups_do_not_show_equivalence() -> None:
    few_groups = equivalence_test([0.0] * 10, [1.0] * 10, 0.05, 1.0, 1.0)
    many_groups = equivalence_test([0.0] * 400, [1.0] * 400, 0.05, 1.0, 1.0)
    assert (few_groups.p, many_groups.p) == (None, None)
    assert (few_groups.is_shown, many_groups.is_shown) == (False, True)


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize(("groups", "repeats"), [(40, 3), (100, 1), (400, 3)])
def test_systems_at_the_margin_are_rarely_called_equivalent(groups: int, repeats: int) -> None:
    rng, equivalent_count = np.random.default_rng([groups, repeats]), 0
    for _ in range(600):
        common, shape = rng.random((groups, 1)), (groups, repeats)
        first, second = (
            (np.where(rng.random(shape) < 0.8, common, rng.random(shape)) < accuracy).mean(axis=1)
            for accuracy in (0.6, 0.7)
        )
        result = equivalence_test((second - first).tolist(), [1.0] * groups, 0.1, 1.0, 1 / repeats)
        equivalent_count += result.is_shown
    assert equivalent_count <= 0.08 * 600
