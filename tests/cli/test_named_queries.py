"""`nip-run sql @NAME`: the result of each shipped query, recomputed from the rows of the runs."""

from __future__ import annotations

import json
import math
import shutil
from collections import defaultdict
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from runner import query, run
from runner.cli.main import main
from runner.spec.loader import load_specs
from tests.support.files import parquet_rows
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.training import training_spec

pytestmark = pytest.mark.full

Row = dict[str, Any]
PROBLEMS, REPEATS = 4, 3


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results folder of two protocols with two seeds each."""
    folder = tmp_path_factory.mktemp("queries")
    rows = [
        {"id": f"{n}-{y}", "label": y, "question": f"q{n}", "solution": f"s{n}{y}", "problem": n, "hard": n % 2 == 0}
        for n in range(PROBLEMS)
        for y in (0, 1)
    ]
    dataset = {"path": "pairs.jsonl", "group_by": "problem"}
    confidence_settings: dict[str, Any] = {
        "models": {"m": {"logprobs": True, "top_logprobs": 5}},
        "verdict": {"confidence": "both"},
    }
    path = spec_file(
        folder, dataset=dataset, rollouts={"per_datapoint": REPEATS}, fine_tune=None, **confidence_settings
    )
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    nip_only = {"protocol.randomize_prover_stance": [True, None], "protocol.max_message_rounds": [6, None]}
    spec = {
        "extends": str(path),
        "protocol": {"randomize_prover_stance": False},
        "prompts": "prompts/code_validation/${protocol.use}",
        "agents": {"_default": {"model": "m"}, "prover": None, "verifier": None},
        "sweep": {"seed": [1, 2], "zip": {"protocol.use": ["nip", "solo_verifier"], **nip_only}},
    }
    for point in load_specs(spec):
        run(point, folder / "results")
    return folder / "results"


@pytest.fixture(scope="module")
def training_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results folder of a training run with two seeds."""
    folder = tmp_path_factory.mktemp("trained")
    for point in load_specs(training_spec(folder, training={"test": {"scheme": "all"}}), {"sweep": {"seed": [1, 2]}}):
        run(point, folder / "results")
    return folder / "results"


