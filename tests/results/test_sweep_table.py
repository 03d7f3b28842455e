"""A sweep as one table: seeds pooled as repeats, spreads between and within them, ranges of ranks."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from runner import run_sweep, sweep_table
from runner.base.errors import UsageError
from runner.results.leaderboard.pooled_numbers import pooled_estimates
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.sweep_table import SweepPoint, sweep_rows
from runner.runs.finished.result import FinishedRun
from runner.spec.loader import load_specs
from runner.statistics.seeds import pool_seeds
from tests.support.processes import nip_run_here
from tests.support.runs import table
from tests.support.specs import spec_file

SOLO: dict[str, Any] = {
    "protocol": {"use": "solo_verifier", "max_message_rounds": None},
    "prompts": "prompts/code_validation/solo_verifier",
    "agents": {"prover": None},
}
SWEEP = {"protocol.max_message_rounds": [4, 6], "seed": [1, 2, 3]}


@pytest.fixture(scope="module")
def sweep_runs(tmp_path_factory: pytest.TempPathFactory) -> list[FinishedRun]:
    folder = tmp_path_factory.mktemp("swept")
    return list(run_sweep(load_specs(spec_file(folder, size=10, sweep=SWEEP, fine_tune=None)), folder / "results"))


@pytest.mark.full
def test_points_that_differ_only_in_seed_are_pooled_into_one_row(sweep_runs: list[FinishedRun]) -> None:
    rows = sweep_table(sweep_runs, ["accuracy", "recall"])
    assert [dict(row.point) for row in rows] == [{"protocol.max_message_rounds": rounds} for rounds in (4, 6)]
    for row, runs in zip(rows, (sweep_runs[:3], sweep_runs[3:]), strict=True):
        value, right = row.metrics["accuracy"], defaultdict(list)
        for run in runs:
            for rollout in table(run.path, "rollouts"):
                right[rollout["datapoint_id"]].append(bool(rollout["correct"]))
        mean = sum(map(sum, right.values())) / 30
        error = math.sqrt(10 / 9 * sum((sum(verdicts) - 3 * mean) ** 2 for verdicts in right.values())) / 30
        assert (row.seeds, value.n, value.clusters) == ((1, 2, 3), 30, 10)
        assert value.value == pytest.approx(mean)
        assert value.between == pytest.approx(stdev(run.accuracy.value for run in runs if run.accuracy is not None))
        within = math.sqrt(sum(stdev(map(float, verdicts)) ** 2 for verdicts in right.values())) / 10
        assert value.within == pytest.approx(within)
        assert value.ci_low is not None
        assert value.ci_high is not None
        assert value.ci_low < mean < value.ci_high
        assert value.ci_high - value.ci_low < 6 * error + 0.2
        assert row.cost_usd == 0.0


@pytest.mark.full
def test_verdicts_of_all_seeds_are_pooled_into_one_value_with_an_interval(sweep_runs: list[FinishedRun]) -> None:
    results = Results(sweep_runs[0].path.parents[1])
    for run in sweep_runs[:2]:  # pooling one run gives the run's own metrics
        pooled = pooled_estimates(results, [run.run_id])
        assert {"completeness", "soundness_error", "balanced_accuracy", "criterion", "always_failed"} <= set(pooled)
        for name, estimate in pooled.items():
            measured = run.metric(name)
            if measured is None:
                assert (name, estimate.value) == ("worst_datapoint_accuracy", None)
                continue
            assert (estimate.value, estimate.n, estimate.clusters) == (measured.value, measured.n, measured.clusters)
            assert measured.interval in ((estimate.ci_low, estimate.ci_high), None)
    names = ["soundness_error", "criterion", "prover.reward", "rounds_played", "prover.retries_per_round"]
    row = sweep_table(sweep_runs[:3], names)[0]
    for name in names[:4]:
        value = row.metrics[name]
        is_share = name in names[:2]
        assert (value.n in (15, 30), value.between is not None, value.ci_low is not None) == (True, True, is_share)
        assert is_share or (value.reason or "").startswith("fewer than 10 groups differ"), name
    assert row.metrics["soundness_error"].n == 15
    assert row.metrics["prover.retries_per_round"].reason is not None
    with pytest.raises(UsageError, match="no metric 'acuracy'; did you mean 'accuracy'"):
        sweep_table(sweep_runs, ["acuracy"])


def test_the_majority_of_several_seeds_never_mixes_games_with_exchanged_stances(tmp_path: Path) -> None:
    agents = {"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "m"}}
    spec = spec_file(
        tmp_path, size=4, protocol={"use": "debate"}, prompts="prompts/code_validation/debate", agents=agents,
        stances="both", rollouts={"per_datapoint": 3}, sweep={"seed": [0, 1]}, fine_tune=None,
    )  # fmt: skip
    runs = list(run_sweep(load_specs(spec), tmp_path / "results"))
    pooled = pooled_estimates(Results(tmp_path / "results"), [run.run_id for run in runs])["majority_accuracy"]
    values = []
    for stances_exchanged in (False, True):
        right: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for row in (row for run in runs for row in table(run.path, "rollouts")):
            if row["stances_exchanged"] == stances_exchanged:
                right[row["datapoint_id"]][row["correct"]] += 1
        for wrong_count, right_count in right.values():
            assert wrong_count + right_count == 6
            chances = [math.comb(right_count, k) * math.comb(wrong_count, 5 - k) / math.comb(6, 5) for k in (3, 4, 5)]
            values.append(sum(chances))
    assert pooled.plays == 5
    assert pooled.value == pytest.approx(sum(values) / len(values))


@pytest.mark.full
def test_finished_points_missing_on_the_leaderboard_are_added(sweep_runs: list[FinishedRun]) -> None:
    before = sweep_table(sweep_runs)
    Results(sweep_runs[0].path.parents[1]).board.path.unlink()
    assert sweep_table(sweep_runs) == before


@pytest.mark.full
def test_a_row_of_one_seed_has_the_numbers_of_its_run(sweep_runs: list[FinishedRun]) -> None:
    for run in (sweep_runs[0], sweep_runs[3]):
        (row,) = sweep_table([run], ["accuracy", "recall", "prover.reward"])
        for name, agent in (("accuracy", None), ("recall", None), ("reward", "prover")):
            measured, value = run.metric(name, agent), row.metrics[name if agent is None else f"{agent}.{name}"]
            assert measured is not None
            assert (value.value, value.n, value.clusters) == (measured.value, measured.n, measured.clusters)
            assert (value.ci_low, value.ci_high) == (measured.interval or (None, None))
        assert row.rank == (1, 1)


@pytest.mark.full
def test_point_without_a_significant_difference_to_the_leader_is_tied(sweep_runs: list[FinishedRun]) -> None:
    ranks = [row.rank for row in sweep_table(sweep_runs)]
    assert ranks in ([(1, 2), (1, 2)], [(1, 1), (2, 2)], [(2, 2), (1, 1)])
    accuracies = [row.metrics["accuracy"].value for row in sweep_table(sweep_runs)]
    assert (ranks[0] == ranks[1]) or (accuracies[0] != accuracies[1])


@pytest.mark.full
def test_other_datapoints_and_unfinished_points_do_not_rank_and_say_why(
    sweep_runs: list[FinishedRun], tmp_path: Path
) -> None:
    results = Results(sweep_runs[0].path.parents[1])
    points = [SweepPoint("tiny", run.run_id, run.manifest.point, run.manifest.seed) for run in sweep_runs]
    rows = sweep_rows([*points, SweepPoint("tiny", "tiny-0", points[0].point, 9)], results)
    assert [(row.rank, row.reason) for row in rows] == [(None, "tiny-0: not started"), ((1, 1), None)]
    assert rows[0].missing == {"tiny-0": "not started"}
    assert rows[0].metrics["accuracy"].n == 30
    files = ["data.jsonl", "fewer.jsonl"]
    path = spec_file(tmp_path, size=4, sweep={"dataset.path": files}, fine_tune=None)
    lines = (tmp_path / files[0]).read_text("utf-8").splitlines(keepends=True)
    (tmp_path / files[1]).write_text("".join(lines[:2]), "utf-8")
    specs = load_specs(path)
    separate_rows = sweep_table(run_sweep(specs, tmp_path / "results"))
    assert [row.rank for row in separate_rows] == [None, None]
    first, second = (row.run_ids[0] for row in separate_rows)
    assert [row.reason for row in separate_rows] == [
        f"alone with its task; against {second}: datapoints differ: 2 additional (such as 'p2')",
        f"alone with its task; against {first}: datapoints differ: 2 missing (such as 'p2')",
    ]


@pytest.mark.full
def test_sweep_prints_only_its_table_and_with_v_also_a_block_per_point(tmp_path: Path) -> None:
    spec_file(tmp_path, size=3, sweep={"protocol.max_message_rounds": [4, 6]}, fine_tune=None)
    before = nip_run_here("sweep", "spec.yaml", cwd=tmp_path)
    assert before.stdout.count("not started") == 2
    run_process = nip_run_here("spec.yaml", cwd=tmp_path)
    table = nip_run_here("sweep", "spec.yaml", cwd=tmp_path)
    assert (before.returncode, run_process.returncode, table.returncode) == (0, 0, 0)
    assert table.stdout.startswith("rank  protocol.max_message_rounds  accuracy [95%]")
    assert run_process.stdout == table.stdout
    assert "a block for each point: repeat the command with -v" in run_process.stderr
    verbose = nip_run_here("spec.yaml", "-v", cwd=tmp_path).stdout
    assert verbose.startswith(table.stdout)
    assert verbose.count("\noutcomes: ") == 2
    rows = json.loads(nip_run_here("sweep", "spec.yaml", "--metric", "recall", "--json", cwd=tmp_path).stdout)
    assert [row["point"]["protocol.max_message_rounds"] for row in rows] == [4, 6]
    assert all(set(row["metrics"]) == {"accuracy", "recall"} for row in rows)


def sample_seed(rng: random.Random, effect: float) -> Mapping[str, tuple[int, float]]:
    """Return a seed's correctness on 60 datapoints of different difficulty, shifted by the effect of the seed."""
    shift = rng.choice((-effect, effect))
    return {f"p{i}": (1, float(rng.random() < 0.2 + 0.01 * i + shift)) for i in range(60)}


