"""The leaderboard ranks comparable runs: one list per task, and a reason for each unranked run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from runner.base.errors import RunError, UsageError
from runner.pages.boards.lists import local_board
from runner.results.comparison.comparison import ComparisonOptions, compare_systems
from runner.results.leaderboard.database import FILE
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.sweep_table import SweepPoint, sweep_rows
from runner.results.manifest import Status
from runner.runs.finished.selection import ReplayOf
from tests.compatibility.old import RUNS, copy_old_files
from tests.support.processes import nip_run_here
from tests.support.runs import run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.specs import SOLO_OVERRIDES, debate_with_hints, spec_file
from tests.support.training import training_spec

SOLO = {
    "protocol": {"use": "solo_verifier", "max_message_rounds": None},
    "prompts": "prompts/code_validation/solo_verifier",
    "agents": {"prover": None},
    "fine_tune": None,
}
LOST = "returns x + 3."
"""Text in the request of one datapoint, which the server refuses as malformed: its rollout is lost in transport."""
OTHER_DATAPOINTS = "other datapoints, such as {}: ids, groups, labels or contents differ; `nip-run compare` says how"
ALSO = "settings that also differ:"


@pytest.fixture(scope="module")
def working_server() -> Iterator[LoopbackServer]:
    with run_chat_server() as server:
        yield server


@pytest.fixture(scope="module")
def failing_server() -> Iterator[LoopbackServer]:
    with run_chat_server(malformed=LOST) as server:
        yield server


def read_board(results: Path) -> dict[str, dict[str, Any]]:
    columns, rows = Results(results).board.query("SELECT * FROM leaderboard")
    return {row["run_id"]: row for row in (dict(zip(columns, row, strict=True)) for row in rows)}


def write_spec_with_two_splits(folder: Path, base_url: str) -> Path:
    path = spec_file(folder, base_url, size=12, **SOLO, dataset={"split": "test", "limit": 6})
    data = folder / "data.jsonl"
    rows = [
        {**json.loads(line), "split": ("test", "train")[i // 8]} for i, line in enumerate(data.read_text().splitlines())
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.full
def test_only_comparable_runs_rank_and_every_other_run_has_a_reason(
    tmp_path: Path, working_server: LoopbackServer, failing_server: LoopbackServer
) -> None:
    path, results = write_spec_with_two_splits(tmp_path, working_server.base_url), tmp_path / "results"

    def run(name: str, *overrides: str, **options: Any) -> str:
        return run_spec(path, results, *overrides, run_id=name, **options).folder.run_id

    good = [run("good"), run("good-too", "seed=8", "rollouts.per_datapoint=2")]
    run("lost", "seed=9", f"models.m.base_url={failing_server.base_url}")
    run("replay", replay=ReplayOf(results / "runs" / "good"))
    run("tree", "rollouts.num_responses_per_timestep=2", "seed=10")
    run("split", "dataset.split=train", "dataset.limit=4")
    run("limit", "dataset.limit=5")
    rows = read_board(results)
    assert {name: row["reason"] for name, row in rows.items() if name not in good} == {
        "lost": "incomplete: 1 of 6 rollouts lost in transport",
        "replay": "replay of good",
        "tree": "tree: its samples are not independent games",
        "split": f"{OTHER_DATAPOINTS.format('p0')}; {ALSO} split train (this list: test), limit 4 (this list: 6)",
        "limit": f"{OTHER_DATAPOINTS.format('p5')}; {ALSO} limit 5 (this list: 6)",
    }
    assert {name for name, row in rows.items() if row["rank"] is not None} == set(good)
    assert sorted(rows[name]["rank"] for name in good) in ([1, 1], [1, 2])
    assert {row["list"] for row in rows.values()} == {1}
    assert (rows["lost"]["failures"], rows["good"]["failures"], rows["lost"]["n"]) == (1, 0, 5)
    Results(results).board.rebuild()
    assert read_board(results) == rows
    output = nip_run_here("leaderboard", cwd=tmp_path).stdout
    first, last = output.split("without a rank:")
    assert all(name in first for name in good)
    assert all(f"{name} " in last and rows[name]["reason"] in last for name in rows.keys() - good)


@pytest.mark.full
def test_incomplete_run_is_reported_and_can_be_resumed(
    tmp_path: Path, working_server: LoopbackServer, failing_server: LoopbackServer
) -> None:
    spec_file(tmp_path, failing_server.base_url, size=8, **SOLO)
    arguments = ("run", "spec.yaml", "--run-id", "mine")
    process = nip_run_here(*arguments, cwd=tmp_path)
    assert process.returncode == 1
    last = process.stderr.splitlines()[-1]
    assert last.startswith("run mine is incomplete: 1 of 8 rollouts lost in transport")
    assert "p3" in last
    assert last.endswith("Resume with: nip-run run spec.yaml --run-id mine")
    (listed,) = json.loads(nip_run_here("runs", "--status", "incomplete", "--json", cwd=tmp_path).stdout)
    assert (listed["run_id"], listed["transport_failed"]) == ("mine", 1)
    assert Results(tmp_path / "results").board.query("SELECT count(*) FROM rollouts")[1] == [(8,)]
    allowed = nip_run_here(*arguments, "rollouts.max_transport_failed=0.125", cwd=tmp_path)
    assert (allowed.returncode, read_board(tmp_path / "results")["mine"]["rank"]) == (0, 1)
    requests = working_server.requests
    assert nip_run_here(*arguments, f"models.m.base_url={working_server.base_url}", cwd=tmp_path).returncode == 0
    assert working_server.requests == requests + 1
    assert read_board(tmp_path / "results")["mine"]["failures"] == 0


@pytest.mark.full
def test_incomplete_sweep_point_does_not_stop_the_others(tmp_path: Path, failing_server: LoopbackServer) -> None:
    spec_file(tmp_path, failing_server.base_url, size=4, **SOLO, sweep={"dataset.filter": ["true", "id <> 'p3'"]})
    process = nip_run_here("spec.yaml", "--json", cwd=tmp_path)
    assert process.returncode == 1
    assert [row["status"] for row in json.loads(process.stdout)] == ["incomplete", "done"]


@pytest.mark.full
def test_run_with_lost_rollouts_that_0_1_0_marked_done_does_not_rank(
    tmp_path: Path, failing_server: LoopbackServer
) -> None:
    folder = run_spec(spec_file(tmp_path, failing_server.base_url, size=4, **SOLO), tmp_path / "results").folder
    folder.write_manifest(replace(folder.manifest(), status=Status.DONE))
    Results(tmp_path / "results").board.rebuild()
    (row,) = read_board(tmp_path / "results").values()
    assert (row["status"], row["rank"]) == ("done", None)
    assert row["reason"] == "incomplete: 1 of 4 rollouts lost in transport"


@pytest.mark.full
def test_nothing_is_trained_on_incomplete_games(
    tmp_path: Path, working_server: LoopbackServer, failing_server: LoopbackServer
) -> None:
    model = {"provider": "openai", "model": "tiny", "base_url": failing_server.base_url}
    training = {"iterations": 1, "test": {"scheme": "none"}, "trainers": {"v": None}}
    agents = {"verifier": {"freeze": True}}
    path = training_spec(tmp_path, models={"v": model}, agents=agents, training=training)
    with pytest.raises(RunError, match=r"a part of the training run learn-\w+, is incomplete: 1 of 12 rollouts lost"):
        run_spec(path, tmp_path / "results")
    assert not list((tmp_path / "results").rglob("*.sft.jsonl"))
    training_run = run_spec(path, tmp_path / "results", f"models.v.base_url={working_server.base_url}")
    assert training_run.manifest.status == Status.DONE


@pytest.mark.full
def test_two_runs_with_another_task_form_a_second_list(tmp_path: Path) -> None:
    path, results = spec_file(tmp_path, size=4, fine_tune=None), tmp_path / "results"
    for limit in (4, 3):
        for seed in (1, 2):
            run_spec(path, results, f"dataset.limit={limit}", f"seed={seed}", run_id=f"r{limit}{seed}")
    rows = read_board(results)
    assert {name: row["list"] for name, row in rows.items()} == {"r41": 1, "r42": 1, "r31": 2, "r32": 2}
    assert all(row["rank"] in (1, 2) and row["reason"] is None for row in rows.values())


# Columns that only provers see


@pytest.mark.gate
def test_a_column_that_only_provers_see_does_not_change_the_task(tmp_path: Path) -> None:
    path, results = debate_with_hints(tmp_path / "spec"), tmp_path / "results"
    run_spec(path, results, run_id="debate")
    run_spec(path, results, *SOLO_OVERRIDES, run_id="alone")
    runs = read_board(results)
    assert {row["list"] for row in runs.values()} == {1}
    assert {row["reason"] for row in runs.values()} == {None}
    assert runs["debate"]["task"] == runs["alone"]["task"]
    assert runs["debate"]["earlier_task"] not in (None, runs["debate"]["task"])
    assert runs["alone"]["earlier_task"] is None
    results_folder = Results(results)
    for comparison in (
        compare_systems([["debate"], ["alone"]], results_folder, ComparisonOptions()),
        compare_systems([["debate"]], results_folder, ComparisonOptions(baseline="solo_verifier")),
    ):
        (pair,) = comparison.pairs
        assert (pair.paired, pair.datapoints, pair.only_base, pair.only_other, pair.notes) == (True, 6, (), (), ())
    rows = sweep_rows([SweepPoint(name, name, {}, 7) for name in ("debate", "alone")], results_folder)
    assert len({row.task for row in rows}) == 1
    (task,) = local_board(results_folder).lists
    assert {row.values["run"] for row in task.ranked} == {"debate", "alone"}


@pytest.mark.gate
def test_a_baseline_on_another_task_is_refused_with_the_columns_or_rows_that_differ(tmp_path: Path) -> None:
    path, results = debate_with_hints(tmp_path / "spec"), tmp_path / "results"
    run_spec(path, results, run_id="debate")
    run_spec(path, results, *SOLO_OVERRIDES, "dataset.limit=5", run_id="fewer")
    with pytest.raises(UsageError, match=r"fewer: datapoints differ: 1 missing \(such as 'p"):
        compare_systems([["debate"]], Results(results), ComparisonOptions(baseline="solo_verifier"))
    data = tmp_path / "spec" / "data.jsonl"
    lines = data.read_text()
    data.write_text(lines.replace('"id":"p', '"id":"q').replace('"id": "p', '"id": "q'))
    run_spec(path, results, run_id="renamed")
    data.write_text(lines)
    with pytest.raises(
        UsageError, match=r"fewer: .*: 5 with another id \(such as 'p0' .*'q0'\), 1 missing \(such as 'q"
    ):
        compare_systems([["renamed"]], Results(results), ComparisonOptions(baseline="solo_verifier"))
    verifier = tmp_path / "spec" / "prompts" / "verifier.jinja"
    verifier.write_text(verifier.read_text() + "\nHint: {{ hint }}\n")
    run_spec(path, results, run_id="told")
    with pytest.raises(UsageError, match=r"other columns \(question, solution instead of hint, question, solution\)"):
        compare_systems([["told"]], Results(results), ComparisonOptions(baseline="solo_verifier"))


# Reasons


@pytest.mark.gate
def test_a_reason_names_the_cause_first_and_then_settings_that_also_differ(tmp_path: Path) -> None:
    path, results = debate_with_hints(tmp_path / "spec"), tmp_path / "results"
    for seed in (1, 2):
        run_spec(path, results, *SOLO_OVERRIDES, f"seed={seed}", run_id=f"listed{seed}")
    data, prompts = tmp_path / "spec" / "data.jsonl", tmp_path / "spec" / "prompts"
    lines = data.read_text()
    data.write_text(lines.replace("returns x + 3", "gives x + 3"))
    run_spec(path, results, *SOLO_OVERRIDES, "dataset.shuffle=true", run_id="shuffled")
    data.write_text(lines.replace("returns x + 5", "gives x + 5"))
    run_spec(path, results, *SOLO_OVERRIDES, "dataset.shuffle=true", "dataset.limit=6", run_id="limited")
    data.write_text(lines)
    (prompts / "verifier.jinja").write_text((prompts / "verifier.jinja").read_text() + "\nHint: {{ hint }}\n")
    run_spec(path, results, "dataset.limit=6", run_id="told")
    reasons = {name: row["reason"] for name, row in read_board(results).items() if row["reason"]}
    limit, columns = "limit 6 (this list: none)", "its templates use other columns:"
    assert reasons == {
        "shuffled": OTHER_DATAPOINTS.format("p3"),
        "limited": f"{OTHER_DATAPOINTS.format('p5')}; {ALSO} {limit}, shuffle true (this list: false)",
        "told": f"{columns} hint, question, solution (this list: question, solution); {ALSO} {limit}",
    }


@pytest.mark.gate
def test_sweep_names_the_columns_that_give_two_points_different_tasks(tmp_path: Path) -> None:
    path, results = debate_with_hints(tmp_path / "spec"), tmp_path / "results"
    run_spec(path, results, run_id="plain")
    prompts = tmp_path / "spec" / "prompts"
    (prompts / "verifier.jinja").write_text((prompts / "verifier.jinja").read_text() + "\nHint: {{ hint }}\n")
    run_spec(path, results, run_id="told")
    points = [SweepPoint("debate", name, {"prompts": name}, 7) for name in ("plain", "told")]
    columns = "its verifier's templates use other columns"
    more_columns, fewer_columns = "hint, question, solution", "question, solution"
    assert [row.reason for row in sweep_rows(points, Results(results))] == [
        f"alone with its task; against told: {columns} ({fewer_columns} instead of {more_columns})",
        f"alone with its task; against plain: {columns} ({more_columns} instead of {fewer_columns})",
    ]
    one_point = [replace(point, point={}, seed=seed) for seed, point in enumerate(points)]
    assert [row.reason for row in sweep_rows(one_point, Results(results))] == [
        f"its seeds have different tasks; told against plain: {columns} ({more_columns} instead of {fewer_columns})"
    ]


# Datapoints


@pytest.mark.full
def test_datapoints_can_be_sliced_by_any_column_and_added_columns_keep_the_task(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=4, dataset={"group_by": "program"}, fine_tune=None)
    data = tmp_path / "data.jsonl"
    rows = [
        {**json.loads(line), "program": i // 2, "note": "x"} for i, line in enumerate(data.read_text().splitlines())
    ]
    facts = []
    for added in ({}, {"more": "y"}):
        data.write_text("".join(json.dumps({**row, **added}) + "\n" for row in rows))
        folder = run_spec(path, tmp_path / "results").folder
        sql = 'SELECT datapoint_id, "group", label, content_sha256, columns FROM datapoints WHERE run_id = ?'
        _, datapoint_rows = Results(tmp_path / "results").board.query(sql, [folder.run_id])
        facts.append(datapoint_rows)
    assert [row[:4] for row in facts[0]] == [
        row[:4] for row in facts[1]
    ]  # the hash covers only the columns that templates use
    assert [row[:3] for row in facts[0]] == [("p0", "0", 0), ("p1", "0", 1), ("p2", "1", 0), ("p3", "1", 1)]
    assert set(json.loads(facts[1][0][4])) == {"question", "solution", "program", "note", "more"}
    assert len({row["task"] for row in read_board(tmp_path / "results").values()}) == 1
    sliced = (
        "SELECT d.columns->>'program' AS program, count(*), avg(r.correct::INT) FROM rollouts r "
        "JOIN datapoints d USING (run_id, datapoint_id) WHERE d.columns->>'question' LIKE '%x +%' "
        "GROUP BY ALL ORDER BY 1"
    )
    _, datapoint_rows = Results(tmp_path / "results").board.query(sliced)
    assert [row[:2] for row in datapoint_rows] == [("0", 4), ("1", 4)]


@pytest.mark.full
def test_leaderboard_of_0_1_0_is_upgraded_in_memory_when_queried(tmp_path: Path) -> None:
    results = copy_old_files(tmp_path) / "results"
    before = (results / FILE).read_bytes()
    rows = read_board(results)
    assert rows[RUNS["served"]]["rank"] is not None
    assert rows[RUNS["served"] + "-replay"]["reason"] == f"replay of {RUNS['served']}"
    assert rows[RUNS["trees"]]["reason"].startswith("tree:")
    counted = 'SELECT count(*), count(DISTINCT "group") FROM datapoints WHERE run_id = ?'
    assert Results(results).board.query(counted, [RUNS["finished"]])[1] == [(6, 6)]
    assert Results(results).board.query(counted, [RUNS["learning"] + "-i0"])[1][0][0] > 0
    assert (results / FILE).read_bytes() == before


@pytest.mark.full
def test_column_comments_explain_the_codes(tmp_path: Path) -> None:
    run_spec(spec_file(tmp_path, size=2, fine_tune=None), tmp_path / "results")
    sql = "SELECT table_name || '.' || column_name, comment FROM duckdb_columns() WHERE comment IS NOT NULL"
    comments = dict(Results(tmp_path / "results").board.query(sql)[1])
    with duckdb.connect(str(tmp_path / "results" / FILE), read_only=True) as connection:
        assert dict(connection.execute(sql).fetchall()).items() <= comments.items()
    coded = ("rollouts.decision", "rollouts.y", "rollouts.stance", "datapoints.label")
    assert all("0: " in comments[name] and "1: " in comments[name] for name in coded)
    assert {
        "rollouts.correct",
        "runs.task",
        "leaderboard.reason",
        "datapoints.group",
        "messages.content",
    } <= comments.keys()
