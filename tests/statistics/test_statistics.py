"""Metrics of verdicts and probabilities, compared with other implementations and formulas, and in edge cases."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest

from runner.results.estimates import Estimate, estimates_of, forecast_estimates
from runner.results.metric_definitions import Source
from runner.rollouts.agents.votes import majority
from runner.statistics.calibration import LOG_FLOOR, Forecasts, auroc
from runner.statistics.clustered_means import Codes, Floats, mean_share
from runner.statistics.intervals import wilson_interval
from runner.statistics.verdicts import Verdicts, majority_chance
from runner.statistics.worst_case import find_worst_case

TOLERANCE = 1e-12


def make_verdicts(rows: Sequence[tuple[int, int, int]], *, pairs: bool = False, **columns: Sequence[int]) -> Verdicts:
    """Return verdicts from rows of datapoint, label and decision; with `pairs`, datapoints 2i and 2i+1 are a group."""
    points, labels, decisions = (np.array(column) for column in zip(*rows, strict=True))
    clusters = points // 2 if pairs else points
    code_columns = {name: np.array(column) for name, column in columns.items()}
    return Verdicts(labels, decisions, points, clusters, int(clusters.max()) + 1, pairs, **code_columns)


def index_by_metric(numbers: Iterator[Estimate]) -> dict[str, Estimate]:
    return {number.metric: number for number in numbers}


def make_tables() -> Iterator[tuple[Floats, Codes, Codes]]:
    """Yield 50 tables of probabilities, labels and clusters of several sizes, with and without ties."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        clusters = np.sort(rng.integers(0, 5 + seed, 30 + 7 * seed))
        y = rng.integers(0, 2, len(clusters))
        p = np.clip(0.5 + 0.2 * (2 * y - 1) + rng.normal(0, 0.3, len(clusters)), 0.01, 0.99)
        yield np.round(p, 1 + seed % 3) if seed % 2 else p, y, clusters


def fit_clustered_mean(values: Floats, clusters: Codes) -> tuple[float, float]:
    from statsmodels.regression.linear_model import OLS

    fit = OLS(values, np.ones(len(values))).fit(cov_type="cluster", cov_kwds={"groups": clusters})
    return float(fit.params[0]), float(fit.bse[0])


@pytest.mark.full
def test_brier_log_score_and_auroc_match_scikit_learn() -> None:
    from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score  # the import takes seconds

    for p, y, clusters in make_tables():
        forecasts = Forecasts(p, y, clusters, int(clusters.max()) + 1)
        assert abs(forecasts.brier.value - brier_score_loss(y, p)) < TOLERANCE
        bounded = np.clip(p, LOG_FLOOR, 1 - LOG_FLOOR)
        assert abs(forecasts.scaled_log_score.value - log_loss(y, bounded)) < TOLERANCE
        area = auroc(p, y, clusters, forecasts.total)
        assert area is not None
        assert abs(area.value - roc_auc_score(y, p)) < TOLERANCE


def test_clustered_errors_match_statsmodels() -> None:
    for p, y, clusters in make_tables():
        share = mean_share((p - y) ** 2, clusters, int(clusters.max()) + 1)
        assert share is not None
        assert share.stderr is not None
        mean, error = fit_clustered_mean((p - y) ** 2, clusters)
        assert abs(share.value - mean) < TOLERANCE
        assert abs(share.stderr - error) < TOLERANCE


def test_auroc_error_without_clusters_is_delongs() -> None:
    for p, y, _ in make_tables():
        area = auroc(p, y, np.arange(len(p)), len(p))
        assert area is not None
        rights, wrongs = p[y == 1][:, None], p[y == 0][None, :]
        above = (rights > wrongs) + (rights == wrongs) / 2
        by_right, by_wrong = above.mean(axis=1), above.mean(axis=0)
        plain = by_right.var() / len(by_right) + by_wrong.var() / len(by_wrong)
        assert abs(math.fsum(area.influence**2) - plain) < TOLERANCE


