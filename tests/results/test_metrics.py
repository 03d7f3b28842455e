"""Metric estimates compared with statsmodels, in edge cases, and by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from runner.game.protocols.loader import load_protocol
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import Message, Round
from runner.results.estimates import Estimate
from runner.results.game_measurements import episode_length
from runner.results.metric_computation import ClusterSums, Metrics
from runner.rollouts.job import Job
from runner.rollouts.rollout import Outcome, Rollout
from runner.spec.datasets.loader import Datapoint
from runner.spec.loader import load_spec
from runner.statistics.intervals import mean_interval
from tests.support.specs import spec_file

Row = tuple[int, int, int, str]
"""Datapoint, label, decision and outcome of a rollout."""


@pytest.fixture(scope="module")
def protocol(tmp_path_factory: pytest.TempPathFactory) -> Protocol:
    return load_spec(spec_file(tmp_path_factory.mktemp("spec"))).protocol


def make_rollout(index: int, row: Row) -> Rollout:
    point, label, decision, outcome = row
    job = Job(index, f"r{index}", Datapoint(f"p{point}", label, {}), index, index)
    rounds = (
        Round(
            {"verifier": "?"},
            (Message("main", "verifier", "?"),),
            2,
            {"verifier": 0.0},
            {"verifier": 1},
            {},
            {"verifier": 2},
            {"verifier": False},
        ),
        Round(
            {"prover": "!"},
            (Message("main", "prover", "!"),),
            2,
            {},
            {},
            {"prover": True},
            {"prover": 1},
            {"prover": True},
        ),
        Round({"verifier": "x"}, (), decision, {"verifier": 1.0}, {}, {}, {"verifier": 1}, {"verifier": False}),
    )
    rewards = {"verifier": 1.0 if decision == label else -1.0, "prover": 0.5}
    return Rollout(job, rounds, decision, Outcome(outcome), 1, rewards)


def compute_estimates(
    protocol: Protocol, rows: Sequence[Row]
) -> tuple[dict[tuple[str | None, str], Estimate], Metrics]:
    metrics = Metrics(protocol)
    for index, row in enumerate(rows):
        metrics.add(make_rollout(index, row))
    return {(estimate.agent, estimate.metric): estimate for estimate in metrics.estimates()}, metrics


def random_rows(seed: int, datapoints: int, repeats: int, spread: float = 0.3) -> list[Row]:
    """Return rollouts whose correctness depends on the datapoint, some of them without a verdict."""
    rng = np.random.default_rng(seed)
    chances = np.clip(rng.normal(0.65, spread, datapoints), 0.02, 0.98)
    rows = []
    for point, chance in enumerate(chances):
        for _ in range(repeats):
            label = int(point % 2)
            draw = rng.random()
            decision = 2 if draw < 0.1 else label if rng.random() < chance else 1 - label
            rows.append((point, label, decision, "no_decision" if decision == 2 else "decided"))
    rng.shuffle(rows)
    return [(int(point), int(label), int(decision), str(outcome)) for point, label, decision, outcome in rows]


def clustered_mean_by_statsmodels(values: Sequence[float], clusters: Sequence[int]) -> tuple[float, float]:
    """Return mean and standard error by statsmodels: a regression on a constant with clustered errors.

    Its small-sample factor is G/(G-1) * (N-1)/(N-K), and with one coefficient the second part is 1.
    """
    from statsmodels.regression.linear_model import OLS

    fit = OLS(np.asarray(values, float), np.ones(len(values))).fit(
        cov_type="cluster", cov_kwds={"groups": np.asarray(clusters)}
    )
    return float(fit.params[0]), float(fit.bse[0])


@pytest.mark.full
@pytest.mark.parametrize("seed", range(12))
def test_means_and_clustered_errors_equal_those_of_statsmodels(protocol: Protocol, seed: int) -> None:
    rows = random_rows(seed, datapoints=8 + 7 * seed, repeats=1 + seed % 5)
    estimates, _ = compute_estimates(protocol, rows)
    values_by_metric = {
        "accuracy": [(r[0], float(r[2] == r[1])) for r in rows],
        "accuracy_1": [(r[0], float(r[2] == 1)) for r in rows if r[1] == 1],
        "accuracy_0": [(r[0], float(r[2] == 0)) for r in rows if r[1] == 0],
        "precision": [(r[0], float(r[1] == 1)) for r in rows if r[2] == 1],
        "recall": [(r[0], float(r[2] == 1)) for r in rows if r[1] == 1 and r[2] != 2],
        "decision": [(r[0], float(r[2])) for r in rows],
        "decided": [(r[0], float(r[2] != 2)) for r in rows],
    }
    for name, pairs in values_by_metric.items():
        estimate = estimates[None, name]
        mean, error = clustered_mean_by_statsmodels([value for _, value in pairs], [cluster for cluster, _ in pairs])
        assert estimate.value == pytest.approx(mean, abs=1e-12), name
        assert estimate.stderr == pytest.approx(error, abs=1e-9), name
        assert (estimate.n, estimate.clusters) == (len(pairs), len({cluster for cluster, _ in pairs}))
    reward = estimates["verifier", "reward"]
    mean, error = clustered_mean_by_statsmodels([1.0 if r[2] == r[1] else -1.0 for r in rows], [r[0] for r in rows])
    assert [reward.value, reward.stderr] == pytest.approx([mean, error])


def test_a_group_of_datapoints_is_one_cluster(protocol: Protocol) -> None:
    rows = random_rows(5, datapoints=30, repeats=3)
    metrics = Metrics(protocol)
    for index, row in enumerate(rows):
        game = make_rollout(index, row)
        metrics.add(
            replace(game, job=replace(game.job, datapoint=replace(game.job.datapoint, group=f"g{row[0] // 2}")))
        )
    estimates = {row.metric: row for row in metrics.estimates() if row.agent is None}
    mean, error = clustered_mean_by_statsmodels([float(r[2] == r[1]) for r in rows], [r[0] // 2 for r in rows])
    assert (estimates["accuracy"].value, estimates["accuracy"].stderr) == pytest.approx((mean, error))
    assert (estimates["accuracy"].n, estimates["accuracy"].clusters) == (90, 15)
    assert (
        estimates["worst_datapoint_accuracy"] == compute_estimates(protocol, rows)[0][None, "worst_datapoint_accuracy"]
    )


def test_opposite_outcomes_within_groups_narrow_the_interval(protocol: Protocol) -> None:
    """A biased judge is right about one version of each program, and more rollouts would give the same result."""
    narrow, wide = (mean_interval(0.5, 0.01, 80, 40, proportion=True, grouped=grouped) for grouped in (True, False))
    assert narrow == pytest.approx((0.48, 0.52), abs=2e-3)
    assert wide == pytest.approx((0.39, 0.61), abs=2e-2)


@pytest.mark.parametrize(("right", "total"), [(1, 400), (37, 400), (200, 400), (399, 400)])
def test_one_rollout_a_datapoint_gives_nearly_the_wilson_interval(right: int, total: int) -> None:
    """Our interval uses the clustered error and Student's t, which matter less with more datapoints."""
    p = right / total
    stderr = math.sqrt(p * (1 - p) / (total - 1))
    low, high = mean_interval(p, stderr, total, total, proportion=True)
    from statsmodels.stats.proportion import proportion_confint

    expected = proportion_confint(right, total, method="wilson")
    assert low is not None
    assert high is not None
    assert [low, high] == pytest.approx(list(expected), abs=2e-3)
    assert 0 <= low < p < high <= 1


