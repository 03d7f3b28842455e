"""Variance components of a judge's scores, tests of what changes them, and the noise floor."""

from __future__ import annotations

import tracemalloc
from itertools import combinations

import numpy as np
import pytest

from runner.statistics.instrument import level_test, permuted_sums
from runner.statistics.instrument.crossed_components import (
    INTERACTION,
    ORDER,
    RETEST,
    UNIT,
    VARIANT,
    Readings,
    crossed_components,
)
from runner.statistics.instrument.level_test import permute_levels
from runner.statistics.instrument.noise_floor import noise_floor, retest_flips


def make_readings(scores: np.ndarray, size: int = 1) -> Readings:
    """Return the readings of scores by unit, variant and repeat, in clusters of `size` units."""
    units, variants, repeats = scores.shape
    cells = np.repeat(np.arange(units * variants), repeats)
    return Readings(scores.ravel(), cells // variants, cells % variants, cells, np.arange(units) // size)


def components_by_anova(scores: np.ndarray) -> dict[str, float]:
    """Compute the components from the mean squares of a balanced two-way analysis of variance with repeats."""
    k, v, r = scores.shape
    grand, units, variants, cells = scores.mean(), scores.mean((1, 2)), scores.mean((0, 2)), scores.mean(2)
    ms_unit = r * v * ((units - grand) ** 2).sum() / (k - 1)
    ms_variant = r * k * ((variants - grand) ** 2).sum() / (v - 1)
    residual = cells - units[:, None] - variants[None, :] + grand
    ms_interaction = r * (residual**2).sum() / ((k - 1) * (v - 1))
    ms_error = ((scores - cells[:, :, None]) ** 2).sum() / (k * v * (r - 1))
    return {
        UNIT: (ms_unit - ms_interaction) / (v * r),
        VARIANT: (ms_variant - ms_interaction) / (k * r),
        INTERACTION: (ms_interaction - ms_error) / r,
        RETEST: ms_error,
    }


def simulate_scores(rng: np.random.Generator, units: int = 60) -> np.ndarray:
    shape = (units, 3)
    cells = rng.normal(0, 1, (units, 1)) + np.array([0.0, 0.6, -0.3]) + rng.normal(0, 0.5, shape)
    scores: np.ndarray = cells[:, :, None] + rng.normal(0, 0.7, (*shape, 4))
    return scores


def test_components_of_balanced_scores_match_the_analysis_of_variance() -> None:
    scores = simulate_scores(np.random.default_rng(3))
    result, expected = crossed_components(make_readings(scores)), components_by_anova(scores)
    assert result is not None
    assert {name: q.value for name, q in result.components.items()} == pytest.approx(expected, rel=1e-9)
    assert result.icc.value == pytest.approx(expected[UNIT] / sum(expected.values()))
    assert result.icc.interval is not None
    assert result.icc.value is not None
    assert result.icc.interval[0] < result.icc.value < result.icc.interval[1]


def test_one_variant_gives_the_one_way_correlation() -> None:
    scores = simulate_scores(np.random.default_rng(4))[:, :1]
    within = scores.var(axis=2, ddof=1).mean()
    between = scores.mean(axis=2).var(ddof=1) - within / 4
    result = crossed_components(make_readings(scores))
    assert result is not None
    assert (result.icc.value, result.retest_icc.value) == pytest.approx((between / (between + within),) * 2)
    assert result.components.keys() == {UNIT, RETEST}


def test_components_of_unbalanced_scores_match_a_loop_over_all_pairs() -> None:
    """Compare with a loop over all pairs of readings."""
    rng = np.random.default_rng(5)
    scores = rng.integers(0, 2, (6, 2, 2)).astype(float)
    data = make_readings(scores)
    used = np.arange(24) != 5  # one unit has one reading less
    data = Readings(
        data.scores[used], data.units[used], data.variants[used], data.requests[used], data.clusters
    )  # fmt: skip
    halves: dict[tuple[bool, bool], dict[tuple[int, ...], list[float]]] = {}
    for a, b in combinations(range(23), 2):
        key = bool(data.units[a] == data.units[b]), bool(data.variants[a] == data.variants[b])
        cells = tuple(sorted((int(data.requests[a]), int(data.requests[b]))))
        halves.setdefault(key, {}).setdefault(cells, []).append((data.scores[a] - data.scores[b]) ** 2 / 2)
    different_units, same_units = (
        np.mean([np.mean(values) for values in halves[key].values()]) for key in ((False, False), (True, False))
    )
    result = crossed_components(data)
    assert result is not None
    assert result.total == pytest.approx(float(different_units))
    assert result.icc.value == pytest.approx(1 - float(same_units / different_units))


def test_answer_order_is_a_separate_component() -> None:
    rng = np.random.default_rng(6)
    scores = rng.normal(0, 1, (200, 1, 1)) + rng.normal(0, 0.8, (200, 2, 1)) + rng.normal(0, 0.4, (200, 2, 3))
    units, requests = np.repeat(np.arange(200), 6), np.repeat(np.arange(400), 3)
    result = crossed_components(
        Readings(scores.ravel(), units, np.zeros(1200, dtype=np.int64), requests, np.arange(200))
    )
    assert result is not None
    values = {name: q.value for name, q in result.components.items()}
    assert values[RETEST] == pytest.approx(0.16, abs=0.03)
    assert values[ORDER] == pytest.approx(0.64, abs=0.15)
    assert values[UNIT] == pytest.approx(1.0, abs=0.25)


def test_judge_without_noise_has_a_correlation_of_1_without_an_interval() -> None:
    scores = np.repeat(np.arange(40)[:, None, None] % 2, 3, axis=2).astype(float)
    result = crossed_components(make_readings(scores))
    assert result is not None
    assert (result.icc.value, result.icc.interval) == (1.0, None)
    assert "differ in fewer than 2 groups" in str(result.icc.reason)


@pytest.mark.parametrize("scores", [np.zeros((1, 1, 3)), np.zeros((30, 1, 1))])
def test_single_cluster_or_single_readings_have_no_components(scores: np.ndarray) -> None:
    assert crossed_components(make_readings(scores)) is None


def exact_p_value(scores: np.ndarray) -> float:
    """Compute the p-value of a shift from all exchanges of two readings per unit, one at each level."""
    differences = scores[:, 0] - scores[:, 1]
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(differences))).reshape(len(differences), -1)
    sums = np.abs(differences @ signs)
    return float(np.mean(sums >= abs(differences.sum()) - 1e-12))