def test_brier_is_reliability_minus_resolution_plus_uncertainty() -> None:
    """The equation is exact only if the probabilities of each bin are equal."""
    for p, y, clusters in make_tables():
        forecasts = Forecasts(np.minimum(np.round(p, 1), 0.9), y, clusters, int(clusters.max()) + 1)
        assert (
            abs(forecasts.reliability - forecasts.resolution + forecasts.uncertainty - forecasts.brier.value)
            < TOLERANCE
        )
        lows, highs = zip(
            forecasts.reliability_interval, forecasts.resolution_interval, forecasts.ece_interval, strict=True
        )
        assert all(
            low <= value <= high
            for low, value, high in zip(
                lows, (forecasts.reliability, forecasts.resolution, forecasts.ece), highs, strict=True
            )
        )


def test_ece_and_the_curve_are_sums_over_ten_bins() -> None:
    for p, y, clusters in make_tables():
        forecasts = Forecasts(p, y, clusters, int(clusters.max()) + 1)
        gaps = 0.0
        for curve_bin in forecasts.curve:
            inside = (p >= curve_bin.low - 1e-9) & ((p < curve_bin.high - 1e-9) | (curve_bin.high == 1))
            assert curve_bin.n == inside.sum()
            assert curve_bin.confidence == pytest.approx(p[inside].mean(), abs=TOLERANCE)
            assert curve_bin.right == pytest.approx(y[inside].mean(), abs=TOLERANCE)
            gaps += inside.sum() * abs(p[inside].mean() - y[inside].mean())
        assert abs(forecasts.ece - gaps / len(p)) < TOLERANCE


def test_sensitivity_and_criterion_match_their_formulas() -> None:
    from scipy.stats import norm

    for seed in range(50):
        rng = np.random.default_rng(seed)
        n = 40 + seed
        rows = [(i, i % 2, int(rng.random() < (0.35, 0.8)[i % 2])) for i in range(n)]
        accepts = [sum(d for _, y, d in rows if y == label) for label in (0, 1)]
        counts = [sum(y == label for _, y, _ in rows) for label in (0, 1)]
        f, h = (norm.ppf((accepts[y] + 0.5) / (counts[y] + 1)) for y in (0, 1))
        estimates = index_by_metric(estimates_of(Source.VERDICTS, make_verdicts(rows)))
        assert estimates["sensitivity"].value == pytest.approx(h - f, abs=TOLERANCE)
        assert estimates["criterion"].value == pytest.approx(-(h + f) / 2, abs=TOLERANCE)
        rights = [accepts[1] / counts[1], 1 - accepts[0] / counts[0]]
        assert estimates["balanced_accuracy"].value == pytest.approx(sum(rights) / 2, abs=TOLERANCE)
        for name in ("sensitivity", "criterion", "balanced_accuracy"):
            estimate = estimates[name]
            assert estimate.value is not None
            assert estimate.ci_low is not None
            assert estimate.ci_high is not None
            assert estimate.ci_low < estimate.value < estimate.ci_high


def test_perfect_acceptance_leaves_the_upper_end_of_d_prime_open() -> None:
    estimates = index_by_metric(
        estimates_of(Source.VERDICTS, make_verdicts([(i, i % 2, i % 2 or int(i % 6 == 0)) for i in range(60)]))
    )
    d = estimates["sensitivity"]
    assert d.ci_low is not None
    assert d.ci_low > 1
    assert (d.ci_high, d.reason) == (None, "every right solution was accepted, which leaves an end open")


def test_d_prime_ranks_judges_that_accuracy_ranks_wrongly() -> None:
    """Most solutions are wrong, so accuracy favors the judge that rejects over the judge with the higher d'."""
    rng, results = np.random.default_rng(5), {}
    for name, d, c in (("seeing", 1.8, -0.9), ("rejecting", 0.8, 0.9)):
        rows = []
        for i in range(1500):
            y = int(i % 5 == 0)
            rows.append((i, y, int(rng.normal(d * (y - 0.5), 1) > c)))
        results[name] = (
            np.mean([d == y for _, y, d in rows]),
            index_by_metric(estimates_of(Source.VERDICTS, make_verdicts(rows))),
        )
    (seeing, better), (rejecting, worse) = results["seeing"], results["rejecting"]
    assert seeing < rejecting - 0.1
    for numbers, d, c in ((better, 1.8, -0.9), (worse, 0.8, 0.9)):
        for planted, number in ((d, numbers["sensitivity"]), (c, numbers["criterion"])):
            assert number.ci_low is not None
            assert number.ci_high is not None
            assert number.ci_low < planted < number.ci_high
    assert (better["sensitivity"].ci_low or 0) > (worse["sensitivity"].ci_high or 9)