@pytest.mark.parametrize(("value", "label"), [(1.0, 1), (0.0, 0)])
def test_interval_of_all_right_or_all_wrong_has_positive_width(protocol: Protocol, value: float, label: int) -> None:
    estimates, _ = compute_estimates(protocol, [(point, label, 1, "decided") for point in range(20) for _ in range(5)])
    accuracy = estimates[None, "accuracy"]
    assert accuracy.value == value
    assert accuracy.stderr == 0.0
    from statsmodels.stats.proportion import proportion_confint

    expected = proportion_confint(int(20 * value), 20, method="wilson")
    assert [accuracy.ci_low, accuracy.ci_high] == pytest.approx(list(expected))


def test_a_single_datapoint_gives_no_error_and_no_narrow_interval(protocol: Protocol) -> None:
    estimates, _ = compute_estimates(protocol, [(0, 1, decision, "decided") for decision in (1, 1, 0, 1)])
    accuracy = estimates[None, "accuracy"]
    assert (accuracy.value, accuracy.stderr, accuracy.clusters) == (0.75, None, 1)
    if accuracy.ci_low is not None:
        assert accuracy.ci_high is not None
        assert accuracy.ci_high - accuracy.ci_low > 0.5
    reward = estimates["verifier", "reward"]
    assert (reward.stderr, reward.ci_low, reward.ci_high) == (None, None, None)