def test_p_value_with_one_reading_per_level_matches_all_exchanges() -> None:
    scores = np.random.default_rng(7).normal(0, 1, (8, 2)) + np.array([0.0, 0.9])
    result = permute_levels(scores.ravel(), np.repeat(np.arange(8), 2), np.tile((0, 1), 8))
    assert result is not None
    assert result.p == pytest.approx(exact_p_value(scores), abs=0.02)
    assert (result.p_change, result.strata) == (None, 8)


def test_changes_of_single_units_are_detected_if_the_mean_is_unchanged() -> None:
    scores = np.zeros((10, 2, 3))
    scores[:5, 1] = scores[5:, 0] = 1.0
    strata, levels = np.repeat(np.arange(10), 6), np.tile(np.repeat((0, 1), 3), 10)
    result = permute_levels(scores.ravel(), strata, levels)
    assert result is not None
    assert (result.p_shift, result.p < 0.01) == (1.0, True)
    shuffled = np.random.default_rng(1).permutation(60)
    assert permute_levels(scores.ravel()[shuffled], strata[shuffled], levels[shuffled]) == result


def exact_p_values(scores: list[np.ndarray], size: int) -> tuple[float, float]:
    """Compute both p-values from all assignments, for strata whose first `size` scores are at level 0."""
    outcomes = []
    for row in scores:
        residuals = row - row.mean()
        first_sums = np.array([residuals[list(chosen)].sum() for chosen in combinations(range(len(row)), size)])
        outcomes.append((first_sums, first_sums**2 / size + first_sums**2 / (len(row) - size)))
    statistics = zip(*outcomes, strict=True)
    shift, change = (np.sum(np.meshgrid(*values, indexing="ij"), axis=0) for values in statistics)
    p_shift, p_change = (
        float(np.mean(values >= values.flat[0] * (1 - 1e-9) - 1e-12)) for values in (np.square(shift), change)
    )
    return p_shift, p_change


