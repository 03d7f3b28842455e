"""Two one-sided tests of equivalence: against statsmodels, and how often they err at the margin."""

from __future__ import annotations

import numpy as np
import pytest

from runner.statistics.equivalence import equivalence_test


@pytest.mark.parametrize("seed", range(10))
def test_p_is_that_of_statsmodels(seed: int) -> None:
    from statsmodels.stats.weightstats import ttost_paired

    rng = np.random.default_rng(seed)
    first, second = rng.binomial(3, 0.6, (2, 40)) / 3
    theirs = ttost_paired(first, second, -0.2, 0.2)[0]
    found = equivalence_test((first - second).tolist(), [1.0] * 40, 0.2, 1.0, 1 / 3)
    assert found.p == pytest.approx(theirs, abs=1e-9)


def test_equal_verdicts_on_few_groups_show_nothing() -> None:
    few = equivalence_test([0.0] * 10, [1.0] * 10, 0.05, 1.0, 1.0)
    many = equivalence_test([0.0] * 400, [1.0] * 400, 0.05, 1.0, 1.0)
    assert (few.p, many.p) == (None, None)
    assert (few.is_shown, many.is_shown) == (False, True)


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
