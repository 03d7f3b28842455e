"""Agreement between judges: kappa against scikit-learn, and how often its interval covers the truth."""

from __future__ import annotations

import numpy as np
import pytest

from runner.statistics.agreement import Agreement, agreement


def judged(
    rng: np.random.Generator, datapoints: int, repeats: int, copied: float, verdicts: int = 2
) -> Agreement | None:
    """Two judges who each copy a common verdict with this chance, or else choose at random."""
    shape = (datapoints, repeats)
    common = rng.integers(0, verdicts, shape)
    first, second = (
        np.where(rng.random(shape) < copied, common, rng.integers(0, verdicts, shape)).ravel() for _ in range(2)
    )
    return agreement(first, second, np.repeat(np.arange(datapoints), repeats), datapoints)


@pytest.mark.gate
@pytest.mark.parametrize("seed", range(10))
def test_kappa_is_that_of_scikit_learn(seed: int) -> None:
    from sklearn.metrics import cohen_kappa_score

    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 3, (2, 60))
    found = agreement(first, second, np.arange(60), 60)
    assert found is not None
    assert found.kappa.value == pytest.approx(cohen_kappa_score(first, second), abs=1e-9)
    assert found.raw.value == np.mean(first == second)


@pytest.mark.full
@pytest.mark.parametrize(("datapoints", "repeats"), [(10, 1), (40, 1), (40, 3), (100, 3)])
def test_the_interval_covers_the_truth(datapoints: int, repeats: int) -> None:
    rng, covered = np.random.default_rng([datapoints, repeats]), 0
    for _ in range(400):
        found = judged(rng, datapoints, repeats, 0.9)
        assert found is not None
        low, high = found.kappa.interval or (0.0, 0.0)
        covered += low <= 0.81 <= high
    assert covered >= 0.92 * 400


@pytest.mark.full
@pytest.mark.parametrize(
    ("datapoints", "chances"),
    [
        (10, (0.475, 0.025, 0.025, 0.475)),
        (100, (0.85, 0.05, 0.05, 0.05)),
        (100, (0.925, 0.025, 0.025, 0.025)),
        (100, (0.49, 0.01, 0.01, 0.49)),
    ],
)
def test_the_interval_covers_the_truth_if_nearly_all_verdicts_are_equal(
    datapoints: int, chances: tuple[float, ...]
) -> None:
    """The chances that both judges accept, only the first, only the second, and none."""
    rng, covered, times = np.random.default_rng(1), 0, 2000
    accepted, unequal = chances[0] + chances[1], chances[1] + chances[2]
    truth = 1 - unequal / (2 * accepted * (1 - accepted))
    tables = np.unique(rng.multinomial(datapoints, chances, times), axis=0, return_counts=True)
    for table, count in zip(*tables, strict=True):
        cells = np.repeat(np.arange(4), table)
        found = agreement(cells // 2, cells % 2, np.arange(datapoints), datapoints)
        assert found is not None
        low, high = found.kappa.interval or (1.0, -1.0)
        covered += count * (low <= truth <= high)
    assert covered >= 0.93 * times
    if datapoints >= 100:  # 97 %, and two standard errors of a share of 2,000
        assert covered <= 0.9776 * times


def test_without_two_verdicts_or_two_groups_the_reason_is_given() -> None:
    same = np.ones(5, dtype=np.int64)
    always = agreement(same, same, np.arange(5), 5)
    alone = agreement(np.array([0, 1, 1]), np.array([0, 1, 0]), np.zeros(3, dtype=np.int64), 1)
    assert always is not None
    assert alone is not None
    assert (always.kappa.value, always.raw.value) == (None, 1.0)
    assert "always gave the same verdict" in (always.kappa.reason or "")
    assert alone.kappa.interval is None
    assert agreement(same[:0], same[:0], same[:0], 0) is None
