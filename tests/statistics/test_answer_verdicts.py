"""Scores of distributions over answers, and score differences, compared with scikit-learn and closed forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss

from runner.results.metric_computation import Metrics
from runner.statistics.answer_verdicts import ArguedAnswers, brier_score, log_score
from runner.statistics.calibration import Forecasts
from runner.statistics.verdicts import UNSET

RNG = np.random.default_rng(3)
K = 4
PROBABILITIES = RNG.dirichlet(np.ones(K), size=300)
RIGHT = RNG.integers(K, size=300)


def make_argued_answers(is_right: Any, won: Any, p: Any) -> ArguedAnswers:
    n = len(is_right)
    return ArguedAnswers(np.array(is_right), np.array(won), np.array(p, float), np.arange(n), n, is_grouped=False)


def test_log_score_matches_scikit_learn() -> None:
    scores = [log_score(float(p[right])) for p, right in zip(PROBABILITIES, RIGHT, strict=True)]
    clipped = np.clip(PROBABILITIES, 0.001, 0.999)
    assert min(PROBABILITIES[range(300), RIGHT]) > 0.001 or len(scores) == 300
    expected = -np.mean(np.log(clipped[range(300), RIGHT]))
    assert np.mean(scores) == pytest.approx(expected)
    inner = PROBABILITIES[range(300), RIGHT] > 0.001
    assert np.mean(np.array(scores)[inner]) == pytest.approx(
        log_loss(RIGHT[inner], PROBABILITIES[inner], labels=range(K)), rel=1e-9
    )


def test_brier_score_matches_scikit_learn() -> None:
    scores = [brier_score(list(map(float, p)), {int(right)}) for p, right in zip(PROBABILITIES, RIGHT, strict=True)]
    expected = brier_score_loss(RIGHT, PROBABILITIES, labels=range(K), scale_by_half=False)
    assert np.mean(scores) == pytest.approx(expected)


def test_several_right_answers_count_as_one_class() -> None:
    for p, right in zip(PROBABILITIES[:50], RIGHT[:50], strict=True):
        merged = [p[right] + p[(right + 1) % K], p[(right + 2) % K], p[(right + 3) % K]]
        assert brier_score(list(map(float, p)), {int(right), int((right + 1) % K)}) == pytest.approx(
            brier_score(merged, {0})
        )


def test_brier_and_log_scores_match_their_closed_forms() -> None:
    assert brier_score([0.25] * 4, {2}) == pytest.approx(0.75)
    assert brier_score([0, 1, 0], {1}) == 0
    assert brier_score([1, 0, 0], {1}) == 2
    assert log_score(0.25) == pytest.approx(math.log(4))
    assert log_score(0.0) == pytest.approx(math.log(1000))
    assert log_score(1.0) == pytest.approx(-math.log(0.999))


def test_calibration_error_is_the_distance_of_probability_and_share_of_right_answers() -> None:
    """A judge that is right in 7 of 10 games at 0.9 has a calibration error of 0.2."""
    forecasts = Forecasts(np.full(10, 0.9), np.array([1] * 7 + [0] * 3), np.arange(10), 10)
    assert forecasts.calibration_error.value == pytest.approx(0.2)


def test_log_score_difference_matches_the_papers_example() -> None:
    """arXiv 2504.03731: a judge believes the honest agent with 0.8 and the lying one with 0.6."""
    difference = make_argued_answers([1, 0] * 5, [1, 1] * 5, [0.8, 0.6] * 5).log_score_difference
    assert difference is not None
    assert difference.value == pytest.approx(math.log(0.8) - math.log(0.6))


def test_score_differences_match_the_definition_of_the_papers_library() -> None:
    """The paper's library computes the mean over questions of the sum of score * value, here for two answers."""
    p = np.clip(PROBABILITIES[:, :2], 0.01, 0.99)  # of the right and of the wrong answer, when argued for
    won = (p > 0.5).astype(int)
    by_question = np.log(p[:, 0]) - np.log(p[:, 1])
    games = make_argued_answers([1, 0] * 300, won.reshape(-1), p.reshape(-1))
    log_difference, difference = games.log_score_difference, games.score_difference
    assert log_difference is not None
    assert log_difference.value == pytest.approx(by_question.mean())
    assert difference is not None
    assert difference.value == pytest.approx((won[:, 0] - won[:, 1]).mean())


def test_player_that_chooses_its_answer_has_a_win_rate_and_no_difference() -> None:
    games = make_argued_answers([UNSET] * 4, [1, 0, 1, 1], [0.5] * 4)
    assert games.win_rate is not None
    assert games.win_rate.value == 0.75
    assert games.score_difference is None
    assert games.log_score_difference is None


def test_games_without_probabilities_have_no_log_score_difference() -> None:
    games = make_argued_answers([1, 0], [1, 0], [math.nan, math.nan])
    assert games.log_score_difference is None
    assert games.score_difference is not None


def test_metrics_of_binary_verdicts_do_not_contain_those_of_listed_answers() -> None:
    from runner.game.protocols.loader import load_protocol

    names = {row.metric for row in Metrics(load_protocol("nip")).estimates()}
    assert not {name for name in names if name.startswith("answer_") or name == "win_rate"}
    listed = {row.metric for row in Metrics(load_protocol("answer_debate")).estimates()}
    assert not listed & {"precision", "recall", "accuracy_0", "accuracy_1", "decision", "balanced_accuracy"}
