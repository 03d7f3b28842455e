"""Variance between and within groups, and the repeats and sample sizes that follow from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, mean, variance

import numpy as np
import pytest

from runner.statistics.intervals import variance_factors
from runner.statistics.sign_flip import FEWEST_GROUPS, sign_flip
from runner.statistics.significance import ALPHA
from runner.statistics.variance_components import (
    Scores,
    Split,
    groups_needed,
    paired_split,
    paired_total,
    smallest_difference,
    variance_section,
    with_one_more_group,
)


def make_scores(table: Sequence[Sequence[float]], size: int = 1) -> Scores:
    """Return scores by group and repeat; the first `size` columns of a row are the first repeat of its datapoints."""
    scores = Scores()
    for group, row in enumerate(table):
        for index, score in enumerate(row):
            scores.add(f"g{group}", f"p{index % size}", score)
    return scores


def test_variance_split_matches_its_formulas() -> None:
    table = [[1, 0, 1], [1, 1, 1], [0, 0, 1], [0, 0, 0]]
    split = make_scores(table).split()
    assert split is not None
    within = mean(variance(row) for row in table)
    assert split.within == pytest.approx(within, abs=1e-15)
    assert split.between == pytest.approx(variance([mean(row) for row in table]) - within / 3, abs=1e-15)


@pytest.mark.parametrize("size", [1, 2])
def test_variance_split_recovers_planted_components(size: int) -> None:
    rng = np.random.default_rng(5)
    chances = rng.beta(2, 1, 4000)  # variance 1/18; mean of p (1 - p): 2/3 - 1/2
    table = (rng.random((4000, 4 * size)) < chances[:, None]).astype(float).tolist()
    split = make_scores(table, size).split()
    assert split is not None
    assert split.between == pytest.approx(1 / 18, abs=0.006)
    assert split.within == pytest.approx(1 / 6 / size, abs=0.006)


def test_variance_split_needs_repeats() -> None:
    scores = make_scores([[1], [0], [1]])
    assert (scores.split(), variance_section(scores), scores.repeats) == (None, None, 1)
    assert scores.total() == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("between", "within", "enough"), [(0.1, 0.0, 1), (0.0, 0.2, None), (0.1, 0.1, 10), (0.2, 0.05, 3), (0.05, 0.2, 38)]
)
def test_repeats_are_enough_if_more_gain_less_than_5_percent(between: float, within: float, enough: int | None) -> None:
    split = Split(between, within)
    assert split.enough_repeats == enough
    if enough and within:
        assert math.sqrt(between / (between + within / enough)) >= 0.95
        assert enough == 1 or math.sqrt(between / (between + within / (enough - 1))) < 0.95


def test_sample_sizes_match_the_power_formula() -> None:
    """Connor's formula; for many groups it agrees with Miller's, with the mean square as variance at no difference."""
    z = NormalDist().inv_cdf
    root = z(0.975) * math.sqrt(0.5 + 0.15**2) + z(0.8) * math.sqrt(0.5)
    assert groups_needed(0.15, 0.5) == math.ceil((root / 0.15) ** 2) == 180
    # The reference table: Var(d) = 0.2
    assert [round(100 * (smallest_difference(k, lambda _: 0.2) or 0), 1) for k in (500, 1000, 4000)] == [5.6, 4.0, 2.0]
    assert groups_needed(0.03, 0.2) == pytest.approx(1745, abs=5)


def test_planning_needs_the_fewest_groups_that_the_test_can_reject_with() -> None:
    for groups in (FEWEST_GROUPS - 1, FEWEST_GROUPS):
        assert (sign_flip([1.0] * groups).p <= ALPHA) == (groups == FEWEST_GROUPS)
    assert groups_needed(0.9, 0.0) == FEWEST_GROUPS
    assert smallest_difference(FEWEST_GROUPS - 1, lambda _: 0.0) is None
    for groups in (10, 40, 400):
        smallest = smallest_difference(groups, lambda _: 0.05)
        assert smallest is not None
        assert groups_needed(smallest, 0.05) <= groups < groups_needed(0.99 * smallest, 0.05)


@pytest.mark.parametrize(("chance", "difference"), [(0.5, 0.15), (0.7, 0.2), (0.6, 0.3), (0.4, 0.5), (0.05, 0.9)])
def test_sign_flip_has_the_planned_power(chance: float, difference: float) -> None:
    """`benchmarks/planning.py` has the full simulation."""
    better, worse = (chance + difference) * (1 - chance), chance * (1 - chance - difference)
    groups = groups_needed(difference, better + worse - difference**2)
    rng = np.random.default_rng([7, groups])
    counts, frequencies = np.unique(
        rng.multinomial(groups, [better, worse, 1 - better - worse], 400), axis=0, return_counts=True
    )
    rejected = sum(
        int(n) for (b, w, _), n in zip(counts, frequencies, strict=True) if sign_flip([1.0] * b + [-1.0] * w).p <= ALPHA
    )
    assert 0.74 <= rejected / 400 <= 0.97


@pytest.mark.parametrize("shared", [0.1, 0.9])
def test_few_groups_with_repeats_do_not_have_too_much_power(shared: float) -> None:
    """Chances are uniform, and equal for both systems in a share of the groups. 20 groups have 86 to 89 % power."""
    rng, difference, repeats, times = np.random.default_rng(3), 0.3, 3, 1_000
    worse, independent, is_shared = (rng.random((times, 400)) for _ in range(3))
    chances = (1 - difference) * worse, difference + (1 - difference) * np.where(is_shared < shared, worse, independent)
    differences = (rng.binomial(repeats, chances[1]) - rng.binomial(repeats, chances[0])) / repeats
    groups = groups_needed(difference, float(differences.var()), 1 / repeats)
    power = np.mean([sign_flip(row[:groups].tolist()).p <= ALPHA for row in differences])
    assert 0.75 <= power <= 0.85


def test_with_one_more_group_matches_the_variance_with_it() -> None:
    scores = [0.2, 0.9, 0.4, 0.5]
    assert with_one_more_group(variance(scores), 4, 1 - mean(scores)) == pytest.approx(variance([*scores, 1.0]))
    assert with_one_more_group(0.0, 9, 1.0) == pytest.approx(0.1)
    low, high = variance_factors(12)
    assert (round(low, 2), round(high, 2)) == (0.5, 2.88)


def test_paired_split_excludes_shared_difficulty() -> None:
    rng = np.random.default_rng(6)
    chances = rng.beta(1, 1, 3000)
    first, second = (make_scores((rng.random((3000, 3)) < chances[:, None]).astype(float).tolist()) for _ in range(2))
    split, total = paired_split(first, second), paired_total(first, second)
    assert split is not None
    assert total is not None
    assert split[0] < 0.01  # each varies by 1/12
    assert split[1] == pytest.approx(1 / 6, abs=0.01)
    assert total == pytest.approx(split[0] + (split[1] + split[2]) / 3, abs=1e-9)
