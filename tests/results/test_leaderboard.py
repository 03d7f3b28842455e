"""The leaderboard: complete after failures, identical after a rebuild, and read-only for queries."""

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
def three_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with three offline runs of one benchmark and no leaderboard."""
    folder = tmp_path_factory.mktemp("three")
    path = spec_file(folder, size=4)
    for seed in (1, 2, 3):
        run_spec(path, folder / "results", f"seed={seed}")
    (folder / "results" / FILE).unlink()
    return folder / "results"


@pytest.fixture
def results(three_runs: Path, tmp_path: Path) -> Path:
    """Return a copy of the three runs that the test may change."""
    return shutil.copytree(three_runs, tmp_path / "results")


def list_folders(results: Path) -> list[RunFolder]:
    return list(Results(results).runs())


def read_rows(results: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of the leaderboard, sorted."""
    connection = duckdb.connect(str(results / FILE), read_only=True)
    try:
        return {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in TABLES}
    finally:
        connection.close()


@pytest.mark.full
def test_repeated_appends_store_each_run_once(results: Path) -> None:
    for folder in (*list_folders(results), *list_folders(results)):
        Results(results).board.append(folder)
    rows = read_rows(results)
    assert len(rows["runs"]) == 3
    assert len(rows["agents"]) == 6
    assert len(rows["rollouts"]) == 12
    assert len(rows["metrics"]) == sum(len(json.loads(f.metrics.read_text())["metrics"]) for f in list_folders(results))


@pytest.mark.full
def test_appending_a_run_that_has_grown_replaces_its_rows(three_runs: Path, tmp_path: Path) -> None:
    del three_runs
    path = spec_file(tmp_path, size=4)
    run_spec(path, tmp_path / "results", "dataset.limit=2")
    run_spec(path, tmp_path / "results")
    rows = read_rows(tmp_path / "results")
    assert (len(rows["runs"]), len(rows["rollouts"])) == (1, 4)


@pytest.mark.full
def test_rebuilt_leaderboard_has_the_same_rows(results: Path) -> None:
    for folder in list_folders(results):
        Results(results).board.append(folder)
    before = read_rows(results)
    assert Results(results).board.rebuild() == [folder.run_id for folder in list_folders(results)]
    assert read_rows(results) == before
    (results / FILE).unlink()
    Results(results).board.rebuild()
    assert read_rows(results) == before


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
    board.append(list_folders(results)[0])
    assert read_views() == views


def test_unfinished_run_has_a_row_with_the_reason_and_no_metrics(results: Path) -> None:
    unfinished = list_folders(results)[0]
    for name in COLUMNS:
        unfinished.table(name).unlink()
    unfinished.metrics.unlink()
    unfinished.write_manifest(replace(unfinished.manifest(), status=Status.RUNNING))
    Results(results).board.rebuild()
    _, status_counts = Results(results).board.query("SELECT status, count(*) FROM runs GROUP BY status ORDER BY status")
    assert status_counts == [("done", 2), ("interrupted", 1)]
    run_id = unfinished.run_id
    unfinished_row = Results(results).board.query(
        "SELECT rank, reason, accuracy FROM leaderboard WHERE run_id = ?", [run_id]
    )
    assert unfinished_row[1] == [(None, "unfinished: interrupted", None)]
    for name in ("metrics", "rollouts"):
        assert Results(results).board.query(f"SELECT count(*) FROM {name} WHERE run_id = ?", [run_id])[1] == [(0,)]


@pytest.mark.full
def test_refused_run_is_failed_on_a_rebuilt_leaderboard(tmp_path: Path) -> None:
    with run_chat_server(kind="unauthorized", after=3) as server:
        path = spec_file(tmp_path, server.base_url, size=4)
        with pytest.raises(ProviderRefusal):
            run_spec(path, tmp_path / "results")
    Results(tmp_path / "results").board.rebuild()
    assert Results(tmp_path / "results").board.query("SELECT status FROM runs")[1] == [("failed",)]


@pytest.mark.full
def test_concurrent_appends_neither_lose_nor_duplicate_rows(results: Path) -> None:
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
    assert len(read_rows(results)["runs"]) == 3
    assert len(read_rows(results)["rollouts"]) == 12


@pytest.mark.gate
def test_locked_leaderboard_error_names_the_rebuild_command(results: Path) -> None:
    with locked(results / LOCK, "the test"):
        started = time.monotonic()
        with pytest.raises(LeaderboardError, match=r"in use by process \d+ .* for 0\.3 s.*leaderboard --rebuild"):
            Results(results).board.append(list_folders(results)[0], wait_seconds=0.3)
        assert time.monotonic() - started > 0.25
    Results(results).board.append(list_folders(results)[0], wait_seconds=0.3)
    assert len(read_rows(results)["runs"]) == 1


def test_open_reader_does_not_block_an_append(results: Path) -> None:
    Results(results).board.append(list_folders(results)[0])
    reader = duckdb.connect(str(results / FILE), read_only=True)
    try:
        Results(results).board.append(list_folders(results)[1])
        assert reader.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    finally:
        reader.close()
    assert len(read_rows(results)["runs"]) == 2


def test_leftover_files_of_a_killed_append_are_ignored(results: Path) -> None:
    Results(results).board.append(list_folders(results)[0])
    (results / (FILE + ".new")).write_bytes(b"half a file")
    (results / (FILE + ".new.wal")).write_bytes(b"half a log")
    Results(results).board.append(list_folders(results)[1])
    assert len(read_rows(results)["runs"]) == 2
    assert sorted(p.name for p in results.iterdir()) == [LOCK, FILE, "runs"]


