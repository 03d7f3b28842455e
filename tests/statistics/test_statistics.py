"""Numbers of verdicts and of probabilities: against others' implementations, by formula, and at the edges."""

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

CLOSE = 1e-12


def verdicts(rows: Sequence[tuple[int, int, int]], *, pairs: bool = False, **columns: Sequence[int]) -> Verdicts:
    """Of rows of datapoint, label and decision; with `pairs`, datapoints 2i and 2i+1 are one group."""
    points, labels, decisions = (np.array(column) for column in zip(*rows, strict=True))
    clusters = points // 2 if pairs else points
    more = {name: np.array(column) for name, column in columns.items()}
    return Verdicts(labels, decisions, points, clusters, int(clusters.max()) + 1, pairs, **more)


def by_metric(numbers: Iterator[Estimate]) -> dict[str, Estimate]:
    return {number.metric: number for number in numbers}


def tables() -> Iterator[tuple[Floats, Codes, Codes]]:
    """Fifty tables of probabilities, labels and clusters of several sizes, with ties and without."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        clusters = np.sort(rng.integers(0, 5 + seed, 30 + 7 * seed))
        y = rng.integers(0, 2, len(clusters))
        p = np.clip(0.5 + 0.2 * (2 * y - 1) + rng.normal(0, 0.3, len(clusters)), 0.01, 0.99)
        yield np.round(p, 1 + seed % 3) if seed % 2 else p, y, clusters


def clustered(values: Floats, clusters: Codes) -> tuple[float, float]:
    from statsmodels.regression.linear_model import OLS

    fit = OLS(values, np.ones(len(values))).fit(cov_type="cluster", cov_kwds={"groups": clusters})
    return float(fit.params[0]), float(fit.bse[0])


@pytest.mark.full
def test_brier_log_score_and_auroc_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score  # takes seconds: only for whoever runs this

    for p, y, clusters in tables():
        found = Forecasts(p, y, clusters, int(clusters.max()) + 1)
        assert abs(found.brier.value - brier_score_loss(y, p)) < CLOSE
        bounded = np.clip(p, LOG_FLOOR, 1 - LOG_FLOOR)
        assert abs(found.scaled_log_score.value - log_loss(y, bounded)) < CLOSE
        area = auroc(p, y, clusters, found.total)
        assert area is not None
        assert abs(area.value - roc_auc_score(y, p)) < CLOSE


def test_clustered_errors_are_those_of_statsmodels() -> None:
    for p, y, clusters in tables():
        ours = mean_share((p - y) ** 2, clusters, int(clusters.max()) + 1)
        assert ours is not None
        assert ours.stderr is not None
        mean, error = clustered((p - y) ** 2, clusters)
        assert abs(ours.value - mean) < CLOSE
        assert abs(ours.stderr - error) < CLOSE


def test_the_error_of_auroc_is_delongs_where_each_game_is_its_own_cluster() -> None:
    for p, y, _ in tables():
        ours = auroc(p, y, np.arange(len(p)), len(p))
        assert ours is not None
        rights, wrongs = p[y == 1][:, None], p[y == 0][None, :]
        above = (rights > wrongs) + (rights == wrongs) / 2
        by_right, by_wrong = above.mean(axis=1), above.mean(axis=0)
        plain = by_right.var() / len(by_right) + by_wrong.var() / len(by_wrong)
        assert abs(math.fsum(ours.influence**2) - plain) < CLOSE


def test_brier_is_reliability_less_resolution_plus_uncertainty() -> None:
    """Exactly where the probabilities of a bin are equal; what differs within bins is left over else."""
    for p, y, clusters in tables():
        found = Forecasts(np.minimum(np.round(p, 1), 0.9), y, clusters, int(clusters.max()) + 1)
        assert abs(found.reliability - found.resolution + found.uncertainty - found.brier.value) < CLOSE
        lows, highs = zip(found.reliability_interval, found.resolution_interval, found.ece_interval, strict=True)
        assert all(
            low <= value <= high
            for low, value, high in zip(lows, (found.reliability, found.resolution, found.ece), highs, strict=True)
        )


def test_ece_and_the_curve_are_sums_over_ten_bins() -> None:
    for p, y, clusters in tables():
        found = Forecasts(p, y, clusters, int(clusters.max()) + 1)
        gaps = 0.0
        for one in found.curve:
            inside = (p >= one.low - 1e-9) & ((p < one.high - 1e-9) | (one.high == 1))
            assert one.n == inside.sum()
            assert one.confidence == pytest.approx(p[inside].mean(), abs=CLOSE)
            assert one.right == pytest.approx(y[inside].mean(), abs=CLOSE)
            gaps += inside.sum() * abs(p[inside].mean() - y[inside].mean())
        assert abs(found.ece - gaps / len(p)) < CLOSE


def test_sensitivity_and_criterion_are_their_formula() -> None:
    from scipy.stats import norm

    for seed in range(50):
        rng = np.random.default_rng(seed)
        n = 40 + seed
        rows = [(i, i % 2, int(rng.random() < (0.35, 0.8)[i % 2])) for i in range(n)]
        accepts = [sum(d for _, y, d in rows if y == label) for label in (0, 1)]
        counts = [sum(y == label for _, y, _ in rows) for label in (0, 1)]
        f, h = (norm.ppf((accepts[y] + 0.5) / (counts[y] + 1)) for y in (0, 1))
        found = by_metric(estimates_of(Source.VERDICTS, verdicts(rows)))
        assert found["sensitivity"].value == pytest.approx(h - f, abs=CLOSE)
        assert found["criterion"].value == pytest.approx(-(h + f) / 2, abs=CLOSE)
        rights = [accepts[1] / counts[1], 1 - accepts[0] / counts[0]]
        assert found["balanced_accuracy"].value == pytest.approx(sum(rights) / 2, abs=CLOSE)
        for name in ("sensitivity", "criterion", "balanced_accuracy"):
            one = found[name]
            assert one.value is not None
            assert one.ci_low is not None
            assert one.ci_high is not None
            assert one.ci_low < one.value < one.ci_high


def test_what_is_never_rejected_leaves_one_end_of_d_prime_open() -> None:
    found = by_metric(
        estimates_of(Source.VERDICTS, verdicts([(i, i % 2, i % 2 or int(i % 6 == 0)) for i in range(60)]))
    )
    d = found["sensitivity"]
    assert d.ci_low is not None
    assert d.ci_low > 1
    assert (d.ci_high, d.reason) == (None, "every right solution was accepted, which leaves an end open")


def test_two_judges_that_accuracy_ranks_wrongly_are_ranked_by_d_prime() -> None:
    """One sees more and leans to accept; where most solutions are wrong, accuracy prefers the one that leans right."""
    rng, found = np.random.default_rng(5), {}
    for name, d, c in (("seeing", 1.8, -0.9), ("rejecting", 0.8, 0.9)):
        rows = []
        for i in range(1500):
            y = int(i % 5 == 0)
            rows.append((i, y, int(rng.normal(d * (y - 0.5), 1) > c)))
        found[name] = (np.mean([d == y for _, y, d in rows]), by_metric(estimates_of(Source.VERDICTS, verdicts(rows))))
    (seeing, better), (rejecting, worse) = found["seeing"], found["rejecting"]
    assert seeing < rejecting - 0.1
    for numbers, d, c in ((better, 1.8, -0.9), (worse, 0.8, 0.9)):
        for planted, number in ((d, numbers["sensitivity"]), (c, numbers["criterion"])):
            assert number.ci_low is not None
            assert number.ci_high is not None
            assert number.ci_low < planted < number.ci_high
    assert (better["sensitivity"].ci_low or 0) > (worse["sensitivity"].ci_high or 9)


def test_an_undecided_game_is_not_accepted_and_told_apart() -> None:
    rows = [(i, i % 2, 2 if i % 4 < 2 else i % 2) for i in range(40)]
    found = by_metric(estimates_of(Source.VERDICTS, verdicts(rows)))
    assert [found[name].value for name in ("completeness", "soundness_error", "undecided_0", "undecided_1")] == [
        0.5, 0.0, 0.5, 0.5,
    ]  # fmt: skip


def test_always_failed_and_the_majority_count_datapoints() -> None:
    rows = [(0, 1, 1)] * 2 + [(0, 1, 0), (1, 0, 1), (1, 0, 1), (1, 0, 2), (2, 1, 1), (2, 1, 0), (2, 1, 2)]
    found = by_metric(estimates_of(Source.VERDICTS, verdicts(rows)))
    assert found["always_failed"].n == 3
    assert found["always_failed"].value == pytest.approx(1 / 3)
    assert found["always_failed"].plays == 3
    assert found["majority_accuracy"].value == pytest.approx(1 / 2)  # of datapoint 2, a tie
    assert "majority_accuracy" not in by_metric(
        estimates_of(Source.VERDICTS, verdicts([(i, i % 2, 1) for i in range(4)]))
    )


def test_the_majority_of_k_plays_is_that_of_all_choices_of_k() -> None:
    """Against every order of a datapoint's plays, by the rule of a panel's votes."""
    plays = (1, 1, 0, 2, 0)
    for right in (0, 1):
        of = [sum(play == kind for play in plays) for kind in (right, 1 - right, 2)]
        for k in range(1, 6):
            orders = [majority(order) == right for order in permutations(plays, k)]
            assert majority_chance(of[0], of[1], of[2], k) == pytest.approx(sum(orders) / len(orders))


def test_more_repeats_estimate_the_same_vote_without_bias() -> None:
    """Of a judge that is right of 0.7 of plays, vote@3 is 0.784, whether 3 or 4 plays are drawn from."""
    rng = np.random.default_rng(5)
    for repeats in (3, 4):
        rows = [(i, 1, int(rng.random() < 0.7)) for i in range(20_000) for _ in range(repeats)]
        found = by_metric(estimates_of(Source.VERDICTS, verdicts(rows)))["majority_accuracy"]
        assert found.value == pytest.approx(0.784, abs=0.01)
        assert found.plays == 3
    twice = by_metric(estimates_of(Source.VERDICTS, verdicts([(i, 1, 1) for i in range(9)] * 2)))
    assert "majority_accuracy" not in twice  # the majority of one play is that play


@pytest.mark.full
def test_d_prime_c_and_ece_have_the_error_that_repeated_runs_show() -> None:
    rng, told = np.random.default_rng(6), []
    for _ in range(300):
        chance = rng.beta(4, 2, 120)
        rows = [(i, i % 2, int(rng.random() < (chance[i] if i % 2 else 1 - chance[i]))) for i in range(120)] * 2
        p = np.clip(rng.normal(0.8, 0.05, 120), 0, 1)
        numbers = [*estimates_of(Source.VERDICTS, verdicts(rows)), *forecast_estimates(
            Forecasts(p, (rng.random(120) < 0.5).astype(int), np.arange(120), 120), "stated")]  # fmt: skip
        found = by_metric(iter(numbers))
        told.append([(found[name].value, found[name].stderr) for name in ("sensitivity", "criterion", "ece_stated")])
    values, errors = np.moveaxis(np.array(told, float), 2, 0)
    assert errors.mean(axis=0) == pytest.approx(values.std(axis=0), rel=0.15)
    every = by_metric(estimates_of(Source.VERDICTS, verdicts([(i, i % 2, int(i % 2 or i % 4)) for i in range(40)])))
    assert every["sensitivity"].stderr is None


def test_the_pair_score_asks_for_both_versions() -> None:
    rows = [(0, 0, 0), (1, 1, 1), (2, 0, 1), (3, 1, 1), (4, 0, 0), (5, 1, 1), (5, 1, 0), (7, 1, 1)]
    found = by_metric(estimates_of(Source.VERDICTS, verdicts(rows, pairs=True)))
    assert (found["pair_score"].value, found["pair_score"].n) == (0.5, 3)  # 1, 0 and 1/2; one has no wrong version
    assert "pair_score" not in by_metric(estimates_of(Source.VERDICTS, verdicts(rows)))


def test_few_groups_have_numbers_and_no_intervals() -> None:
    found = by_metric(estimates_of(Source.VERDICTS, verdicts([(i, i % 2, i % 2) for i in range(8)])))
    told = found["balanced_accuracy"]
    assert (told.value, told.ci_low, told.ci_high, told.clusters) == (1.0, None, None, 4)
    assert told.reason == (
        "fewer than 5 groups of datapoints of each label: how often such intervals hold the truth is not measured"
    )
    p, y = np.linspace(0, 1, 20), np.arange(20) % 2
    rows = by_metric(forecast_estimates(Forecasts(p, y, np.arange(20), 20), "stated"))
    assert (rows["brier_stated"].ci_low, rows["auroc_stated"].reason) == (None, None)
    assert rows["brier_stated"].reason == (
        "fewer than 100 groups of datapoints: the measured coverage of such intervals is under 90 %"
    )


def test_whoever_argues_wins_as_often_as_the_judge_is_persuaded() -> None:
    """A judge that follows the provers but on every fourth datapoint, where it knows better."""
    rows, stances = [], []
    for i in range(40):
        for stance in (0, 1):
            rows.append((i, i // 20, i // 20 if i % 4 == 0 else stance))
            stances.append(stance)
    blocks = verdicts(rows, stances=stances)
    found = by_metric(estimates_of(Source.BLOCKS, blocks, None))
    assert found["persuasion_0"].value == found["persuasion_1"].value == 0.875
    seat = by_metric(estimates_of(Source.PLAYERS, blocks, np.array(stances)))
    assert (seat["expected_score"].value, seat["score_difference"].value) == (0.875, 0.25)


@pytest.mark.parametrize("follows", [0.0, 0.3])
def test_following_a_seat_is_position_bias_and_leaning_is_not(follows: float) -> None:
    """Where it does not follow the first seat, the judge rejects in three of five games, and else sees the truth."""
    rng = np.random.default_rng(3)
    rows, exchanged = [], []
    for i in range(400):
        for way in (0, 1):
            rows.append((i, i % 2, way if rng.random() < follows else 0 if rng.random() < 0.6 else i % 2))
            exchanged.append(way)
    first = np.array(exchanged)  # the first seat rejects as written
    (bias,) = estimates_of(Source.BLOCKS, verdicts(rows, exchanged=exchanged), first)
    assert bias.ci_low is not None
    assert bias.ci_high is not None
    assert bias.ci_low < follows < bias.ci_high
    assert bias.ci_high - bias.ci_low < 0.2
    told, _ = estimates_of(Source.BLOCKS, verdicts(rows, swapped=exchanged), np.zeros(800, dtype=np.int64))
    assert (told.metric, told.value, told.reason) == (
        "position_bias", None, "seat and stance are one here: add stances: both",
    )  # fmt: skip


def test_the_worst_of_several_has_a_wider_interval_than_its_own() -> None:
    rows = {f"p{i}": {"value": 0.2 + 0.05 * i, "stderr": 0.04, "n": 100, "clusters": 100} for i in range(4)}
    found = find_worst_case(rows, most=True)
    own = wilson_interval(0.35, 0.04, 100, 100)
    assert (found.system, found.systems) == ("p3", 4)
    assert found.value == pytest.approx(0.35)
    assert found.ci_low is not None
    assert found.ci_high is not None
    assert found.ci_low < own[0]
    assert found.ci_high > own[1]
    assert find_worst_case(rows, most=False).system == "p0"
    grouped = find_worst_case({name: {**row, "grouped": True, "stderr": 0.01} for name, row in rows.items()}, most=True)
    ungrouped = find_worst_case({name: {**row, "stderr": 0.01} for name, row in rows.items()}, most=True)
    assert [end.ci_high for end in (grouped, ungrouped) if end.ci_high] == sorted(
        [grouped.ci_high or 0, ungrouped.ci_high or 1]
    )
    with pytest.raises(ValueError, match="p1: no value"):
        find_worst_case({**rows, "p1": {**rows["p1"], "value": None}}, most=True)
    alone = {**rows["p1"], "ci_low": 0.1, "ci_high": 0.3}
    assert find_worst_case({"p1": alone}, most=True).ci_high == 0.3
    for plays in (1, 3):
        both = {f"p{i}": {**rows[f"p{i}"], "plays": 3 - i * (3 - plays)} for i in range(2)}
        if plays == 3:
            assert find_worst_case(both, most=True).system == "p1"
        else:
            with pytest.raises(ValueError, match="p0 3 times, p1 1 times; play all as often"):
                find_worst_case(both, most=True)
    few = find_worst_case({**rows, "p1": {**rows["p1"], "reason": "fewer than 5 groups"}}, most=True)
    assert (few.system, few.ci_low, few.ci_high, few.reason) == ("p3", None, None, "p1: fewer than 5 groups")


def test_a_majority_of_thousands_of_plays_is_that_of_all_ways_to_choose_them() -> None:
    def of_all_ways(right: int, wrong: int, none: int, k: int) -> Fraction:
        ways = Fraction(0)
        for i in range(k + 1):
            for j in range(k - i + 1):
                if 0 < i >= j:
                    chosen = math.comb(right, i) * math.comb(wrong, j) * math.comb(none, k - i - j)
                    ways += Fraction(chosen, 2 if i == j else 1)
        return ways / math.comb(right + wrong + none, k)

    for of in ((60, 41, 0), (2000, 900, 100), (3, 5000, 2), (0, 101, 0), (101, 0, 0), (1, 0, 200)):
        for k in (1, 9, 99):
            assert majority_chance(*of, k) == pytest.approx(float(of_all_ways(*of, k)), rel=1e-12, abs=1e-300)


def test_plays_by_the_thousand_have_a_curve_of_votes_up_to_99() -> None:
    plays = 3000
    labels = np.ones(2 * plays, dtype=np.int64)
    decisions = np.arange(2 * plays) % 3 % 2
    points = np.repeat([0, 1], plays)
    votes = Verdicts(labels, decisions, points, points, 2, grouped=False).votes
    assert [k for k, _ in votes] == list(range(1, 100, 2))
    assert votes[0][1].value == pytest.approx(float(decisions.mean()))
