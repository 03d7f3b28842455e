"""The difference of two d', compared with an enumeration, and the score difference by log-probabilities."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from runner.statistics.signal_detection import sensitivity_difference
from runner.statistics.verdicts import Verdicts

TRUE_GAIN = 0.8
"""ln p - ln (1 - p) is the log odds, whose mean is 0.8."""


@pytest.mark.parametrize("seed", range(5))
def test_sensitivity_difference_matches_all_exchanges_of_the_judges(seed: int) -> None:
    from scipy.stats import norm

    rng, groups = np.random.default_rng(seed), 7
    games = np.array([3, 3])
    counts = np.stack([np.column_stack([rng.binomial(3, share, groups) for share in (0.8, 0.3)]) for _ in range(2)])

    def d_prime(accepted: np.ndarray) -> float:
        rates = (accepted.sum(axis=0) + 0.5) / (groups * games + 1)
        return float(norm.ppf(rates[0]) - norm.ppf(rates[1]))

    observed, extreme = d_prime(counts[1]) - d_prime(counts[0]), 0
    for exchanged in product((0, 1), repeat=groups):
        order = np.array(exchanged)
        rows = np.arange(groups)
        extreme += abs(d_prime(counts[1 - order, rows]) - d_prime(counts[order, rows])) >= abs(observed) - 1e-12
    systems = [[[int(hits), 3, int(alarms), 3] for hits, alarms in of_judge] for of_judge in counts]
    result = sensitivity_difference(systems[0], systems[1])
    assert result is not None
    assert result.difference == pytest.approx(observed, abs=1e-12)
    assert result.p == pytest.approx(extreme / 2**groups, abs=1e-12)
    assert (result.ci_low <= 0 <= result.ci_high) == (result.p > 0.05)


@pytest.mark.parametrize(("groups", "repeats"), [(40, 1), (100, 3)])
def test_log_probability_gain_is_the_mean_and_covers_the_truth(groups: int, repeats: int) -> None:
    rng, covered = np.random.default_rng([groups, repeats]), 0
    for _ in range(300):
        labels = np.repeat(np.arange(groups) % 2, repeats)
        points = np.repeat(np.arange(groups), repeats)
        log_odds = (2 * labels - 1) * 0.8 + rng.normal(0, 0.5, groups)[points] + rng.normal(0, 0.7, len(labels))
        p = 1 / (1 + np.exp(-log_odds))
        stances = rng.integers(0, 2, len(labels))
        verdicts = Verdicts(labels, (p > 0.5).astype(int), points, points, groups, grouped=False)
        gain = verdicts.log_probability_gain(stances, p)
        assert gain is not None
        assert gain.interval is not None
        score = np.log(np.where(stances == 1, p, 1 - p))
        expected = score[stances == labels].mean() - score[stances != labels].mean()
        assert gain.value == pytest.approx(expected, abs=1e-9)
        covered += gain.interval[0] <= TRUE_GAIN <= gain.interval[1]
    assert 0.92 * 300 <= covered <= 0.985 * 300
