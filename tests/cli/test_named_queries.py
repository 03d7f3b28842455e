"""`nip-run sql @NAME`: what each kept question answers, counted again from the rows that it is about."""

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

from runner.api import query, run
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
    """The results folder of two protocols, with two seeds each."""
    folder = tmp_path_factory.mktemp("queries")
    rows = [
        {"id": f"{n}-{y}", "label": y, "question": f"q{n}", "solution": f"s{n}{y}", "problem": n, "hard": n % 2 == 0}
        for n in range(PROBLEMS)
        for y in (0, 1)
    ]
    dataset = {"path": "pairs.jsonl", "group_by": "problem"}
    sure: dict[str, Any] = {"models": {"m": {"logprobs": True, "top_logprobs": 5}}, "verdict": {"confidence": "both"}}
    path = spec_file(folder, dataset=dataset, rollouts={"per_datapoint": REPEATS}, fine_tune=None, **sure)
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
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of a training run with two seeds."""
    folder = tmp_path_factory.mktemp("trained")
    for point in load_specs(training_spec(folder, training={"test": {"scheme": "all"}}), {"sweep": {"seed": [1, 2]}}):
        run(point, folder / "results")
    return folder / "results"


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of a debate with its seats exchanged, and of a judge of it that is asked in each round."""
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
    for words in (["run", str(path)], ["rejudge", "last", "models.judge.model=wise", "--verdict", "each"]):
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
            assert main([*words, "-q", "--results", str(results)]) == 0, said.getvalue()
    return results


def run_query(results: Path, *words: str) -> list[Row]:
    out = StringIO()
    with redirect_stdout(out):
        assert main(["sql", "--results", str(results), "--json", *words]) == 0
    found: list[Row] = json.loads(out.getvalue())
    return found


def raw(results: Path, sql: str) -> list[Row]:
    relation = query(sql, results)
    return [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]