@pytest.mark.parametrize("method", ["outcomes", "subsets", "single scores"])
@pytest.mark.parametrize("kind", ["verdicts", "probabilities"])
def test_each_permutation_method_matches_all_assignments(
    method: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(level_test, "CLEAR_COUNT", level_test.PERMUTATIONS)
    monkeypatch.setattr(permuted_sums, "_MOST_OUTCOMES", 512 if method == "outcomes" else 0)
    monkeypatch.setattr(permuted_sums, "_MOST_READINGS", 0 if method == "single scores" else 12)
    rng = np.random.default_rng(11)
    scores = [rng.random(5) + np.array([0.2, 0.2, 0, 0, 0]) for _ in range(4)]
    if kind == "verdicts":
        scores = [np.array(row) for row in ([1.0, 1, 0, 1, 0], [1.0, 0, 0, 0, 0], [1.0, 1, 1, 0, 0], [1.0, 0, 1, 1, 0])]
    result = permute_levels(np.concatenate(scores), np.repeat(np.arange(4), 5), np.tile((0, 0, 1, 1, 1), 4))
    assert result is not None
    assert (result.p_shift, result.p_change) == pytest.approx(exact_p_values(scores, 2), abs=0.02)


def test_permutation_methods_agree_on_three_levels_with_missing_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(12)
    levels, strata = np.tile(np.repeat((0, 1, 2), 3), 400), np.repeat(np.arange(400), 9)
    scores = (rng.random(3600) < 0.4 + 0.015 * levels).astype(float)
    used = rng.random(3600) < 0.8
    results = []
    monkeypatch.setattr(level_test, "CLEAR_COUNT", level_test.PERMUTATIONS)
    for most_outcomes, most_readings in ((512, 12), (0, 12), (0, 0)):
        monkeypatch.setattr(permuted_sums, "_MOST_OUTCOMES", most_outcomes)
        monkeypatch.setattr(permuted_sums, "_MOST_READINGS", most_readings)
        result = permute_levels(scores[used], strata[used], levels[used])
        assert result is not None
        assert result.p_change is not None
        results.append((result.p_shift, result.p_change))
    assert len(set(results)) == 3
    assert results[1] == pytest.approx(results[0], abs=0.04)
    assert results[2] == pytest.approx(results[0], abs=0.04)
    assert all(0.01 < p < 0.9 for p in results[0])


@pytest.mark.gate
def test_many_readings_need_little_memory() -> None:
    scores, strata = np.random.default_rng(13).random(120_000), np.repeat(np.arange(20_000), 6)
    tracemalloc.start()
    try:
        result = permute_levels(scores, strata, np.tile((0, 0, 0, 1, 1, 1), 20_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result is not None
    assert peak < 40 * scores.nbytes


def test_strata_with_one_level_give_no_test() -> None:
    assert permute_levels(np.arange(4.0), np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1])) is None


def test_retest_flips_are_the_share_of_differing_pairs_of_repeats() -> None:
    codes = np.array([0, 0, 1, 1, 1, 0, 2])
    requests = np.array([0, 0, 0, 1, 1, 2, 2])
    share = retest_flips(codes, requests, np.array([0, 1, 2]))
    assert share is not None
    assert share.value == pytest.approx((2 * 2 / 3 + 0 + 1) / 4)
    assert retest_flips(codes[:2], np.array([0, 1]), np.array([0, 1])) is None


def test_noise_floor_matches_the_difference_of_two_runs() -> None:
    assert noise_floor(0.1, 100) == pytest.approx(1.96 * np.sqrt(2 * 0.05 / 100), rel=1e-4)
    assert noise_floor(0.1, 10**9, variant=0.01) == pytest.approx(1.96 * np.sqrt(0.02), rel=1e-3)


def test_interval_of_a_component_that_may_be_0_contains_0() -> None:
    """A chi-squared interval of a tiny positive estimate excludes 0, has an arbitrary width, or cannot be computed."""
    rng, contained = np.random.default_rng(0), []
    for _ in range(100):
        observed = rng.standard_normal((40, 1, 1)) + 0.5 * rng.standard_normal((40, 3, 3))
        result = crossed_components(make_readings(observed))
        assert result is not None
        for name in (VARIANT, INTERACTION):
            interval = result.components[name].interval
            assert interval is not None
            assert interval[1] < 1
            contained.append(interval[0] == 0)
    assert np.mean(contained) > 0.93


def test_correlation_of_equal_scores_is_missing_with_a_reason() -> None:
    result = crossed_components(make_readings(np.ones((30, 2, 3))))
    assert result is not None
    assert (result.icc.value, result.icc.reason, result.retest_icc.reason) == (
        None, "all scores are equal", "all scores are equal",
    )  # fmt: skip