def test_undecided_games_are_not_accepted_and_are_counted_separately() -> None:
    rows = [(i, i % 2, 2 if i % 4 < 2 else i % 2) for i in range(40)]
    estimates = index_by_metric(estimates_of(Source.VERDICTS, make_verdicts(rows)))
    assert [estimates[name].value for name in ("completeness", "soundness_error", "undecided_0", "undecided_1")] == [
        0.5, 0.0, 0.5, 0.5,
    ]  # fmt: skip


def test_always_failed_and_majority_accuracy_count_datapoints() -> None:
    rows = [(0, 1, 1)] * 2 + [(0, 1, 0), (1, 0, 1), (1, 0, 1), (1, 0, 2), (2, 1, 1), (2, 1, 0), (2, 1, 2)]
    estimates = index_by_metric(estimates_of(Source.VERDICTS, make_verdicts(rows)))
    assert estimates["always_failed"].n == 3
    assert estimates["always_failed"].value == pytest.approx(1 / 3)
    assert estimates["always_failed"].plays == 3
    assert estimates["majority_accuracy"].value == pytest.approx(1 / 2)  # datapoint 2 is a tie
    assert "majority_accuracy" not in index_by_metric(
        estimates_of(Source.VERDICTS, make_verdicts([(i, i % 2, 1) for i in range(4)]))
    )


def test_majority_chance_matches_all_orders_of_k_plays() -> None:
    """Compare with the majority of votes in every order of a datapoint's plays."""
    plays = (1, 1, 0, 2, 0)
    for right in (0, 1):
        counts = [sum(play == kind for play in plays) for kind in (right, 1 - right, 2)]
        for k in range(1, 6):
            orders = [majority(order) == right for order in permutations(plays, k)]
            assert majority_chance(counts[0], counts[1], counts[2], k) == pytest.approx(sum(orders) / len(orders))


def test_majority_accuracy_is_unbiased_for_any_number_of_repeats() -> None:
    """A judge that is right in 0.7 of its plays has a vote@3 of 0.784, with 3 and with 4 repeats."""
    rng = np.random.default_rng(5)
    for repeats in (3, 4):
        rows = [(i, 1, int(rng.random() < 0.7)) for i in range(20_000) for _ in range(repeats)]
        estimate = index_by_metric(estimates_of(Source.VERDICTS, make_verdicts(rows)))["majority_accuracy"]
        assert estimate.value == pytest.approx(0.784, abs=0.01)
        assert estimate.plays == 3
    estimates_of_two_plays = index_by_metric(
        estimates_of(Source.VERDICTS, make_verdicts([(i, 1, 1) for i in range(9)] * 2))
    )
    assert "majority_accuracy" not in estimates_of_two_plays  # the majority of one play is the play itself


@pytest.mark.full
def test_errors_of_d_prime_criterion_and_ece_match_repeated_runs() -> None:
    rng, results = np.random.default_rng(6), []
    for _ in range(300):
        chance = rng.beta(4, 2, 120)
        rows = [(i, i % 2, int(rng.random() < (chance[i] if i % 2 else 1 - chance[i]))) for i in range(120)] * 2
        p = np.clip(rng.normal(0.8, 0.05, 120), 0, 1)
        numbers = [*estimates_of(Source.VERDICTS, make_verdicts(rows)), *forecast_estimates(
            Forecasts(p, (rng.random(120) < 0.5).astype(int), np.arange(120), 120), "stated")]  # fmt: skip
        estimates = index_by_metric(iter(numbers))
        results.append(
            [(estimates[name].value, estimates[name].stderr) for name in ("sensitivity", "criterion", "ece_stated")]
        )
    values, errors = np.moveaxis(np.array(results, float), 2, 0)
    assert errors.mean(axis=0) == pytest.approx(values.std(axis=0), rel=0.15)
    estimates_without_errors = index_by_metric(
        estimates_of(Source.VERDICTS, make_verdicts([(i, i % 2, int(i % 2 or i % 4)) for i in range(40)]))
    )
    assert estimates_without_errors["sensitivity"].stderr is None