@pytest.mark.gate
def test_pooled_seeds_have_an_interval_only_by_the_rules_for_a_single_run(tmp_path: Path) -> None:
    for size, reason in ((4, "fewer than 5 groups"), (8, "every group has the same value")):
        spec = spec_file(
            tmp_path / str(size), name=f"of{size}", size=size, sweep={"seed": [1, 2]}, fine_tune=None, **SOLO
        )
        (row,) = sweep_table(list(run_sweep(load_specs(spec), tmp_path / "results")), ["rounds_played", "decided"])
        for name, value in row.metrics.items():
            has_interval = name == "accuracy" or (name, size) == ("decided", 8)
            assert (value.ci_low is not None) == has_interval, (name, size)
            assert has_interval or reason in (value.reason or ""), (name, size)


@pytest.mark.parametrize(("effect", "low", "high"), [(0.0, 0.85, 1.15), (0.15, 2.0, 4.0)])
def test_spread_between_seeds_exceeds_sampling_only_if_seeds_have_an_effect(
    effect: float, low: float, high: float
) -> None:
    rng = random.Random(5)
    pools = [pool_seeds([sample_seed(rng, effect) for _ in range(4)], proportion=True) for _ in range(200)]
    between = math.sqrt(sum((pool.between or 0.0) ** 2 for pool in pools) / len(pools))
    within = math.sqrt(sum((pool.within or 0.0) ** 2 for pool in pools) / len(pools))
    assert low < between / within < high
