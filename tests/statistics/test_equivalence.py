"""Two one-sided tests of equivalence: against statsmodels, and how often they err at the margin."""

from __future__ import annotations

import numpy as np
import pytest

from runner.statistics.equivalence import equivalence_test, student_p


@pytest.mark.parametrize("seed", range(10))
def test_p_is_that_of_statsmodels(seed: int) -> None:
    from statsmodels.stats.weightstats import ttost_paired

    rng = np.random.default_rng(seed)
    first, second = rng.binomial(3, 0.6, (2, 40)) / 3
    theirs = ttost_paired(first, second, -0.2, 0.2)[0]
    differences, sizes = (first - second).tolist(), [1.0] * 40
    assert student_p(differences, sizes, 0.2) == pytest.approx(theirs, abs=1e-9)


def test_the_interval_contains_that_of_student() -> None:
    differences = [1.0, -1.0, 0.0, 0.0, 0.0, 0.0]
    half = 2.015048373 * np.std(differences, ddof=1) / 6**0.5
    found = equivalence_test(differences, [1.0] * 6, 0.5, 1.0, 1.0)
    assert found.low == pytest.approx(-half)
    assert found.high == pytest.approx(half)
    assert found.p == pytest.approx(student_p(differences, [1.0] * 6, 0.5))
    assert not found.is_shown
    wide = equivalence_test(differences, [1.0] * 6, 1.5, 1.0, 1.0)
    assert wide.is_shown


@pytest.mark.gate
def test_the_interval_is_within_the_margin_exactly_if_equivalence_is_shown() -> None:
    for seed in range(60):
        rng = np.random.default_rng([seed, 1])
        groups = int(rng.integers(3, 15))
        differences = rng.choice([-1.0, 0.0, 1.0], groups, p=(0.15, 0.7, 0.15)).tolist()
        margin = float(rng.uniform(0.2, 0.9))
        found = equivalence_test(differences, [1.0] * groups, margin, 1.0, 1.0)
        if found.low is not None and found.high is not None:
            assert found.is_shown == (-margin < found.low and found.high < margin)
            assert found.p is None or found.is_shown == (found.p <= 0.05)


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", range(40))
def test_p_the_interval_and_the_conclusion_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = (10, 40)[seed % 2]
    first, second = rng.binomial(3, 0.8, (2, groups)) / 3
    found = equivalence_test((first - second).tolist(), [1.0] * groups, 0.12, 1.0, 1 / 3)
    assert found.p is not None
    assert found.low is not None
    assert found.high is not None
    assert found.is_shown == (found.p <= 0.05)
    if found.is_shown:
        assert -0.12 < found.low <= found.high < 0.12


def test_equal_verdicts_on_few_groups_show_nothing() -> None:
    few = equivalence_test([0.0] * 10, [1.0] * 10, 0.05, 1.0, 1.0)
    many = equivalence_test([0.0] * 400, [1.0] * 400, 0.05, 1.0, 1.0)
    assert (few.p, many.p) == (None, None)
    assert (few.is_shown, many.is_shown) == (False, True)


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize(("groups", "repeats"), [(40, 3), (100, 1), (400, 3)])
def test_systems_at_the_margin_are_rarely_called_equivalent(groups: int, repeats: int) -> None:
    rng, shown = np.random.default_rng([groups, repeats]), 0
    for _ in range(600):
        common, shape = rng.random((groups, 1)), (groups, repeats)
        first, second = (
            (np.where(rng.random(shape) < 0.8, common, rng.random(shape)) < accuracy).mean(axis=1)
            for accuracy in (0.6, 0.7)
        )
        found = equivalence_test((second - first).tolist(), [1.0] * groups, 0.1, 1.0, 1 / repeats)
        shown += found.is_shown
    assert shown <= 0.08 * 600