def test_rewards_and_decisions_have_the_interval_of_their_share(protocol: Protocol) -> None:
    for last in (1, 0):
        estimates, _ = compute_estimates(
            protocol, [*((point, 1, 1, "decided") for point in range(29)), (29, 1, last, "decided")]
        )
        low, high = estimates[None, "accuracy"].ci_low, estimates[None, "accuracy"].ci_high
        assert low is not None
        assert high is not None
        reward, decision = estimates["verifier", "reward"], estimates[None, "decision"]
        assert [reward.ci_low, reward.ci_high] == pytest.approx([2 * low - 1, 2 * high - 1])
        assert [decision.ci_low, decision.ci_high] == pytest.approx([low, high])


def test_means_of_nearly_constant_values_have_no_interval_but_a_reason(protocol: Protocol) -> None:
    estimates, _ = compute_estimates(protocol, [(point, 1, 1, "decided") for point in range(30)])
    for name in ("rounds_played", "episode_length"):
        assert (estimates[None, name].ci_low, estimates[None, name].reason) == (
            None, "every group has the same value, which leaves its error open",
        )  # fmt: skip
    for undecided in (3, 12):  # with undecided games, a decision has three values
        rows: list[Row] = [(p, 1, *((2, "no_decision") if p < undecided else (1, "decided"))) for p in range(40)]
        decision = compute_estimates(protocol, rows)[0][None, "decision"]
        assert (decision.ci_low is None) == (undecided < 10)
        assert ("fewer than 10 groups differ" in (decision.reason or "")) == (undecided < 10)


def test_equal_metrics_with_few_groups_have_no_interval_for_the_same_reason(protocol: Protocol) -> None:
    estimates, _ = compute_estimates(protocol, [(point, point % 2, 1, "decided") for point in range(4)])
    same = [estimates[None, name] for name in ("accuracy_1", "completeness", "recall")]
    assert {(row.value, row.ci_low, row.reason) for row in same} == {(1.0, None, same[0].reason)}
    assert "fewer than 5 groups" in (same[0].reason or "")
    assert estimates[None, "accuracy"].ci_low is not None


def test_metrics_without_games_have_no_values(protocol: Protocol) -> None:
    estimates, metrics = compute_estimates(protocol, [])
    assert all(row.value is None and row.stderr is None and row.n == 0 for row in estimates.values())
    assert all(row.ci_low is None and row.ci_high is None for row in estimates.values())
    assert metrics.summary()["outcomes"] == dict.fromkeys(Outcome, 0)


def test_transport_failures_count_only_as_outcomes(protocol: Protocol) -> None:
    rows = random_rows(3, 10, 4)
    lost: list[Row] = [(point, point % 2, 2, "transport_failed") for point in range(10)]
    with_lost, counted = compute_estimates(protocol, [*rows, *lost])
    without, _ = compute_estimates(protocol, rows)
    assert with_lost == without
    assert counted.outcomes[Outcome.TRANSPORT_FAILED] == 10


@pytest.mark.parametrize("outcome", ["no_decision", "invalid_response", "refused", "context_exceeded"])
def test_other_games_without_a_verdict_count_as_wrong(protocol: Protocol, outcome: str) -> None:
    estimates, _ = compute_estimates(
        protocol, [(0, 1, 1, "decided"), (1, 1, 2, outcome), (2, 1, 1, "decided"), (3, 1, 2, outcome)]
    )
    assert (estimates[None, "accuracy"].value, estimates[None, "accuracy"].n) == (0.5, 4)
    assert (estimates[None, "accuracy_excluding_failures"].value, estimates[None, "accuracy_excluding_failures"].n) == (
        1.0,
        2,
    )
    assert estimates[None, "decided"].value == 0.5


def test_the_worst_datapoint_has_the_lowest_mean(protocol: Protocol) -> None:
    rows: list[Row] = [(0, 1, 1, "decided")] * 5 + [(1, 1, 1, "decided")] * 3 + [(1, 1, 0, "decided")] * 3
    estimates, _ = compute_estimates(protocol, rows)
    assert estimates[None, "worst_datapoint_accuracy"].value == 0.5


def test_worst_datapoint_accuracy_is_undefined_for_few_repeats(protocol: Protocol) -> None:
    """The lowest of many means of few games is low by chance; the original implementation reports it anyway."""
    rows: list[Row] = [(0, 1, 1, "decided")] * 5 + [(1, 1, 1, "decided")] * 2 + [(1, 1, 0, "decided")] * 2
    estimates, metrics = compute_estimates(protocol, rows)
    worst = estimates[None, "worst_datapoint_accuracy"]
    assert (worst.value, worst.n, worst.clusters) == (None, 9, 2)
    assert worst.reason == "a datapoint was played fewer than 5 times: the lowest mean is luck"
    assert metrics.original_statistics()["worst_datapoint_accuracy"] == 0.5


