"""Measures of monitors: curves as in other libraries, expected values for ties, and no value without enough games."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from runner.statistics.calibration import Forecasts
from runner.statistics.monitoring.order_measures import MeasureDifference, OrderMeasure
from runner.statistics.monitoring.ranked_games import BUDGETS, RankedGames, ranked_games


def simulate_monitor(
    groups: int = 60, *, separation: float = 1.5, attack_share: float = 0.3, digits: int | None = None, seed: int = 0
) -> RankedGames:
    """Return games in groups of one to four, with a normal suspicion that may be rounded."""
    rng = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(groups), rng.integers(1, 5, groups))
    is_attack = rng.random(len(clusters)) < attack_share
    suspicion = 1 / (1 + np.exp(-rng.normal(separation * is_attack, 1)))
    suspicion = suspicion if digits is None else np.round(suspicion, digits)
    return RankedGames(1 - suspicion, is_attack, clusters, groups)


def make_games(*levels: str) -> RankedGames:
    """Return games by level, most suspicious first. `a` is an attack, `b` a benign game; each game is a group."""
    letters = "".join(levels)
    p_accept = np.concatenate([np.full(len(level), 0.1 * number) for number, level in enumerate(levels)])
    is_attack = np.array([letter == "a" for letter in letters])
    return RankedGames(p_accept, is_attack, np.arange(len(letters)), len(letters))


@pytest.mark.parametrize("digits", [None, 1])
def test_roc_curve_matches_scikit_learn(digits: int | None) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    games = simulate_monitor(digits=digits)
    false_rates, true_rates, _ = metrics.roc_curve(games.is_attack, -games.p_accept, drop_intermediate=False)
    rates = np.array([0.013, 0.05, 0.1, 0.37, 0.5, 0.99])
    assert games.true_positive_rates(rates) == pytest.approx(np.interp(rates, false_rates, true_rates))
    forecasts = Forecasts(games.p_accept, 1 - games.is_attack.astype(int), games.clusters, games.total)
    assert forecasts.auroc is not None
    assert forecasts.auroc.value == pytest.approx(metrics.roc_auc_score(games.is_attack, -games.p_accept))


def test_threshold_at_the_rate_flags_all_attacks_above_the_next_benign_game() -> None:
    games = make_games("a", "b", "a", "a", "b", "a", *"bbbbbbbb")
    assert games.true_positive_rates(np.array([0.1, 0.2, 0.05])).tolist() == [0.75, 1.0, 0.25]


def test_threshold_is_the_lowest_flagged_suspicion() -> None:
    points = {point.share: point for point in make_games("a", "b", "aabb", "a", *"bbbbbbb").roc_curve()}
    assert points[0.1].threshold == pytest.approx(0.9)
    assert points[0.2].threshold == pytest.approx(0.8)  # one of the two benign games with this suspicion
    assert points[0.3].threshold == pytest.approx(0.7)
    assert [points[rate].attacks_found for rate in (0.1, 0.2, 0.3)] == [0.25, 0.5, 1.0]


def test_equal_suspicions_count_as_the_mean_over_all_orders() -> None:
    levels = ("a", "abb", "ab", "bb")
    games, budgets = make_games(*levels), np.array([0.25, 0.5, 0.75])
    attacks_by_order = [
        make_games(levels[0], *second, *third, *levels[3]).attacks_found(budgets)
        for second in permutations(levels[1])
        for third in permutations(levels[2])
    ]
    assert games.attacks_found(budgets) == pytest.approx(np.mean(attacks_by_order, axis=0))
    assert games.true_positive_rates(np.array([0.1, 0.2, 0.4])).tolist() == pytest.approx([5 / 12, 1 / 2, 2 / 3])


def test_tiny_probabilities_of_accept_keep_their_order() -> None:
    p = np.concatenate([np.full(50, 1e-30), np.full(50, 1e-20), np.linspace(0.1, 0.9, 100)])
    labels = np.array([0] * 50 + [1] * 50 + [0, 1] * 50)
    forecasts = Forecasts(p, labels, np.arange(200), 200)
    quantity = forecasts.true_positive_rate(0.1)
    assert quantity is not None
    assert quantity.value == pytest.approx(0.5)  # all attacks at 1e-30, before the first benign game


def test_false_positive_rate_needs_enough_benign_games() -> None:
    too_few, enough = make_games("a" * 5, "b" * 99), make_games("a" * 5, "b" * 100)
    assert too_few.rate_measure(0.01) is None
    assert too_few.missing_reason(0.01) == "a false positive rate of 1 % needs at least 100 benign games, not 99"
    assert too_few.rate_measure(0.05) is not None
    assert enough.rate_measure(0.01) is not None
    assert min(point.share for point in too_few.roc_curve()) == 0.02


def test_interval_of_a_rate_includes_the_error_of_the_threshold() -> None:
    """With 100 benign games, the threshold of 1 % may be above all of them, so that even a rate of 0 is possible."""
    rng = np.random.default_rng(0)
    suspicion, is_attack = rng.random(300), np.arange(300) < 200
    suspicion[is_attack] = 0.5 + suspicion[is_attack] / 2
    measure = RankedGames(1 - suspicion, is_attack, np.arange(300), 300).rate_measure(0.01)
    assert measure is not None
    low, high = measure.interval_at(0.95)
    assert low == 0.0
    assert measure.value <= high < 0.5


@pytest.mark.parametrize("digits", [None, 1])
def test_audit_curve_is_within_its_band_and_never_decreases(digits: int | None) -> None:
    games = simulate_monitor(digits=digits)
    curve = games.audit_curve()
    assert [point.share for point in curve] == list(BUDGETS)
    for point in curve:
        assert point.ci_low is not None
        assert point.ci_high is not None
        assert (
            0
            <= point.ci_low
            <= point.attacks_found
            <= point.ci_high
            <= min(1, point.share * games.n / games.attacks) + 1e-9
        )
    for ends in ([point.ci_low for point in curve], [point.ci_high for point in curve]):
        assert ends == sorted(end for end in ends if end is not None)
    thresholds = [point.threshold for point in curve]
    assert thresholds == sorted(thresholds, reverse=True)
    assert all(point.ci_low is None for point in games.audit_curve(has_intervals=False))


def test_band_is_wide_within_games_of_equal_suspicion() -> None:
    band = {point.share: point for point in make_games("a" * 10 + "b" * 10, "b" * 100).audit_curve()}
    assert band[0.5].attacks_found == 1
    assert band[0.5].ci_low is not None
    assert band[0.5].ci_low < 0.8


def test_curves_do_not_depend_on_the_order_of_the_games() -> None:
    games = simulate_monitor(digits=1)
    order = np.random.default_rng(1).permutation(games.n)
    shuffled = RankedGames(games.p_accept[order], games.is_attack[order], games.clusters[order], games.total)
    assert shuffled.audit_curve() == games.audit_curve()
    assert shuffled.roc_curve() == games.roc_curve()


def test_copies_of_games_in_their_groups_do_not_narrow_the_interval() -> None:
    games = simulate_monitor(groups=100)
    copies = RankedGames(
        np.tile(games.p_accept, 3), np.tile(games.is_attack, 3), np.tile(games.clusters, 3), games.total
    )
    widths = []
    for games_to_measure in (games, copies):
        measure = games_to_measure.rate_measure(0.1)
        assert measure is not None
        low, high = measure.interval_at(0.95)
        widths.append(high - low)
    assert widths[1] > 0.9 * widths[0]


def test_perfect_monitor_finds_attacks_first_and_blind_monitor_only_their_share() -> None:
    perfect = make_games("a" * 20, "b" * 80)
    assert perfect.attacks_found(np.array([0.1, 0.2, 0.5])).tolist() == [0.5, 1.0, 1.0]
    blind = make_games("a" * 20 + "b" * 80)
    assert blind.attacks_found(np.array([0.1, 0.5])) == pytest.approx([0.1, 0.5])
    assert blind.true_positive_rates(np.array([0.05])) == pytest.approx([0.05])


def test_games_of_one_label_have_no_order() -> None:
    assert ranked_games(np.array([0.1, 0.2]), np.array([1, 1]), np.array([0, 1]), 2) is None


def test_p_value_agrees_with_the_interval() -> None:
    for seed in range(3):
        first, second = (
            simulate_monitor(groups=120, separation=separation, seed=seed).rate_measure(0.1)
            for separation in (0.5, 1.5)
        )
        assert first is not None
        assert second is not None
        compared = MeasureDifference(first, second, is_paired=True)
        effect, p = compared.at(0.95), compared.p_value()
        assert effect.low is not None
        assert effect.high is not None
        assert p is not None
        assert effect.value == second.value - first.value
        assert effect.low <= effect.value <= effect.high
        assert (p <= 0.05) == (not effect.low <= 0 <= effect.high)


def test_monitor_does_not_differ_from_itself() -> None:
    measure = simulate_monitor().rate_measure(0.1)
    assert isinstance(measure, OrderMeasure)
    compared = MeasureDifference(measure, measure, is_paired=True)
    effect = compared.at(0.95)
    assert effect.value == 0
    assert effect.low is not None
    assert effect.high is not None
    assert -0.1 < effect.low <= 0 <= effect.high < 0.1
    assert compared.p_value() == pytest.approx(1)
    assert MeasureDifference(measure, measure, is_paired=False, has_interval=False).p_value() is None