def test_pair_score_counts_only_groups_with_both_versions() -> None:
    rows = [(0, 0, 0), (1, 1, 1), (2, 0, 1), (3, 1, 1), (4, 0, 0), (5, 1, 1), (5, 1, 0), (7, 1, 1)]
    estimates = index_by_metric(estimates_of(Source.VERDICTS, make_verdicts(rows, pairs=True)))
    assert (estimates["pair_score"].value, estimates["pair_score"].n) == (
        0.5,
        3,
    )  # 1, 0 and 1/2; one group has no wrong version
    assert "pair_score" not in index_by_metric(estimates_of(Source.VERDICTS, make_verdicts(rows)))


def test_few_groups_give_values_without_intervals() -> None:
    estimates = index_by_metric(estimates_of(Source.VERDICTS, make_verdicts([(i, i % 2, i % 2) for i in range(8)])))
    estimate = estimates["balanced_accuracy"]
    assert (estimate.value, estimate.ci_low, estimate.ci_high, estimate.clusters) == (1.0, None, None, 4)
    assert estimate.reason == (
        "fewer than 5 groups of datapoints of each label: how often such intervals hold the truth is not measured"
    )
    p, y = np.linspace(0, 1, 20), np.arange(20) % 2
    forecast_estimates_by_metric = index_by_metric(forecast_estimates(Forecasts(p, y, np.arange(20), 20), "stated"))
    assert (
        forecast_estimates_by_metric["brier_stated"].ci_low,
        forecast_estimates_by_metric["auroc_stated"].reason,
    ) == (None, None)
    assert forecast_estimates_by_metric["brier_stated"].reason == (
        "fewer than 100 groups of datapoints: the measured coverage of such intervals is under 90 %"
    )


