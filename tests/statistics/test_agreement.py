"""Agreement between judges, compared with other packages, and the coverage of its intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from runner.statistics.agreement import Agreement, Scale, agreement, answer_table, krippendorff_alpha
from runner.statistics.clustered_means import Codes, Floats


def simulate_agreement(
    rng: np.random.Generator, datapoints: int, repeats: int, copied: float, verdicts: int = 2
) -> Agreement | None:
    """Return the agreement of two judges who copy a verdict with probability `copied`, or else choose at random."""
    shape = (datapoints, repeats)
    common = rng.integers(0, verdicts, shape)
    first, second = (
        np.where(rng.random(shape) < copied, common, rng.integers(0, verdicts, shape)).ravel() for _ in range(2)
    )
    return agreement(first, second, np.repeat(np.arange(datapoints), repeats), datapoints)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10))
def test_kappa_matches_scikit_learn(seed: int) -> None:
    from sklearn.metrics import cohen_kappa_score

    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 3, (2, 60))
    result = agreement(first, second, np.arange(60), 60)
    assert result is not None
    assert result.kappa.value == pytest.approx(cohen_kappa_score(first, second), abs=1e-9)
    assert result.raw.value == np.mean(first == second)


@pytest.mark.full
@pytest.mark.parametrize(("datapoints", "repeats"), [(10, 1), (40, 1), (40, 3), (100, 3)])
def test_kappa_interval_covers_the_truth(datapoints: int, repeats: int) -> None:
    rng, covered = np.random.default_rng([datapoints, repeats]), 0
    for _ in range(400):
        result = simulate_agreement(rng, datapoints, repeats, 0.9)
        assert result is not None
        low, high = result.kappa.interval or (0.0, 0.0)
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
def test_kappa_interval_covers_the_truth_if_nearly_all_verdicts_are_equal(
    datapoints: int, chances: tuple[float, ...]
) -> None:
    """`chances` are the probabilities that both judges accept, only the first, only the second, and neither."""
    rng, covered, times = np.random.default_rng(1), 0, 2000
    accepted, unequal = chances[0] + chances[1], chances[1] + chances[2]
    truth = 1 - unequal / (2 * accepted * (1 - accepted))
    tables = np.unique(rng.multinomial(datapoints, chances, times), axis=0, return_counts=True)
    for table, count in zip(*tables, strict=True):
        cells = np.repeat(np.arange(4), table)
        result = agreement(cells // 2, cells % 2, np.arange(datapoints), datapoints)
        assert result is not None
        low, high = result.kappa.interval or (1.0, -1.0)
        covered += count * (low <= truth <= high)
    assert covered >= 0.93 * times
    if datapoints >= 100:  # 97 % plus two standard errors of a share of 2,000
        assert covered <= 0.9776 * times


def test_missing_kappa_or_interval_has_a_reason() -> None:
    same = np.ones(5, dtype=np.int64)
    constant_judges = agreement(same, same, np.arange(5), 5)
    single_group = agreement(np.array([0, 1, 1]), np.array([0, 1, 0]), np.zeros(3, dtype=np.int64), 1)
    assert constant_judges is not None
    assert single_group is not None
    assert (constant_judges.kappa.value, constant_judges.raw.value) == (None, 1.0)
    assert "always gave the same verdict" in (constant_judges.kappa.reason or "")
    assert single_group.kappa.interval is None
    assert agreement(same[:0], same[:0], same[:0], 0) is None


def simulate_readings(seed: int, units: int = 60, readers: int = 4, missing: float = 0.3) -> tuple[Floats, Codes]:
    """Return answers 0, 1, 2 and 4 of readers, some of them missing, and groups of two units."""
    rng = np.random.default_rng(seed)
    truth = rng.choice((0.0, 1.0, 2.0, 4.0), units)
    answers = np.where(
        rng.random((units, readers)) < 0.6, truth[:, None], rng.choice((0.0, 1.0, 4.0), (units, readers))
    )
    return np.where(rng.random((units, readers)) < missing, np.nan, answers), np.arange(units) // 2


@pytest.mark.parametrize("scale", ["nominal", "ordinal", "interval"])
def test_alpha_matches_the_krippendorff_package(scale: Scale) -> None:
    import krippendorff

    for seed in range(10):
        ratings, groups = simulate_readings(seed)
        alpha = krippendorff_alpha(ratings, groups, scale)
        assert alpha.value == pytest.approx(krippendorff.alpha(ratings.T, level_of_measurement=scale), abs=1e-9)
        low, high = alpha.interval or (math.nan, math.nan)
        assert low < (alpha.value or math.nan) < high


def test_missing_alpha_or_interval_has_a_reason() -> None:
    same, groups = np.ones((20, 2)), np.arange(20)
    assert "always gave the same answer" in (krippendorff_alpha(same, groups).reason or "")
    assert krippendorff_alpha(np.full((20, 2), np.nan), groups).reason == "no unit has two answers"
    same[0, 0] = 0
    nearly_constant = krippendorff_alpha(same, groups)
    assert nearly_constant.value == pytest.approx(0)
    assert nearly_constant.interval is None
    assert "1 of 20 groups have another answer" in (nearly_constant.reason or "")


@pytest.mark.gate
def test_answer_table_matches_scikit_learn() -> None:
    from sklearn.metrics import confusion_matrix, recall_score

    rng = np.random.default_rng(1)
    labels, answers, groups = rng.integers(0, 3, 90) * 1.0, rng.integers(0, 3, 90) * 1.0, np.arange(90) // 3
    table = answer_table(labels, answers, groups)
    assert table.counts.tolist() == confusion_matrix(labels, answers).tolist()
    recalls = [share.value for share in table.recalls if share is not None]
    assert recalls == pytest.approx(recall_score(labels, answers, average=None), abs=1e-9)
    weights = np.where(answers == 0, 3.0, 1.0)
    weighted = answer_table(labels, answers, groups, weights).recalls
    expected = recall_score(labels, answers, average=None, sample_weight=weights)
    assert [share.value for share in weighted if share is not None] == pytest.approx(expected, abs=1e-9)


@pytest.mark.full
def test_recall_error_matches_statsmodels() -> None:
    import statsmodels.api as sm

    rng = np.random.default_rng(2)
    labels, answers, groups = rng.integers(0, 2, 90) * 1.0, rng.integers(0, 2, 90) * 1.0, np.arange(90) // 3
    weights = rng.uniform(1, 3, 90)
    recall, has_label = answer_table(labels, answers, groups, weights).recalls[1], labels == 1
    fit = sm.WLS(answers[has_label], np.ones(has_label.sum()), weights=weights[has_label]).fit(
        cov_type="cluster", cov_kwds={"groups": groups[has_label], "use_correction": False}
    )
    assert recall is not None
    assert recall.stderr is not None
    count = len(np.unique(groups[has_label]))
    assert recall.stderr == pytest.approx(float(fit.bse[0]) * math.sqrt(count / (count - 1)), abs=1e-9)


def test_answer_that_is_never_true_has_no_recall() -> None:
    table = answer_table(np.zeros(5), np.array([0.0, 0, 0, 1, 1]), np.arange(5))
    assert (table.answers, table.counts.tolist()) == ((0.0, 1.0), [[3, 2], [0, 0]])
    assert [share and share.value for share in table.recalls] == [0.6, None]
    assert [share.value for share in table.base_rates] == [1.0, 0.0]