def by(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return found


def right(rows: Iterable[Row]) -> float:
    return mean(bool(row["correct"]) for row in rows)


def close(found: Any, wanted: float) -> bool:
    return math.isclose(float(found), wanted, rel_tol=1e-9, abs_tol=1e-12)


def games_of(results: Path, protocol: str) -> list[Row]:
    """The games of the runs of a sweep, with the group of each."""
    rows = raw(results, "SELECT r.*, u.protocol, u.name FROM rollouts r JOIN runs u USING (run_id)")
    return [row | {"group": row["datapoint_id"].split("-")[0]} for row in rows if mine(row, protocol)]


def mine(row: Row, protocol: str) -> bool:
    return bool(row["name"] == "tiny" and row["protocol"] == protocol)


def runs_named(results: Path, protocol: str) -> list[str]:
    return sorted({row["run_id"] for row in games_of(results, protocol)})


def test_uplift_is_the_mean_difference_of_groups_and_its_error(results: Path) -> None:
    games, alone = games_of(results, "nip"), by(games_of(results, "solo_verifier"), "group")
    found = {row["run_id"]: row for row in run_query(results, "@uplift")}
    assert sorted(found) == runs_named(results, "nip")
    for (run_id,), rows in by(games, "run_id").items():
        differences = [right(own) - right(alone[group]) for group, own in by(rows, "group").items()]
        row = found[run_id]
        assert row["groups"] == PROBLEMS
        assert close(row["uplift"], mean(differences))
        assert close(row["uplift"], row["accuracy"] - row["baseline"])
        assert close(row["stderr"], stdev(differences) / math.sqrt(PROBLEMS))


def test_protocols_pools_the_seeds_and_clusters_by_group(results: Path) -> None:
    found = {row["protocol"]: row for row in run_query(results, "@protocols", "benchmark=tiny/v1") if row["seeds"] == 2}
    assert list(found) == sorted(found, key=lambda name: -found[name]["accuracy"])
    assert set(found) == {"nip", "solo_verifier"}
    for name, row in found.items():
        games = games_of(results, name)
        assert row["games"] == len(games) == 2 * 2 * PROBLEMS * REPEATS
        assert close(row["accuracy"], right(games))
        residuals = [sum(bool(g["correct"]) - right(games) for g in own) ** 2 for own in by(games, "group").values()]
        assert close(row["stderr"], math.sqrt(PROBLEMS / (PROBLEMS - 1) * sum(residuals)) / len(games))
        seeds = [right(own) for own in by(games, "run_id").values()]
        assert (row["lowest"], row["highest"]) == (min(seeds), max(seeds))
        assert close(row["accept"], mean(game["decision"] == 1 for game in games))


def test_flips_are_the_games_with_two_verdicts(results: Path) -> None:
    a, b = runs_named(results, "nip")
    games = {(g["run_id"], g["datapoint_id"], g["repeat"]): g for g in games_of(results, "nip")}
    words = {0: "reject", 1: "accept", 2: "none"}
    wanted = {
        (point, repeat, words[first["decision"]], words[games[b, point, repeat]["decision"]])
        for (run_id, point, repeat), first in games.items()
        if run_id == a and first["decision"] != games[b, point, repeat]["decision"]
    }
    found = run_query(results, "@flips", f"run_a={a}", f"run_b={b}")
    assert {(r["datapoint_id"], r["repeat"], r["verdict_a"], r["verdict_b"]) for r in found} == wanted
    assert wanted
    for row in found:
        second = games[b, row["datapoint_id"], row["repeat"]]
        assert row["game_b"] == second["rollout_id"]
        assert (row["change"] == "gained") == bool(second["correct"])


def test_learning_curves_and_seeds_have_the_mean_and_the_band_of_the_seeds(trained: Path) -> None:
    tests = by(raw(trained, "FROM leaderboard JOIN runs USING (run_id, name) WHERE parent_run_id <> ''"), "iteration")
    curve = run_query(trained, "@learning_curve", "name=learn")
    spread = run_query(trained, "@seeds", "name=learn")
    assert [row["iteration"] for row in curve] == [row["iteration"] for row in spread] == [0, 1, 2]
    for row in (*curve, *spread):
        values = [test["accuracy"] for test in tests[row["iteration"],]]
        assert len(values) == row["seeds"] == 2
        assert close(row["accuracy"], mean(values))
        assert close(row["between"], stdev(values))
        assert (row["lowest"], row["highest"]) == (min(values), max(values))
        assert close(row["within"], math.sqrt(mean(test["stderr"] ** 2 for test in tests[row["iteration"],])))


def test_always_failed_is_the_share_of_datapoints_without_a_right_verdict(results: Path) -> None:
    found = {row["run_id"]: row for row in run_query(results, "@always_failed", f"repeats={REPEATS}")}
    games = [*games_of(results, "nip"), *games_of(results, "solo_verifier")]
    assert set(found) == {game["run_id"] for game in games}
    for (run_id,), rows in by(games, "run_id").items():
        failed = {
            (y, point): not any(g["correct"] for g in own) for (y, point), own in by(rows, "y", "datapoint_id").items()
        }
        assert close(found[run_id]["always_failed"], mean(failed.values()))
        for label in (0, 1):
            share = mean(value for (y, _), value in failed.items() if y == label)
            assert close(found[run_id][f"always_failed_{label}"], share)
        (known,) = raw(
            results, f"FROM metrics WHERE run_id = '{run_id}' AND metric = 'always_failed' AND agent IS NULL"
        )
        assert close(found[run_id]["always_failed"], known["value"])
        assert [found[run_id][end] for end in ("ci_low", "ci_high")] == [known["ci_low"], known["ci_high"]]
    assert any(row["always_failed"] for row in found.values())


def test_worst_prover_ranks_the_runs_of_a_verifier(results: Path) -> None:
    found = [row for row in run_query(results, "@worst_prover", "benchmark=tiny/v1") if row["provers"] == 2]
    assert sorted(row["run_id"] for row in found) == runs_named(results, "nip")
    assert [row["accuracy"] for row in found] == sorted(row["accuracy"] for row in found)
    games = by(games_of(results, "nip"), "run_id")
    for row in found:
        accepts = {y: mean(g["decision"] == 1 for g in own) for (y,), own in by(games[row["run_id"],], "y").items()}
        assert close(row["soundness_error"], accepts[0])
        assert close(row["completeness"], accepts[1])


def test_confusion_counts_the_verdicts_of_each_slice(results: Path) -> None:
    name = runs_named(results, "nip")[0]
    rows = [game for game in games_of(results, "nip") if game["run_id"] == name]
    found = run_query(results, "@confusion", f"run={name}", "by=hard")
    assert [(row["slice"], row["y"]) for row in found] == [("false", 0), ("false", 1), ("true", 0), ("true", 1)]
    for row in found:
        own = [g for g in rows if g["y"] == row["y"] and (int(g["group"]) % 2 == 0) == (row["slice"] == "true")]
        assert row["games"] == len(own) == PROBLEMS // 2 * REPEATS
        assert [row[verdict] for verdict in ("reject", "accept", "none")] == [
            sum(g["decision"] == decision for g in own) for decision in (0, 1, 2)
        ]
        assert close(row["accuracy"], right(own))
    assert [row["slice"] for row in run_query(results, "@confusion", f"run={name}")] == ["all", "all"]


def test_stances_and_rounds_have_the_accuracy_of_their_games(results: Path) -> None:
    name = runs_named(results, "nip")[0]
    rows = [game for game in games_of(results, "nip") if game["run_id"] == name]
    stances = run_query(results, "@stances", f"run={name}")
    groups = by(rows, "stance", "y")
    assert [(row["stance"], row["y"]) for row in stances] == sorted(groups)
    assert {row["stance"] for row in stances} == {0, 1}
    for row in stances:
        own = groups[row["stance"], row["y"]]
        assert close(row["accuracy"], right(own))
        assert close(row["persuaded"], mean(g["decision"] == row["stance"] for g in own))
    rounds = by(rows, "rounds")
    for row in run_query(results, "@accuracy_by_round", f"run={name}"):
        own = rounds.pop((row["rounds"],))
        assert (row["games"], row["decided"]) == (len(own), sum(g["outcome"] == "decided" for g in own))
        assert close(row["accuracy"], right(own))
    assert not rounds


def test_reliability_has_the_bins_of_the_runs_metrics(results: Path) -> None:
    for kind in ("stated", "logprob"):
        found = by(run_query(results, "@reliability", f"kind={kind}"), "run_id")
        assert found
        for (run_id,), rows in found.items():
            metrics = json.loads((results / "runs" / run_id / "metrics.json").read_text())
            curve = metrics["reliability_curves"][kind]
            assert [(row["games"], round(row["low"], 9)) for row in rows] == [
                (one["n"], round(one["low"], 9)) for one in curve
            ]
            for row, one in zip(rows, curve, strict=True):
                assert close(row["confidence"], one["confidence"])
                assert close(row["right"], one["right"])
                assert close(row["gap"], one["right"] - one["confidence"])
    with redirect_stderr(StringIO()) as said:
        assert main(["sql", "@reliability", "kind=text", "--results", str(results)]) == 2
    assert "kind=text: give stated or logprob" in said.getvalue()


def test_verdicts_move_from_round_to_round_and_with_the_seats(moved: Path) -> None:
    runs = {row["rejudge_of"] is not None: row["run_id"] for row in raw(moved, "FROM runs")}
    rows = by(raw(moved, "FROM rollouts"), "run_id")
    given = [
        (one["round"], one["decision"], row["y"], before["decision"] if before else None)
        for row in rows[runs[True],]
        for verdicts in [json.loads(row["verdicts"])]
        for before, one in zip([None, *verdicts], verdicts, strict=False)
    ]
    found = run_query(moved, "@verdict_moves")
    assert {row["run_id"] for row in found} == {runs[True]}
    assert [row["round"] for row in found] == sorted({round_ for round_, *_ in given})
    assert sum(row["changed"] for row in found) > sum(row["gained"] for row in found) > 0
    for row in found:
        said = [one for one in given if one[0] == row["round"]]
        assert row["verdicts"] == len(said)
        assert close(row["right"], mean(decision == y for _, decision, y, _ in said))
        changed = [decision == y for _, decision, y, before in said if {decision, before} == {0, 1}]
        assert (row["changed"], row["gained"]) == (len(changed), sum(changed))
    (bias,) = raw(moved, f"FROM metrics WHERE metric = 'position_bias' AND run_id = '{runs[False]}'")
    cells = run_query(moved, "@position_bias", f"run={runs[False]}")
    by_cell = ("stances_exchanged", "swapped", "y")
    ways = [(turned, swapped, y) for turned in (False, True) for swapped in (False, True) for y in (0, 1)]
    assert [tuple(row[name] for name in by_cell) for row in cells] == ways
    for row in cells:
        own = [one for one in rows[runs[False],] if all(one[name] == row[name] for name in by_cell)]
        assert row["games"] == len(own)
        assert close(row["accept"], mean(one["decision"] == 1 for one in own))
        assert [row[name] for name in ("position_bias", "bias_low")] == [bias["value"], bias["ci_low"]]


def test_hardest_begins_with_the_datapoints_that_most_get_wrong(results: Path) -> None:
    games = by([*games_of(results, "nip"), *games_of(results, "solo_verifier")], "datapoint_id")
    found = run_query(results, "@hardest", "benchmark=tiny/v1", "limit=3")
    found = [row for row in found if row["datapoint_id"] in {point for (point,) in games}]
    shares = sorted(right(own) for own in games.values())
    assert [row["accuracy"] for row in found] == pytest.approx(shares[: len(found)])
    assert found[0]["runs"] == 4


def test_tokens_and_longest_games_add_up_to_the_run(results: Path) -> None:
    name = runs_named(results, "nip")[0]
    (run_,) = raw(results, f"FROM runs WHERE run_id = '{name}'")
    agents = run_query(results, "@tokens_by_agent", f"run={name}")
    assert [row["agent"] for row in agents] == ["prover", "verifier"]
    for key, of_run in (("calls", "completions"), ("prompt_tokens",) * 2, ("completion_tokens",) * 2):
        assert sum(row[key] for row in agents) == run_[of_run]
    longest = run_query(results, "@longest_games", f"run={name}", "limit=1000")
    assert sum(row["tokens"] for row in longest) == run_["prompt_tokens"] + run_["completion_tokens"]
    assert [row["tokens"] for row in longest] == sorted((row["tokens"] for row in longest), reverse=True)
    assert len(longest) == run_["rollouts"]
    assert len(run_query(results, "@longest_games", "limit=2")) == 2


def test_retry_reasons_and_costs_tell_of_answers_that_could_not_be_used(tmp_path: Path) -> None:
    with run_chat_server(kind="bad_decision") as server:
        spec = spec_file(
            tmp_path, server.base_url, size=2, models={"m": {"price": {"input": 1.0, "output": 2.0}}},
            protocol={"max_message_rounds": 1}, retry={"invalid_response": {"attempts": 3, "then": "empty_message"}},
        )  # fmt: skip
        odd = run(spec, tmp_path / "results")
    (reason,) = run_query(tmp_path / "results", "@retry_reasons")
    assert reason["reason"] == "not in the form that was asked for"
    assert (reason["agent"], reason["calls"], reason["games"]) == ("verifier", 4, 2)
    assert close(reason["share"], 4 / 6)
    (row,) = run_query(tmp_path / "results", "@cost_per_right_verdict")
    assert (row["right"], row["usd_per_right"]) == (0, None)
    assert close(row["cost_usd"], odd.manifest.cost_usd or 0)


def test_costs_are_those_of_right_verdicts(results: Path) -> None:
    costs = {row["run_id"]: row for row in run_query(results, "@cost_per_right_verdict")}
    for (run_id,), games in by(games_of(results, "nip"), "run_id").items():
        (run_,) = raw(results, f"FROM runs WHERE run_id = '{run_id}'")
        hits = sum(bool(game["correct"]) for game in games)
        assert costs[run_id]["right"] == hits
        assert close(costs[run_id]["tokens_per_right"], (run_["prompt_tokens"] + run_["completion_tokens"]) / hits)


def test_only_what_was_played_is_a_baseline_and_each_game_is_one(results: Path, tmp_path: Path) -> None:
    own = tmp_path / "results"
    shutil.copytree(results, own)
    names = ("run_id", "baseline_runs", "datapoints", "groups", "rejudge_of")
    before = sorted(by(run_query(own, "@uplift"), *names))
    assert [baseline for _, baseline, *_ in before] == [", ".join(runs_named(results, "solo_verifier"))] * 2
    alone = runs_named(results, "solo_verifier")[0]
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        assert main(["rejudge", alone, "votes=3", "-q", "--results", str(own)]) == 0
    assert sorted(by(run_query(own, "@uplift"), *names)) == before
    assert run_query(own, "@retry_reasons", "run=last") == []  # votes are no retries
    assert len(run_query(own, "@protocols")) == len(run_query(results, "@protocols"))


def test_ones_own_query_is_found_by_name_and_by_path(results: Path, tmp_path: Path) -> None:
    own = tmp_path / "results"
    shutil.copytree(results, own)
    (own / "queries").mkdir()
    text = (
        "-- Runs of a protocol.\n-- $protocol TEXT = nip: it\nSELECT count(*) AS n FROM runs WHERE protocol = $protocol"
    )
    (own / "queries" / "mine.sql").write_text(text)
    assert run_query(own, "@mine") == run_query(own, "SELECT count(*) AS n FROM runs WHERE protocol = 'nip'")
    assert run_query(own, "@mine", "protocol=solo_verifier") == [{"n": 2}]
    assert run_query(results, f"@{own}/queries/mine.sql", "protocol=solo_verifier") == [{"n": 2}]
    assert run_query(results, "SELECT $n::INTEGER + 1 AS m", "n=2") == [{"m": 3}]
    target = tmp_path / "answer.parquet"
    assert main(["sql", "@mine", "protocol=solo_verifier", "--results", str(own), "-o", str(target)]) == 0
    assert parquet_rows(target) == [{"n": 2}]
