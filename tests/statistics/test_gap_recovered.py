"""Performance gap recovered: Fieller's interval, compared with SciPy's t-test, and its coverage."""

from __future__ import annotations

import numpy as np
import pytest

from runner.statistics.gap_recovered import gap_recovered


@pytest.mark.parametrize(("groups", "repeats"), [(40, 1), (100, 3), (400, 1)])
def test_gap_recovered_interval_covers_the_truth(groups: int, repeats: int) -> None:
    rng, covered, interval_count = np.random.default_rng([groups, repeats]), 0, 0
    for _ in range(600):
        common, shape = rng.random((groups, 1)), (groups, repeats)
        weak, score, strong = (
            (np.where(rng.random(shape) < 0.7, common, rng.random(shape)) < accuracy).mean(axis=1)
            for accuracy in (0.5, 0.65, 0.9)
        )
        result = gap_recovered((score - weak).tolist(), (strong - weak).tolist())
        if result.low is not None and result.high is not None:
            interval_count += 1
            covered += result.low <= 0.375 <= result.high
    assert interval_count >= 590
    assert covered >= 0.93 * interval_count


@pytest.mark.parametrize("seed", range(10))
def test_scipys_t_test_just_rejects_at_the_ends_of_the_interval(seed: int) -> None:
    """The interval contains the shares r for which the mean of gain - r * gap may be 0."""
    from scipy.stats import ttest_1samp

    rng = np.random.default_rng(seed)
    gain, gap = rng.normal(0.2, 0.3, 60), rng.normal(0.5, 0.4, 60)
    result = gap_recovered(gain.tolist(), gap.tolist())
    for end in (result.low, result.high):
        assert end is not None
        assert ttest_1samp(gain - end * gap, 0).pvalue == pytest.approx(0.05, abs=1e-9)


def test_missing_gap_recovered_has_a_reason() -> None:
    assert gap_recovered([0.1, 0.2], [0.0, -0.1]).reason == "the ceiling is not better than the weak system"
    noisy_result = gap_recovered([0.1, -0.1, 0.0], [1.0, -0.9, 0.0])
    assert noisy_result.low is None
    assert "not significant" in (noisy_result.reason or "")
    single_group = gap_recovered([0.5], [1.0])
    assert (single_group.value, single_group.low) == (0.5, None)
