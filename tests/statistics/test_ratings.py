"""Ratings of players, compared with logistic regression, their intervals, the intransitivity test, and pairings."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from runner.statistics.pairings import Pairing, every_pairing, swiss_round
from runner.statistics.ratings import (
    ELO,
    SIDES,
    RatedGames,
    RatingModel,
    design_rows,
    intransitivity,
    logistic,
    most_informative,
)


def simulate_games(
    strengths: list[float],
    datapoints: int,
    seed: int = 0,
    *,
    cycle_strength: float = 0.0,
    advantage: float = 0.4,
    datapoint_spread: float = 0.0,
) -> RatedGames:
    """Simulate games of all pairs of players with these strengths, four for each pair and datapoint.

    `datapoint_spread` is the standard deviation, in log odds, of a datapoint's advantage for the right side.
    """
    rng, count = np.random.default_rng(seed), len(strengths)
    games = [
        (right, wrong, is_first, point)
        for point in range(datapoints)
        for first, second in combinations(range(count), 2)
        for right, wrong in ((first, second), (second, first))
        for is_first in (True, False)
    ]
    right, wrong, is_first, points = (np.array(column) for column in zip(*games, strict=True))
    judge = np.zeros(len(games), dtype=int)
    log_odds = np.array(strengths)[right] - np.array(strengths)[wrong] + advantage
    for winner, loser in ((0, 1), (1, 2), (2, 0)):
        log_odds += cycle_strength * ((right == winner) & (wrong == loser)) - cycle_strength * (
            (right == loser) & (wrong == winner)
        )
    if datapoint_spread:
        log_odds += rng.normal(0, datapoint_spread, datapoints)[points]
    won = rng.random(len(games)) < logistic(log_odds)
    return RatedGames(count, 1, right, wrong, judge, is_first, won, points)


def make_empty_games(players: int) -> RatedGames:
    empty = np.zeros(0, dtype=int)
    return RatedGames(players, 1, empty, empty, empty, empty.astype(bool), empty.astype(bool), empty)


@pytest.mark.gate
def test_ratings_match_logistic_regression_with_half_won_games_added() -> None:
    from sklearn.linear_model import LogisticRegression

    games = simulate_games([0.8, 0.0, -0.8], 20)
    model, size = RatingModel(games), games.rows.shape[1]
    rows = np.concatenate([games.rows, np.eye(size), np.eye(size)])
    won = np.concatenate([games.right_won, np.ones(size), np.zeros(size)])
    weights = np.concatenate([np.ones(len(games)), np.full(2 * size, 0.5)])
    reference = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10, max_iter=10_000)
    reference.fit(rows, won, sample_weight=weights)
    assert model.coefficients == pytest.approx(reference.coef_[0], abs=1e-4)


def test_intervals_contain_the_planted_ratings() -> None:
    strengths, covered = [0.8, 0.3, -0.3, -0.8], []
    for seed in range(150):
        model = RatingModel(simulate_games(strengths, 15, seed))
        for player, strength in enumerate(strengths):
            low, high = model.rating(player, "overall").interval or (0.0, 0.0)
            covered.append(low <= strength * ELO <= high)
        low, high = model.right_side_chance(0).interval or (0.0, 0.0)
        covered.append(low <= float(logistic(np.asarray(0.4))) <= high)
    assert np.mean(covered) >= 0.93


@pytest.mark.full
@pytest.mark.parametrize("spread", [1.0, 2.0])
def test_intervals_contain_the_averages_over_datapoints_that_differ(spread: float) -> None:
    strengths, covered = [0.8, 0.3, -0.3, -0.8], []
    large = RatingModel(simulate_games(strengths, 4000, 1000, datapoint_spread=spread))
    assert 0.5 < (large.rating(0, "overall").value or 0) / (0.8 * ELO) < 0.95  # below the planted strength
    truth = {(player, side): large.rating(player, side).value or 0 for player in range(4) for side in SIDES}
    for seed in range(150):
        model = RatingModel(simulate_games(strengths, 15, seed, datapoint_spread=spread))
        for (player, side), value in truth.items():
            low, high = model.rating(player, side).interval or (0.0, 0.0)
            covered.append(low <= value <= high)
    assert np.mean(covered) >= 0.93


def test_players_have_separate_ratings_for_the_right_and_the_wrong_side() -> None:
    games = simulate_games([0.0, 0.0, 0.0], 60)
    log_odds = games.rows @ np.array([1.0, 0, -1, -1, 0, 1, 0, 0, 0, 0])
    won = np.random.default_rng(0).random(len(games)) < logistic(log_odds)
    model = RatingModel(
        RatedGames(3, 1, games.right, games.wrong, games.judge, games.right_is_first, won, games.clusters)
    )
    for side, sign in (("right", 1), ("wrong", -1)):
        first, last = (model.rating(player, side) for player in (0, 2))  # type: ignore[arg-type]
        assert first.value == pytest.approx(sign * ELO, abs=60)
        assert last.value == pytest.approx(-sign * ELO, abs=60)


def test_player_who_wins_every_game_has_a_finite_rating_with_a_wide_interval() -> None:
    games = simulate_games([0.0, 0.0], 5)
    won = games.right == 0
    model = RatingModel(
        RatedGames(2, 1, games.right, games.wrong, games.judge, games.right_is_first, won, games.clusters)
    )
    difference = model.difference(0, 1, "overall")
    assert difference.value is not None
    assert difference.interval is not None
    assert 300 < difference.value < 1500
    assert difference.interval[1] - difference.interval[0] > 500


def test_equal_results_of_all_games_leave_the_difference_of_players_uncertain() -> None:
    games = simulate_games([0.0, 0.0], 5)
    won = np.ones(len(games), dtype=bool)
    model = RatingModel(
        RatedGames(2, 1, games.right, games.wrong, games.judge, games.right_is_first, won, games.clusters)
    )
    low, high = model.difference(0, 1, "overall").interval or (0.0, 0.0)
    assert low < -200
    assert high > 200


def test_undetermined_rating_has_a_reason_instead_of_a_value() -> None:
    rating = RatingModel(make_empty_games(3)).rating(0, "overall")
    assert (rating.value, rating.reason) == (None, "no games")
    games = simulate_games([0.0, 0.0], 5)
    games_without_player = RatedGames(
        3, 1, games.right, games.wrong, games.judge, games.right_is_first, games.right_won, games.clusters
    )
    rating = RatingModel(games_without_player).rating(2, "right")
    assert (rating.value, rating.reason) == (None, "the games played so far do not determine it")
    assert RatingModel(games_without_player).difference(0, 1, "overall").value is not None


def test_one_datapoint_gives_ratings_without_intervals() -> None:
    rating = RatingModel(simulate_games([0.5, -0.5], 1)).rating(0, "overall")
    assert rating.value is not None
    assert rating.interval is None


def test_planted_cycle_of_three_players_is_detected() -> None:
    result = intransitivity(RatingModel(simulate_games([0.3, 0.0, -0.3, 0.2], 25, cycle_strength=1.0)))
    assert result.p is not None
    assert result.p < 0.05
    assert result.triple in ((0, 1, 2), (1, 2, 0), (2, 0, 1))


def test_intransitivity_test_rarely_gives_a_false_alarm() -> None:
    results = [intransitivity(RatingModel(simulate_games([0.8, 0.0, -0.8], 12, seed)), seed).p for seed in range(200)]
    assert sum(p is not None and p < 0.05 for p in results) <= 18  # more has a probability below 1 % at a rate of 5 %


def test_results_that_do_not_depend_on_the_players_show_no_circle() -> None:
    games = simulate_games([0.0, 0.0, 0.0], 20)
    model = RatingModel(replace(games, right_won=games.clusters % 3 > 0))
    assert intransitivity(model).p == 1.0


@pytest.mark.parametrize(
    ("games", "reason"),
    [
        (simulate_games([0.0, 0.0], 10), "needs three players"),
        (simulate_games([0.0, 0.0, 0.0], 3), "needs games about 6 datapoints or more"),
        (make_empty_games(3), "needs games about 6 datapoints or more"),
    ],
)
def test_missing_intransitivity_test_has_a_reason(games: RatedGames, reason: str) -> None:
    result = intransitivity(RatingModel(games))
    assert (result.p, result.triple, result.reason) == (None, None, reason)


def test_intransitivity_test_of_many_players_needs_little_memory() -> None:
    model = RatingModel(simulate_games([0.1 * player for player in range(12)], 40))
    tracemalloc.start()
    try:
        assert intransitivity(model).p is not None
        numbers_of_games_and_triples = len(model.games) * math.comb(12, 3)
        assert tracemalloc.get_traced_memory()[1] < 8 * numbers_of_games_and_triples
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("players", [2, 3, 4, 5, 8])
def test_round_robin_has_every_pairing_once(players: int) -> None:
    pairings = every_pairing(players, 2)
    assert sorted(pairings) == [Pairing(*pair, judge) for pair in combinations(range(players), 2) for judge in (0, 1)]


def test_adaptive_pairing_avoids_games_whose_result_is_known() -> None:
    games = simulate_games([4.5, 1.5, -1.5, -4.5], 10)
    model = RatingModel(games)
    chosen = most_informative(model, every_pairing(4, 1), lambda _: 8)
    assert chosen in (Pairing(0, 1, 0), Pairing(1, 2, 0), Pairing(2, 3, 0))
    assert chosen == most_informative(RatingModel(games), every_pairing(4, 1), lambda _: 8)


def test_adaptive_pairing_avoids_pairings_whose_games_have_no_winner() -> None:
    model, pairings = RatingModel(make_empty_games(3)), every_pairing(3, 1)
    first = most_informative(model, pairings, lambda _: 8)
    assert most_informative(model, pairings, lambda pairing: 0.1 if pairing == first else 8) != first


def test_swiss_round_pairs_neighbors_who_have_met_least_often() -> None:
    assert swiss_round([30.0, 10.0, 20.0, 0.0], {}) == [(0, 2), (1, 3)]
    assert swiss_round([30.0, 10.0, 20.0, 0.0], {(0, 2): 1}) == [(0, 1), (2, 3)]


def test_player_who_played_most_rests_in_an_odd_swiss_round() -> None:
    assert swiss_round([3.0, 2.0, 1.0], {}) == [(0, 1)]
    assert swiss_round([3.0, 2.0, 1.0], {(0, 1): 1}) == [(0, 2)]
    assert swiss_round([3.0, 2.0, 1.0], {(0, 1): 1, (0, 2): 1}) == [(1, 2)]


def test_design_rows_include_the_seat_of_the_right_side() -> None:
    rows = design_rows(
        2, 1, np.array([0, 0]), np.array([1, 1]), np.array([0, 0]), right_is_first=np.array([True, False])
    )
    assert rows.tolist() == [[1, 0, 0, -1, 0.5, 0.5, 1], [1, 0, 0, -1, -0.5, -0.5, 1]]