@pytest.fixture(scope="module")
def swapped_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results folder of a debate with swapped seats, and of a judge that gives a verdict in each round."""
    folder = tmp_path_factory.mktemp("moved")
    path = spec_file(
        folder, protocol={"use": "debate", "max_message_rounds": 9}, prompts="prompts/code_validation/debate",
        stances="both", seats="swap", fine_tune=None,
        models={"other": {"provider": "dummy"}, "judge": {"provider": "dummy"}},
        agents={
            "prover": None, "prover0": {"model": "m"}, "prover1": {"model": "other"}, "verifier": {"model": "judge"},
        },
    )  # fmt: skip
    results = folder / "results"
    for arguments in (["run", str(path)], ["rejudge", "last", "models.judge.model=wise", "--verdict", "each"]):
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as stderr:
            assert main([*arguments, "-q", "--results", str(results)]) == 0, stderr.getvalue()
    return results


def run_query(results: Path, *arguments: str) -> list[Row]:
    stdout = StringIO()
    with redirect_stdout(stdout):
        assert main(["sql", "--results", str(results), "--json", *arguments]) == 0
    rows: list[Row] = json.loads(stdout.getvalue())
    return rows


def run_sql(results: Path, sql: str) -> list[Row]:
    relation = query(sql, results)
    return [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]


def group_by(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    return groups


def accuracy(rows: Iterable[Row]) -> float:
    return mean(bool(row["correct"]) for row in rows)


def is_close(value: Any, expected: float) -> bool:
    return math.isclose(float(value), expected, rel_tol=1e-9, abs_tol=1e-12)


def load_games(results: Path, protocol: str) -> list[Row]:
    """Return the games of a protocol in the sweep, each with its group."""
    rows = run_sql(results, "SELECT r.*, u.protocol, u.name FROM rollouts r JOIN runs u USING (run_id)")
    return [row | {"group": row["datapoint_id"].split("-")[0]} for row in rows if is_game_of(row, protocol)]


def is_game_of(row: Row, protocol: str) -> bool:
    return bool(row["name"] == "tiny" and row["protocol"] == protocol)


def find_run_ids(results: Path, protocol: str) -> list[str]:
    return sorted({row["run_id"] for row in load_games(results, protocol)})


def test_uplift_query_returns_the_mean_group_difference_and_its_standard_error(results: Path) -> None:
    games, baseline_games = load_games(results, "nip"), group_by(load_games(results, "solo_verifier"), "group")
    row_by_run = {row["run_id"]: row for row in run_query(results, "@uplift")}
    assert sorted(row_by_run) == find_run_ids(results, "nip")
    for (run_id,), rows in group_by(games, "run_id").items():
        differences = [
            accuracy(group_games) - accuracy(baseline_games[group])
            for group, group_games in group_by(rows, "group").items()
        ]
        row = row_by_run[run_id]
        assert row["groups"] == PROBLEMS
        assert is_close(row["uplift"], mean(differences))
        assert is_close(row["uplift"], row["accuracy"] - row["baseline"])
        assert is_close(row["stderr"], stdev(differences) / math.sqrt(PROBLEMS))


def test_protocols_query_pools_the_seeds_and_clusters_by_group(results: Path) -> None:
    row_by_protocol = {
        row["protocol"]: row for row in run_query(results, "@protocols", "benchmark=tiny/v1") if row["seeds"] == 2
    }
    assert list(row_by_protocol) == sorted(row_by_protocol, key=lambda name: -row_by_protocol[name]["accuracy"])
    assert set(row_by_protocol) == {"nip", "solo_verifier"}
    for name, row in row_by_protocol.items():
        games = load_games(results, name)
        assert row["games"] == len(games) == 2 * 2 * PROBLEMS * REPEATS
        assert is_close(row["accuracy"], accuracy(games))
        residuals = [
            sum(bool(g["correct"]) - accuracy(games) for g in subset) ** 2
            for subset in group_by(games, "group").values()
        ]
        assert is_close(row["stderr"], math.sqrt(PROBLEMS / (PROBLEMS - 1) * sum(residuals)) / len(games))
        seeds = [accuracy(subset) for subset in group_by(games, "run_id").values()]
        assert (row["lowest"], row["highest"]) == (min(seeds), max(seeds))
        assert is_close(row["accept"], mean(game["decision"] == 1 for game in games))


def test_flips_query_lists_the_games_whose_verdict_changed(results: Path) -> None:
    a, b = find_run_ids(results, "nip")
    games = {(g["run_id"], g["datapoint_id"], g["repeat"]): g for g in load_games(results, "nip")}
    verdict_names = {0: "reject", 1: "accept", 2: "none"}
    expected = {
        (point, repeat, verdict_names[first["decision"]], verdict_names[games[b, point, repeat]["decision"]])
        for (run_id, point, repeat), first in games.items()
        if run_id == a and first["decision"] != games[b, point, repeat]["decision"]
    }
    rows = run_query(results, "@flips", f"run_a={a}", f"run_b={b}")
    assert {(r["datapoint_id"], r["repeat"], r["verdict_a"], r["verdict_b"]) for r in rows} == expected
    assert expected
    for row in rows:
        second = games[b, row["datapoint_id"], row["repeat"]]
        assert row["game_b"] == second["rollout_id"]
        assert (row["change"] == "gained") == bool(second["correct"])


def test_learning_curves_and_seeds_have_the_mean_and_the_band_of_the_seeds(training_results: Path) -> None:
    tests = group_by(
        run_sql(training_results, "FROM leaderboard JOIN runs USING (run_id, name) WHERE parent_run_id <> ''"),
        "iteration",
    )
    curve = run_query(training_results, "@learning_curve", "name=learn")
    spread = run_query(training_results, "@seeds", "name=learn")
    assert [row["iteration"] for row in curve] == [row["iteration"] for row in spread] == [0, 1, 2]
    for row in (*curve, *spread):
        values = [test["accuracy"] for test in tests[row["iteration"],]]
        assert len(values) == row["seeds"] == 2
        assert is_close(row["accuracy"], mean(values))
        assert is_close(row["between"], stdev(values))
        assert (row["lowest"], row["highest"]) == (min(values), max(values))
        assert is_close(row["within"], math.sqrt(mean(test["stderr"] ** 2 for test in tests[row["iteration"],])))


def test_always_failed_is_the_share_of_datapoints_without_a_right_verdict(results: Path) -> None:
    row_by_run = {row["run_id"]: row for row in run_query(results, "@always_failed", f"repeats={REPEATS}")}
    games = [*load_games(results, "nip"), *load_games(results, "solo_verifier")]
    assert set(row_by_run) == {game["run_id"] for game in games}
    for (run_id,), rows in group_by(games, "run_id").items():
        failed = {
            (y, point): not any(g["correct"] for g in point_games)
            for (y, point), point_games in group_by(rows, "y", "datapoint_id").items()
        }
        assert is_close(row_by_run[run_id]["always_failed"], mean(failed.values()))
        for label in (0, 1):
            share = mean(value for (y, _), value in failed.items() if y == label)
            assert is_close(row_by_run[run_id][f"always_failed_{label}"], share)
        (metric,) = run_sql(
            results, f"FROM metrics WHERE run_id = '{run_id}' AND metric = 'always_failed' AND agent IS NULL"
        )
        assert is_close(row_by_run[run_id]["always_failed"], metric["value"])
        assert [row_by_run[run_id][end] for end in ("ci_low", "ci_high")] == [metric["ci_low"], metric["ci_high"]]
    assert any(row["always_failed"] for row in row_by_run.values())


def test_worst_prover_ranks_the_runs_of_a_verifier(results: Path) -> None:
    rows = [row for row in run_query(results, "@worst_prover", "benchmark=tiny/v1") if row["provers"] == 2]
    assert sorted(row["run_id"] for row in rows) == find_run_ids(results, "nip")
    assert [row["accuracy"] for row in rows] == sorted(row["accuracy"] for row in rows)
    games = group_by(load_games(results, "nip"), "run_id")
    for row in rows:
        accepts = {
            y: mean(g["decision"] == 1 for g in label_games)
            for (y,), label_games in group_by(games[row["run_id"],], "y").items()
        }
        assert is_close(row["soundness_error"], accepts[0])
        assert is_close(row["completeness"], accepts[1])


def test_confusion_counts_the_verdicts_of_each_slice(results: Path) -> None:
    run_id = find_run_ids(results, "nip")[0]
    rows = [game for game in load_games(results, "nip") if game["run_id"] == run_id]
    cells = run_query(results, "@confusion", f"run={run_id}", "by=hard")
    assert [(row["slice"], row["y"]) for row in cells] == [("false", 0), ("false", 1), ("true", 0), ("true", 1)]
    for row in cells:
        cell_games = [g for g in rows if g["y"] == row["y"] and (int(g["group"]) % 2 == 0) == (row["slice"] == "true")]
        assert row["games"] == len(cell_games) == PROBLEMS // 2 * REPEATS
        assert [row[verdict] for verdict in ("reject", "accept", "none")] == [
            sum(g["decision"] == decision for g in cell_games) for decision in (0, 1, 2)
        ]
        assert is_close(row["accuracy"], accuracy(cell_games))
    assert [row["slice"] for row in run_query(results, "@confusion", f"run={run_id}")] == ["all", "all"]


def test_stances_and_rounds_have_the_accuracy_of_their_games(results: Path) -> None:
    run_id = find_run_ids(results, "nip")[0]
    rows = [game for game in load_games(results, "nip") if game["run_id"] == run_id]
    stances = run_query(results, "@stances", f"run={run_id}")
    groups = group_by(rows, "stance", "y")
    assert [(row["stance"], row["y"]) for row in stances] == sorted(groups)
    assert {row["stance"] for row in stances} == {0, 1}
    for row in stances:
        row_games = groups[row["stance"], row["y"]]
        assert is_close(row["accuracy"], accuracy(row_games))
        assert is_close(row["persuaded"], mean(g["decision"] == row["stance"] for g in row_games))
    rounds = group_by(rows, "rounds")
    for row in run_query(results, "@accuracy_by_round", f"run={run_id}"):
        row_games = rounds.pop((row["rounds"],))
        assert (row["games"], row["decided"]) == (len(row_games), sum(g["outcome"] == "decided" for g in row_games))
        assert is_close(row["accuracy"], accuracy(row_games))
    assert not rounds


def test_reliability_query_returns_the_bins_of_the_run_metrics(results: Path) -> None:
    for kind in ("stated", "logprob"):
        rows_by_run = group_by(run_query(results, "@reliability", f"kind={kind}"), "run_id")
        assert rows_by_run
        for (run_id,), rows in rows_by_run.items():
            metrics = json.loads((results / "runs" / run_id / "metrics.json").read_text())
            curve = metrics["reliability_curves"][kind]
            assert [(row["games"], round(row["low"], 9)) for row in rows] == [
                (expected_bin["n"], round(expected_bin["low"], 9)) for expected_bin in curve
            ]
            for row, expected_bin in zip(rows, curve, strict=True):
                assert is_close(row["confidence"], expected_bin["confidence"])
                assert is_close(row["right"], expected_bin["right"])
                assert is_close(row["gap"], expected_bin["right"] - expected_bin["confidence"])
    with redirect_stderr(StringIO()) as stderr:
        assert main(["sql", "@reliability", "kind=text", "--results", str(results)]) == 2
    assert "kind=text: use stated or logprob" in stderr.getvalue()


def test_verdict_moves_and_position_bias_queries_match_the_recorded_verdicts(swapped_results: Path) -> None:
    runs = {row["rejudge_of"] is not None: row["run_id"] for row in run_sql(swapped_results, "FROM runs")}
    rows = group_by(run_sql(swapped_results, "FROM rollouts"), "run_id")
    verdict_changes = [
        (verdict["round"], verdict["decision"], row["y"], before["decision"] if before else None)
        for row in rows[runs[True],]
        for verdicts in [json.loads(row["verdicts"])]
        for before, verdict in zip([None, *verdicts], verdicts, strict=False)
    ]
    moves = run_query(swapped_results, "@verdict_moves")
    assert {row["run_id"] for row in moves} == {runs[True]}
    assert [row["round"] for row in moves] == sorted({round_ for round_, *_ in verdict_changes})
    assert sum(row["changed"] for row in moves) > sum(row["gained"] for row in moves) > 0
    for row in moves:
        round_changes = [change for change in verdict_changes if change[0] == row["round"]]
        assert row["verdicts"] == len(round_changes)
        assert is_close(row["right"], mean(decision == y for _, decision, y, _ in round_changes))
        changed = [decision == y for _, decision, y, before in round_changes if {decision, before} == {0, 1}]
        assert (row["changed"], row["gained"]) == (len(changed), sum(changed))
    (bias,) = run_sql(swapped_results, f"FROM metrics WHERE metric = 'position_bias' AND run_id = '{runs[False]}'")
    cells = run_query(swapped_results, "@position_bias", f"run={runs[False]}")
    by_cell = ("stances_exchanged", "swapped", "y")
    expected = [(turned, swapped, y) for turned in (False, True) for swapped in (False, True) for y in (0, 1)]
    assert [tuple(row[name] for name in by_cell) for row in cells] == expected
    for row in cells:
        cell_games = [game for game in rows[runs[False],] if all(game[name] == row[name] for name in by_cell)]
        assert row["games"] == len(cell_games)
        assert is_close(row["accept"], mean(game["decision"] == 1 for game in cell_games))
        assert [row[name] for name in ("position_bias", "bias_low")] == [bias["value"], bias["ci_low"]]


def test_hardest_query_lists_datapoints_by_ascending_accuracy(results: Path) -> None:
    games = group_by([*load_games(results, "nip"), *load_games(results, "solo_verifier")], "datapoint_id")
    rows = run_query(results, "@hardest", "benchmark=tiny/v1", "limit=3")
    rows = [row for row in rows if row["datapoint_id"] in {point for (point,) in games}]
    shares = sorted(accuracy(point_games) for point_games in games.values())
    assert [row["accuracy"] for row in rows] == pytest.approx(shares[: len(rows)])
    assert rows[0]["runs"] == 4


def test_token_and_longest_games_queries_add_up_to_the_run_totals(results: Path) -> None:
    run_id = find_run_ids(results, "nip")[0]
    (run_row,) = run_sql(results, f"FROM runs WHERE run_id = '{run_id}'")
    agents = run_query(results, "@tokens_by_agent", f"run={run_id}")
    assert [row["agent"] for row in agents] == ["prover", "verifier"]
    for key, column in (("calls", "completions"), ("prompt_tokens",) * 2, ("completion_tokens",) * 2):
        assert sum(row[key] for row in agents) == run_row[column]
    longest = run_query(results, "@longest_games", f"run={run_id}", "limit=1000")
    assert sum(row["tokens"] for row in longest) == run_row["prompt_tokens"] + run_row["completion_tokens"]
    assert [row["tokens"] for row in longest] == sorted((row["tokens"] for row in longest), reverse=True)
    assert len(longest) == run_row["rollouts"]
    assert len(run_query(results, "@longest_games", "limit=2")) == 2


def test_retry_and_cost_queries_count_unusable_answers(tmp_path: Path) -> None:
    with run_chat_server(kind="bad_decision") as server:
        spec = spec_file(
            tmp_path, server.base_url, size=2, models={"m": {"price": {"input": 1.0, "output": 2.0}}},
            protocol={"max_message_rounds": 1}, retry={"invalid_response": {"attempts": 3, "then": "empty_message"}},
        )  # fmt: skip
        finished_run = run(spec, tmp_path / "results")
    (reason,) = run_query(tmp_path / "results", "@retry_reasons")
    assert reason["reason"] == "not in the requested format"
    assert (reason["agent"], reason["calls"], reason["games"]) == ("verifier", 4, 2)
    assert is_close(reason["share"], 4 / 6)
    (row,) = run_query(tmp_path / "results", "@cost_per_right_verdict")
    assert (row["right"], row["usd_per_right"]) == (0, None)
    assert is_close(row["cost_usd"], finished_run.manifest.cost_usd or 0)


def test_cost_query_divides_the_tokens_by_the_right_verdicts(results: Path) -> None:
    costs = {row["run_id"]: row for row in run_query(results, "@cost_per_right_verdict")}
    for (run_id,), games in group_by(load_games(results, "nip"), "run_id").items():
        (run_row,) = run_sql(results, f"FROM runs WHERE run_id = '{run_id}'")
        hits = sum(bool(game["correct"]) for game in games)
        assert costs[run_id]["right"] == hits
        assert is_close(
            costs[run_id]["tokens_per_right"], (run_row["prompt_tokens"] + run_row["completion_tokens"]) / hits
        )


def test_rejudged_runs_are_not_baselines_and_votes_are_not_games(results: Path, tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    names = ("run_id", "baseline_runs", "datapoints", "groups", "rejudge_of")
    before = sorted(group_by(run_query(copy, "@uplift"), *names))
    assert [baseline for _, baseline, *_ in before] == [", ".join(find_run_ids(results, "solo_verifier"))] * 2
    solo_run = find_run_ids(results, "solo_verifier")[0]
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        assert main(["rejudge", solo_run, "votes=3", "-q", "--results", str(copy)]) == 0
    assert sorted(group_by(run_query(copy, "@uplift"), *names)) == before
    assert run_query(copy, "@retry_reasons", "run=last") == []  # votes do not count as retries
    assert len(run_query(copy, "@protocols")) == len(run_query(results, "@protocols"))


def test_user_query_is_found_by_name_and_by_path(results: Path, tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    (copy / "queries").mkdir()
    text = (
        "-- Runs of a protocol.\n-- $protocol TEXT = nip: it\nSELECT count(*) AS n FROM runs WHERE protocol = $protocol"
    )
    (copy / "queries" / "mine.sql").write_text(text)
    assert run_query(copy, "@mine") == run_query(copy, "SELECT count(*) AS n FROM runs WHERE protocol = 'nip'")
    assert run_query(copy, "@mine", "protocol=solo_verifier") == [{"n": 2}]
    assert run_query(results, f"@{copy}/queries/mine.sql", "protocol=solo_verifier") == [{"n": 2}]
    assert run_query(results, "SELECT $n::INTEGER + 1 AS m", "n=2") == [{"m": 3}]
    target = tmp_path / "answer.parquet"
    assert main(["sql", "@mine", "protocol=solo_verifier", "--results", str(copy), "-o", str(target)]) == 0
    assert parquet_rows(target) == [{"n": 2}]