def test_failed_append_keeps_the_old_leaderboard(results: Path) -> None:
    Results(results).board.append(list_folders(results)[0])
    before = (results / FILE).read_bytes()
    list_folders(results)[1].table("rollouts").write_bytes(b"not parquet")
    with pytest.raises(RunError, match="nip-run verify"):
        Results(results).board.append(list_folders(results)[1])
    list_folders(results)[1].unseal()
    with pytest.raises((LeaderboardError, UsageError)):
        Results(results).board.append(list_folders(results)[1])
    assert (results / FILE).read_bytes() == before
    assert not list(results.glob("*.new*"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("damage", [b"", b"x" * 8192, b"DUCK" * 5000])
def test_damaged_leaderboard_error_names_the_rebuild_command(results: Path, damage: bytes) -> None:
    Results(results).board.append(list_folders(results)[0])
    (results / FILE).write_bytes(damage)
    for attempt in (
        lambda: Results(results).board.append(list_folders(results)[1]),
        lambda: Results(results).board.query("SELECT * FROM runs"),
    ):
        with pytest.raises(LeaderboardError, match="leaderboard --rebuild"):
            attempt()
    assert len(Results(results).board.rebuild()) == 3
    assert len(read_rows(results)["runs"]) == 3


def test_the_view_ranks_benchmark_runs_by_accuracy(results: Path) -> None:
    Results(results).board.rebuild()
    columns, rows = Results(results).board.query("SELECT * FROM leaderboard")
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    assert len(records) == 3
    assert [r["accuracy"] for r in records] == sorted((r["accuracy"] for r in records), reverse=True)
    for record in records:
        assert record["ci_low"] <= record["accuracy"] <= record["ci_high"]
        assert (record["benchmark"], record["n"], record["clusters"]) == ("tiny/v1", 4, 4)
        assert record["models"] == "prover=dummy, verifier=dummy"


@pytest.mark.full
def test_messages_and_completions_of_all_runs_can_be_queried(results: Path) -> None:
    Results(results).board.rebuild()
    _, rows = Results(results).board.query("SELECT count(DISTINCT run_id), count(*) FROM messages")
    assert rows == [(3, sum(len(table(folder.path, "messages")) for folder in list_folders(results)))]
    _, rows = Results(results).board.query("SELECT count(*) FROM completions JOIN rollouts USING (run_id, rollout_id)")
    assert rows == [(sum(len(table(folder.path, "completions")) for folder in list_folders(results)),)]


def test_rewards_in_sql_are_numbers_by_agent(results: Path) -> None:
    Results(results).board.rebuild()
    _, rows = Results(results).board.query("SELECT DISTINCT abs((rewards->>'verifier')::DOUBLE) FROM rollouts")
    assert rows == [(1.0,)]


@pytest.mark.full
def test_tables_exist_and_are_empty_without_a_leaderboard(tmp_path: Path) -> None:
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
def test_query_cannot_read_or_write_files(results: Path, tmp_path: Path, sql: str) -> None:
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
def test_query_makes_no_lasting_change(results: Path, sql: str) -> None:
    Results(results).board.rebuild()
    before = (results / FILE).read_bytes()
    with suppress(UsageError):
        Results(results).board.query(sql)
    assert (results / FILE).read_bytes() == before
    assert Results(results).board.query("SELECT count(*) FROM runs")[1] == [(3,)]


def test_python_variables_of_the_caller_are_not_tables(results: Path) -> None:
    """DuckDB can read Python variables by name; queries on the leaderboard cannot."""
    frame_of_the_caller = [1, 2, 3]
    with pytest.raises((LeaderboardError, UsageError)):
        Results(results).board.query("SELECT * FROM frame_of_the_caller")
    assert frame_of_the_caller


def test_folder_name_is_not_executed_as_sql(tmp_path: Path, three_runs: Path) -> None:
    results = shutil.copytree(three_runs, tmp_path / "it's; DROP TABLE runs --")
    assert len(Results(results).board.rebuild()) == 3
    assert Results(results).board.query("SELECT count(*) FROM messages")[1][0][0] > 0


@pytest.mark.full
def test_folder_name_is_not_read_as_a_column(tmp_path: Path) -> None:
    """DuckDB reads `key=value` in a path as a column of the files below it."""
    (tmp_path / "lr=1").mkdir()
    spec_file(tmp_path / "lr=1", size=4)
    for arguments in (("lr=1/spec.yaml", "-q"), ("leaderboard", "--rebuild")):
        process = nip_run_here(*arguments, "--results", "seed=2/r", cwd=tmp_path)
        assert process.returncode == 0, process.stderr
    results = tmp_path / "seed=2" / "r"
    for name in ("messages", "completions"):
        names, rows = Results(results).board.query(f"SELECT * FROM {name}")
        assert names == list(COLUMNS[name])
        assert rows
    assert len(Results(results).board.query("SELECT * FROM rollouts")[1]) == 4


@pytest.mark.full
def test_unused_views_are_empty_and_misspelled_views_get_a_suggestion(results: Path) -> None:
    board = Results(results).board
    board.rebuild()
    with pytest.raises(UsageError, match='Did you mean "leaderboard"'):
        board.query("FROM leaderbord")
    for name, sql in VIEWS.items():
        assert sql in used_views_sql(f"from {name}")
        assert f"CREATE VIEW {name} AS SELECT 0 LIMIT 0;" in used_views_sql("from runs")
        (definition,) = board.query(f"SELECT sql FROM duckdb_views() WHERE view_name = '{name}'")[1][0]
        assert len(definition) > 300


def test_finished_run_without_rows_gets_them_on_the_next_run(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=4)
    run_spec(path, tmp_path / "results")
    (tmp_path / "results" / FILE).unlink()  # as after a kill between the last record and the append
    process = nip_run_here("spec.yaml", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert Results(tmp_path / "results").board.query("SELECT count(*) FROM runs")[1] == [(1,)]