def test_players_win_as_often_as_the_judge_is_persuaded() -> None:
    """The judge follows the provers, except on every fourth datapoint, where it is right."""
    rows, stances = [], []
    for i in range(40):
        for stance in (0, 1):
            rows.append((i, i // 20, i // 20 if i % 4 == 0 else stance))
            stances.append(stance)
    blocks = make_verdicts(rows, stances=stances)
    block_estimates = index_by_metric(estimates_of(Source.BLOCKS, blocks, None))
    assert block_estimates["persuasion_0"].value == block_estimates["persuasion_1"].value == 0.875
    player_estimates = index_by_metric(estimates_of(Source.PLAYERS, blocks, np.array(stances)))
    assert (player_estimates["expected_score"].value, player_estimates["score_difference"].value) == (0.875, 0.25)


@pytest.mark.parametrize("follows", [0.0, 0.3])
def test_position_bias_measures_following_a_seat_and_not_a_verdict_preference(follows: float) -> None:
    """If the judge does not follow the first seat, it rejects with a probability of 0.6 and is right otherwise."""
    rng = np.random.default_rng(3)
    rows, exchanged = [], []
    for i in range(400):
        for exchange in (0, 1):
            rows.append((i, i % 2, exchange if rng.random() < follows else 0 if rng.random() < 0.6 else i % 2))
            exchanged.append(exchange)
    first = np.array(exchanged)  # the first seat argues for reject unless exchanged
    (bias,) = estimates_of(Source.BLOCKS, make_verdicts(rows, exchanged=exchanged), first)
    assert bias.ci_low is not None
    assert bias.ci_high is not None
    assert bias.ci_low < follows < bias.ci_high
    assert bias.ci_high - bias.ci_low < 0.2
    estimate, _ = estimates_of(Source.BLOCKS, make_verdicts(rows, swapped=exchanged), np.zeros(800, dtype=np.int64))
    assert (estimate.metric, estimate.value, estimate.reason) == (
        "position_bias", None, "seat and stance are one here: add stances: both",
    )  # fmt: skip


def test_worst_case_of_several_systems_has_a_wider_interval() -> None:
    rows = {f"p{i}": {"value": 0.2 + 0.05 * i, "stderr": 0.04, "n": 100, "clusters": 100} for i in range(4)}
    worst_case = find_worst_case(rows, most=True)
    own_interval = wilson_interval(0.35, 0.04, 100, 100)
    assert (worst_case.system, worst_case.systems) == ("p3", 4)
    assert worst_case.value == pytest.approx(0.35)
    assert worst_case.ci_low is not None
    assert worst_case.ci_high is not None
    assert worst_case.ci_low < own_interval[0]
    assert worst_case.ci_high > own_interval[1]
    assert find_worst_case(rows, most=False).system == "p0"
    grouped = find_worst_case({name: {**row, "grouped": True, "stderr": 0.01} for name, row in rows.items()}, most=True)
    ungrouped = find_worst_case({name: {**row, "stderr": 0.01} for name, row in rows.items()}, most=True)
    assert [end.ci_high for end in (grouped, ungrouped) if end.ci_high] == sorted(
        [grouped.ci_high or 0, ungrouped.ci_high or 1]
    )
    with pytest.raises(ValueError, match="p1: no value"):
        find_worst_case({**rows, "p1": {**rows["p1"], "value": None}}, most=True)
    single_row = {**rows["p1"], "ci_low": 0.1, "ci_high": 0.3}
    assert find_worst_case({"p1": single_row}, most=True).ci_high == 0.3
    for plays in (1, 3):
        two_rows = {f"p{i}": {**rows[f"p{i}"], "plays": 3 - i * (3 - plays)} for i in range(2)}
        if plays == 3:
            assert find_worst_case(two_rows, most=True).system == "p1"
        else:
            with pytest.raises(ValueError, match="p0 3 times, p1 1 times; play all as often"):
                find_worst_case(two_rows, most=True)
    worst_case_without_interval = find_worst_case(
        {**rows, "p1": {**rows["p1"], "reason": "fewer than 5 groups"}}, most=True
    )
    assert (
        worst_case_without_interval.system,
        worst_case_without_interval.ci_low,
        worst_case_without_interval.ci_high,
        worst_case_without_interval.reason,
    ) == ("p3", None, None, "p1: fewer than 5 groups")


def test_majority_chance_of_thousands_of_plays_matches_all_choices() -> None:
    def count_all_choices(right: int, wrong: int, undecided: int, k: int) -> Fraction:
        ways = Fraction(0)
        for i in range(k + 1):
            for j in range(k - i + 1):
                if 0 < i >= j:
                    chosen = math.comb(right, i) * math.comb(wrong, j) * math.comb(undecided, k - i - j)
                    ways += Fraction(chosen, 2 if i == j else 1)
        return ways / math.comb(right + wrong + undecided, k)

    for counts in ((60, 41, 0), (2000, 900, 100), (3, 5000, 2), (0, 101, 0), (101, 0, 0), (1, 0, 200)):
        for k in (1, 9, 99):
            assert majority_chance(*counts, k) == pytest.approx(
                float(count_all_choices(*counts, k)), rel=1e-12, abs=1e-300
            )


def test_vote_curve_of_thousands_of_plays_ends_at_99() -> None:
    plays = 3000
    labels = np.ones(2 * plays, dtype=np.int64)
    decisions = np.arange(2 * plays) % 3 % 2
    points = np.repeat([0, 1], plays)
    votes = Verdicts(labels, decisions, points, points, 2, grouped=False).votes
    assert [k for k, _ in votes] == list(range(1, 100, 2))
    assert votes[0][1].value == pytest.approx(float(decisions.mean()))
