"""Performance gap recovered: Fieller's interval against SciPy's t-test, and how often it covers the truth."""

from __future__ import annotations

import numpy as np
import pytest

from runner.statistics.gap_recovered import gap_recovered


@pytest.mark.parametrize(("groups", "repeats"), [(40, 1), (100, 3), (400, 1)])
def test_the_interval_covers_the_truth(groups: int, repeats: int) -> None:
    rng, covered, known = np.random.default_rng([groups, repeats]), 0, 0
    for _ in range(600):
        common, shape = rng.random((groups, 1)), (groups, repeats)
        weak, score, strong = (
            (np.where(rng.random(shape) < 0.7, common, rng.random(shape)) < accuracy).mean(axis=1)
            for accuracy in (0.5, 0.65, 0.9)
        )
        found = gap_recovered((score - weak).tolist(), (strong - weak).tolist())
        if found.low is not None and found.high is not None:
            known += 1
            covered += found.low <= 0.375 <= found.high
    assert known >= 590
    assert covered >= 0.93 * known


@pytest.mark.parametrize("seed", range(10))
def test_at_the_ends_of_the_interval_the_t_test_of_scipy_just_rejects(seed: int) -> None:
    """The interval has the shares r for which the mean of gain - r * gap may be 0."""
    from scipy.stats import ttest_1samp

    rng = np.random.default_rng(seed)
    gain, gap = rng.normal(0.2, 0.3, 60), rng.normal(0.5, 0.4, 60)
    found = gap_recovered(gain.tolist(), gap.tolist())
    for end in (found.low, found.high):
        assert end is not None
        assert ttest_1samp(gain - end * gap, 0).pvalue == pytest.approx(0.05, abs=1e-9)


def test_without_a_gap_there_is_a_reason_instead_of_a_number() -> None:
    assert gap_recovered([0.1, 0.2], [0.0, -0.1]).reason == "the ceiling is not better than the weak system"
    noisy = gap_recovered([0.1, -0.1, 0.0], [1.0, -0.9, 0.0])
    assert noisy.low is None
    assert "not significant" in (noisy.reason or "")
    alone = gap_recovered([0.5], [1.0])
    assert (alone.value, alone.low) == (0.5, None)
