"""The leaderboard: whole after anything, the same when made again, closed to everything but questions."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from runner.base.errors import LeaderboardError, ProviderRefusal, RunError, UsageError
from runner.base.storage.locks import locked
from runner.results.folder import RunFolder
from runner.results.leaderboard.database import FILE, LOCK
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.schema import VIEWS, used_views_sql
from runner.results.manifest import Status
from runner.results.table_columns import COLUMNS
from tests.support.processes import environment, nip_run_here, wait_for_exit
from tests.support.runs import run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

TABLES = ("runs", "agents", "metrics", "rollouts")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of one benchmark, played offline and not on any board."""
    folder = tmp_path_factory.mktemp("three")
    path = spec_file(folder, size=4)
    for seed in (1, 2, 3):
        run_spec(path, folder / "results", f"seed={seed}")
    (folder / "results" / FILE).unlink()
    return folder / "results"


@pytest.fixture
def results(three: Path, tmp_path: Path) -> Path:
    """A copy of the three runs of one's own."""
    return shutil.copytree(three, tmp_path / "results")


def folders(results: Path) -> list[RunFolder]:
    return list(Results(results).runs())


def rows(results: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of the board, in an order of their own."""
    connection = duckdb.connect(str(results / FILE), read_only=True)
    try:
        return {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in TABLES}
    finally:
        connection.close()


@pytest.mark.full
def test_each_run_has_its_rows_once_however_often_it_is_appended(results: Path) -> None:
    for folder in (*folders(results), *folders(results)):
        Results(results).board.append(folder)
    found = rows(results)
    assert len(found["runs"]) == 3
    assert len(found["agents"]) == 6
    assert len(found["rollouts"]) == 12
    assert len(found["metrics"]) == sum(len(json.loads(f.metrics.read_text())["metrics"]) for f in folders(results))


@pytest.mark.full
def test_appending_a_run_that_has_grown_replaces_its_rows(three: Path, tmp_path: Path) -> None:
    del three
    path = spec_file(tmp_path, size=4)
    run_spec(path, tmp_path / "results", "dataset.limit=2")
    run_spec(path, tmp_path / "results")
    found = rows(tmp_path / "results")
    assert (len(found["runs"]), len(found["rollouts"])) == (1, 4)


@pytest.mark.full
def test_a_board_made_again_has_the_same_rows(results: Path) -> None:
    for folder in folders(results):
        Results(results).board.append(folder)
    before = rows(results)
    assert Results(results).board.rebuild() == [folder.run_id for folder in folders(results)]
    assert rows(results) == before
    (results / FILE).unlink()
    Results(results).board.rebuild()
    assert rows(results) == before


@pytest.mark.gate
def test_views_that_an_earlier_version_replaced_are_restored_by_the_next_writer(results: Path) -> None:
    board = Results(results).board
    board.rebuild()

    def read_views() -> list[tuple[Any, ...]]:
        with duckdb.connect(results / FILE, read_only=True) as connection:
            query = "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY view_name"
            return connection.execute(query).fetchall()

    views = read_views()
    with duckdb.connect(results / FILE) as connection:
        connection.execute("CREATE OR REPLACE VIEW leaderboard AS SELECT 1 AS one")
        connection.execute("CREATE OR REPLACE VIEW flips AS SELECT 2 AS two")
    assert read_views() != views
    board.append(folders(results)[0])
    assert read_views() == views


def test_an_unfinished_run_has_a_row_that_says_so_and_no_numbers(results: Path) -> None:
    unfinished = folders(results)[0]
    for name in COLUMNS:
        unfinished.table(name).unlink()
    unfinished.metrics.unlink()
    unfinished.write_manifest(replace(unfinished.manifest(), status=Status.RUNNING))
    Results(results).board.rebuild()
    _, found = Results(results).board.query("SELECT status, count(*) FROM runs GROUP BY status ORDER BY status")
    assert found == [("done", 2), ("interrupted", 1)]
    run_id = unfinished.run_id
    row = Results(results).board.query("SELECT rank, reason, accuracy FROM leaderboard WHERE run_id = ?", [run_id])
    assert row[1] == [(None, "unfinished: interrupted", None)]
    for name in ("metrics", "rollouts"):
        assert Results(results).board.query(f"SELECT count(*) FROM {name} WHERE run_id = ?", [run_id])[1] == [(0,)]


@pytest.mark.full
def test_a_refused_run_is_failed_on_a_board_that_is_made_again(tmp_path: Path) -> None:
    with run_chat_server(kind="unauthorized", after=3) as server:
        path = spec_file(tmp_path, server.base_url, size=4)
        with pytest.raises(ProviderRefusal):
            run_spec(path, tmp_path / "results")
    Results(tmp_path / "results").board.rebuild()
    assert Results(tmp_path / "results").board.query("SELECT status FROM runs")[1] == [("failed",)]


@pytest.mark.full
def test_processes_that_append_at_once_lose_and_double_nothing(results: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from runner.results.leaderboard.results_folder import Results\n"
        "results = Results(Path(sys.argv[1]))\n"
        "for folder in results.runs(): results.board.append(folder)\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(results)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert wait_for_exit(process) == (0, "", "")
    assert len(rows(results)["runs"]) == 3
    assert len(rows(results)["rollouts"]) == 12


@pytest.mark.gate
def test_a_board_that_stays_locked_is_named_with_the_later_command(results: Path) -> None:
    with locked(results / LOCK, "the test"):
        begun = time.monotonic()
        with pytest.raises(LeaderboardError, match=r"in use by process \d+ .* for 0\.3 s.*leaderboard --rebuild"):
            Results(results).board.append(folders(results)[0], wait_seconds=0.3)
        assert time.monotonic() - begun > 0.25
    Results(results).board.append(folders(results)[0], wait_seconds=0.3)
    assert len(rows(results)["runs"]) == 1


def test_a_reader_that_keeps_the_board_open_stops_no_append(results: Path) -> None:
    Results(results).board.append(folders(results)[0])
    reader = duckdb.connect(str(results / FILE), read_only=True)
    try:
        Results(results).board.append(folders(results)[1])
        assert reader.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    finally:
        reader.close()
    assert len(rows(results)["runs"]) == 2


def test_leftovers_of_a_killed_append_do_no_harm(results: Path) -> None:
    Results(results).board.append(folders(results)[0])
    (results / (FILE + ".new")).write_bytes(b"half a file")
    (results / (FILE + ".new.wal")).write_bytes(b"half a log")
    Results(results).board.append(folders(results)[1])
    assert len(rows(results)["runs"]) == 2
    assert sorted(p.name for p in results.iterdir()) == [LOCK, FILE, "runs"]


def test_an_append_that_fails_leaves_the_old_board(results: Path) -> None:
    Results(results).board.append(folders(results)[0])
    before = (results / FILE).read_bytes()
    folders(results)[1].table("rollouts").write_bytes(b"not parquet")
    with pytest.raises(RunError, match="nip-run verify"):
        Results(results).board.append(folders(results)[1])
    folders(results)[1].unseal()
    with pytest.raises((LeaderboardError, UsageError)):
        Results(results).board.append(folders(results)[1])
    assert (results / FILE).read_bytes() == before
    assert not list(results.glob("*.new*"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("damage", [b"", b"x" * 8192, b"DUCK" * 5000])
def test_a_damaged_board_says_that_it_can_be_made_again(results: Path, damage: bytes) -> None:
    Results(results).board.append(folders(results)[0])
    (results / FILE).write_bytes(damage)
    for attempt in (
        lambda: Results(results).board.append(folders(results)[1]),
        lambda: Results(results).board.query("SELECT * FROM runs"),
    ):
        with pytest.raises(LeaderboardError, match="leaderboard --rebuild"):
            attempt()
    assert len(Results(results).board.rebuild()) == 3
    assert len(rows(results)["runs"]) == 3


def test_the_view_ranks_benchmark_runs_by_accuracy(results: Path) -> None:
    Results(results).board.rebuild()
    columns, found = Results(results).board.query("SELECT * FROM leaderboard")
    records = [dict(zip(columns, row, strict=True)) for row in found]
    assert len(records) == 3
    assert [r["accuracy"] for r in records] == sorted((r["accuracy"] for r in records), reverse=True)
    for record in records:
        assert record["ci_low"] <= record["accuracy"] <= record["ci_high"]
        assert (record["benchmark"], record["n"], record["clusters"]) == ("tiny/v1", 4, 4)
        assert record["models"] == "prover=dummy, verifier=dummy"


@pytest.mark.full
def test_messages_and_completions_of_all_runs_can_be_asked(results: Path) -> None:
    Results(results).board.rebuild()
    _, found = Results(results).board.query("SELECT count(DISTINCT run_id), count(*) FROM messages")
    assert found == [(3, sum(len(table(folder.path, "messages")) for folder in folders(results)))]
    _, found = Results(results).board.query("SELECT count(*) FROM completions JOIN rollouts USING (run_id, rollout_id)")
    assert found == [(sum(len(table(folder.path, "completions")) for folder in folders(results)),)]


def test_rewards_in_sql_are_numbers_by_agent(results: Path) -> None:
    Results(results).board.rebuild()
    _, found = Results(results).board.query("SELECT DISTINCT abs((rewards->>'verifier')::DOUBLE) FROM rollouts")
    assert found == [(1.0,)]


@pytest.mark.full
def test_without_a_board_the_tables_are_there_and_empty(tmp_path: Path) -> None:
    for name in (*TABLES, "messages", "completions", "leaderboard"):
        assert Results(tmp_path).board.query(f"SELECT count(*) FROM {name}")[1] == [(0,)]
    assert list(tmp_path.iterdir()) == []


HOSTILE = (
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM read_blob('{board}')",
    "SELECT * FROM '{file}'",
    "SELECT * FROM glob('/etc/*')",
    "COPY (SELECT 1) TO '{new}'",
    "COPY (SELECT 'x') TO '{board}' (USE_TMP_FILE false)",
    "COPY (SELECT 'x') TO '{board}.wal'",
    "EXPORT DATABASE '{new}'",
    "ATTACH '{new}' AS other",
    "ATTACH '{board}' AS other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access=true",
    "SET temp_directory='/tmp'",
    "PRAGMA enable_profiling='json'; SELECT 1",
    "SET profiling_output='{new}'",
    "SELECT getenv('HOME')",
    "SELECT 1; SELECT 2",
    "",
    "SELEC 1",
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("sql", HOSTILE)
def test_a_question_can_neither_read_nor_write_a_file(results: Path, tmp_path: Path, sql: str) -> None:
    Results(results).board.rebuild()
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    board = results / FILE
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises((LeaderboardError, UsageError)):
        Results(results).board.query(sql.format(file=secret, board=board, new=tmp_path / "new"))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "sql", ["DELETE FROM runs", "DROP TABLE rollouts", "UPDATE runs SET name = 'x'", "CREATE TABLE x AS SELECT 1"]
)
def test_a_question_changes_nothing_that_lasts(results: Path, sql: str) -> None:
    Results(results).board.rebuild()
    before = (results / FILE).read_bytes()
    with suppress(UsageError):
        Results(results).board.query(sql)
    assert (results / FILE).read_bytes() == before
    assert Results(results).board.query("SELECT count(*) FROM runs")[1] == [(3,)]


def test_names_in_the_program_of_the_caller_are_no_tables(results: Path) -> None:
    """DuckDB can read Python variables by name; a question of ours cannot."""
    frame_of_the_caller = [1, 2, 3]
    with pytest.raises((LeaderboardError, UsageError)):
        Results(results).board.query("SELECT * FROM frame_of_the_caller")
    assert frame_of_the_caller


def test_the_name_of_a_folder_is_no_sql(tmp_path: Path, three: Path) -> None:
    results = shutil.copytree(three, tmp_path / "it's; DROP TABLE runs --")
    assert len(Results(results).board.rebuild()) == 3
    assert Results(results).board.query("SELECT count(*) FROM messages")[1][0][0] > 0


@pytest.mark.full
def test_the_name_of_a_folder_is_no_column(tmp_path: Path) -> None:
    """DuckDB takes `key=value` in a path for a column of the files below it."""
    (tmp_path / "lr=1").mkdir()
    spec_file(tmp_path / "lr=1", size=4)
    for words in (("lr=1/spec.yaml", "-q"), ("leaderboard", "--rebuild")):
        done = nip_run_here(*words, "--results", "seed=2/r", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    results = tmp_path / "seed=2" / "r"
    for name in ("messages", "completions"):
        names, found = Results(results).board.query(f"SELECT * FROM {name}")
        assert names == list(COLUMNS[name])
        assert found
    assert len(Results(results).board.query("SELECT * FROM rollouts")[1]) == 4


@pytest.mark.full
def test_a_view_that_a_query_does_not_name_is_empty_and_its_name_is_suggested(results: Path) -> None:
    board = Results(results).board
    board.rebuild()
    with pytest.raises(UsageError, match='Did you mean "leaderboard"'):
        board.query("FROM leaderbord")
    for name, sql in VIEWS.items():
        assert sql in used_views_sql(f"from {name}")
        assert f"CREATE VIEW {name} AS SELECT 0 LIMIT 0;" in used_views_sql("from runs")
        (definition,) = board.query(f"SELECT sql FROM duckdb_views() WHERE view_name = '{name}'")[1][0]
        assert len(definition) > 300


def test_a_finished_run_without_rows_gets_them_when_it_is_run_again(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=4)
    run_spec(path, tmp_path / "results")
    (tmp_path / "results" / FILE).unlink()  # as after a kill between the last record and the append
    done = nip_run_here("spec.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Results(tmp_path / "results").board.query("SELECT count(*) FROM runs")[1] == [(1,)]