def test_estimates_do_not_depend_on_the_order_of_rollouts(protocol: Protocol) -> None:
    rows = random_rows(11, 30, 5)
    assert compute_estimates(protocol, rows)[0] == compute_estimates(protocol, sorted(rows))[0]


def test_agents_have_their_retries_and_their_token_limits(protocol: Protocol) -> None:
    estimates, metrics = compute_estimates(protocol, [(0, 1, 1, "decided"), (1, 0, 0, "decided")])
    # One retry in the first of three rounds; the verifier spoke in two of them.
    assert estimates["verifier", "retries_per_round"].value == pytest.approx(1 / 3)
    assert estimates["verifier", "calls_per_message"].value == pytest.approx(1.5)
    assert estimates["prover", "token_limit_proportion"].value == 1.0
    assert metrics.original_statistics()["prover.token_limit_proportion"] == pytest.approx(1 / 3)
    assert estimates[None, "rounds_played"].value == 3.0


def test_unreached_rounds_count_as_zeros_in_the_original_shares() -> None:
    solo = load_protocol("solo_verifier")
    rounds = (
        Round(
            {"verifier": "?"}, (), 2, {"verifier": -1.0}, {"verifier": 1}, {"verifier": True}, {"verifier": 2},
            {"verifier": True},
        ),
    )  # fmt: skip
    job = Job(0, "r0", Datapoint("p0", 1, {}), 0, 0)
    for outcome, share in (("no_decision", 0.5), ("refused", 1.0)):
        metrics = Metrics(solo)
        metrics.add(Rollout(job, rounds, 2, Outcome(outcome), None, {"verifier": -1.0}))
        statistics = metrics.original_statistics()
        assert (statistics["verifier.retry_proportion"], statistics["verifier.token_limit_proportion"]) == (
            share,
            share,
        )


def test_episode_length_counts_rounds_with_a_first_channel_message(protocol: Protocol) -> None:
    assert episode_length(protocol, make_rollout(0, (0, 1, 1, "decided"))) == 2


def test_memory_holds_one_row_for_each_datapoint_not_for_each_rollout(protocol: Protocol) -> None:
    metrics = Metrics(protocol)
    for index in range(3000):
        metrics.add(make_rollout(index, (index % 3, 1, 1, "decided")))
    assert metrics.estimates()[0].n == 3000
    assert max(len(tally.clusters) for tally in metrics._tallies.values()) == 3


@pytest.mark.parametrize(
    ("datapoints", "repeats", "mean", "correlation"),
    [(50, 5, 0.7, 0.5), (100, 10, 0.7, 0.6), (100, 10, 0.95, 0.4), (30, 3, 0.9, 0.3), (500, 5, 0.5, 0.5),
     (40, 5, 0.98, 0.3), (200, 1, 0.97, 0.0)],
)  # fmt: skip
def test_interval_coverage_is_close_to_95_percent(
    datapoints: int, repeats: int, mean: float, correlation: float
) -> None:
    """Simulate 300 benchmarks; the chances of the datapoints are beta-distributed around the mean."""
    rng = np.random.default_rng(1234)
    if correlation:
        total = 1 / correlation - 1
        chances = rng.beta(mean * total, (1 - mean) * total, (300, datapoints))
    else:
        chances = np.full((300, datapoints), mean)
    sums = rng.binomial(repeats, chances)
    covered = 0
    for counts in sums:
        p = counts.sum() / (datapoints * repeats)
        residuals = float(((counts - repeats * p) ** 2).sum())
        stderr = math.sqrt(datapoints / (datapoints - 1) * residuals) / (datapoints * repeats)
        low, high = mean_interval(p, stderr, datapoints * repeats, datapoints, proportion=True)
        assert low is not None
        assert high is not None
        covered += low <= mean <= high
    assert 0.91 <= covered / 300 <= 0.985


def test_metric_missing_in_some_clusters_does_not_depend_on_shared_positions() -> None:
    common = ClusterSums()
    for cluster in "abcd":
        common.add(cluster, (1.0,))
    rare, separate = ClusterSums(common.positions), ClusterSums()
    for tally in (rare, separate):
        tally.add("c", (1.0, 0.0))
        tally.add("b", (0.5,))
    assert len(rare.clusters) == 2
    assert (rare.n, rare.mean, rare.deviation, rare.stderr) == (
        separate.n,
        separate.mean,
        separate.deviation,
        separate.stderr,
    )
    assert sorted(rare.by_cluster) == sorted(separate.by_cluster) == [0.5, 0.5]
