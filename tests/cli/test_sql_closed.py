"""Limits of SQL queries: they access no files, leave no state, and stop on Ctrl-C."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest

from runner.results.leaderboard.database import FILE
from tests.support.processes import start_nip_run, wait_for_exit, wait_until
from tests.support.runs import run_spec
from tests.support.specs import spec_file
from tests.support.sql_command import run_sql


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results folder of one run of four datapoints."""
    folder = tmp_path_factory.mktemp("sql")
    run_spec(spec_file(folder, size=4), folder / "results")
    return folder / "results"


HOSTILE = (
    "WITH x AS (COPY (SELECT 'x') TO '{board}.wal') SELECT 1",
    "WITH x AS (COPY (SELECT 'x') TO '{messages}' (USE_TMP_FILE false)) SELECT count(*) FROM messages",
    "WITH x AS (COPY (SELECT 'x') TO '{board}.wal') PIVOT rollouts ON repeat USING count(*)",
    "PIVOT (FROM read_text('{secret}')) ON size USING count(*)",
    "PIVOT read_blob('{board}') ON size USING count(*)",
    "EXPLAIN ANALYZE COPY (SELECT 'x') TO '{board}.wal'",
    "EXPLAIN (ANALYZE) COPY (SELECT 'x') TO '{board}.wal'",
    "EXPLAIN ANALYZE WITH x AS (COPY (SELECT 'x') TO '{board}.wal') SELECT 1",
    "SELECT * FROM query('WITH x AS (CO'||'PY (SELECT 1) TO ''{board}.wal'') SELECT 1')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''{secret}'')'))",
    "WITH x AS (DELETE FROM board.runs RETURNING *) SELECT * FROM x",
    "WITH x AS (INSERT INTO empty.messages VALUES (1, 1, 1, 1, 1, 1) RETURNING *) SELECT * FROM x",
    "ATTACH '{new}' AS other",
    "ATTACH '{board}' AS other (READ_ONLY)",
    "FROM read_duckdb('{board}')",
    "FROM '{board}'",
    "FROM read_csv('{secret}')",
    "FROM read_json('{secret}')",
    "FROM read_blob('{messages}')",
    "FROM parquet_metadata('{messages}')",
    "FROM read_parquet('{other}')",
    "FROM sniff_csv('{secret}')",
    "SUMMARIZE '{secret}'",
    "DESCRIBE FROM '{secret}'",
    "SELECT count(*) FROM messages, glob('{folder}/*')",
    "FROM enable_logging(storage := 'file', storage_path := '{new}')",
    "CALL enable_profiling(format := 'json', save_location := '{new}')",
    "SET VARIABLE x = 1",
    "PREPARE x AS SELECT 1",
    "CHECKPOINT",
    "EXPORT DATABASE '{new}'",
)
"""Queries that try to access other files, or the files behind the tables: the leaderboard, its log, Parquet files."""


@pytest.mark.full
@pytest.mark.parametrize("input_source", ["argument", "file", "standard input"])
def test_no_query_reads_or_writes_a_file(results: Path, tmp_path: Path, input_source: str) -> None:
    (tmp_path / "secret.csv").write_text("a,b\n1,TOPSECRET\n")
    duckdb.execute(f"COPY (SELECT 'TOPSECRET' AS a) TO '{tmp_path / 'other.parquet'}'")
    paths = {
        "board": results / FILE, "messages": next(results.rglob("messages.parquet")), "folder": results,
        "secret": tmp_path / "secret.csv", "other": tmp_path / "other.parquet", "new": tmp_path / "new",
    }  # fmt: skip
    file = tmp_path / "question.sql"
    file.write_text("")

    def read_all_files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for root in (results, tmp_path) for path in root.rglob("*") if path.is_file()}

    for template in HOSTILE if input_source == "argument" else HOSTILE[::8]:
        sql = template.format(**paths)
        if input_source == "file":
            file.write_text(sql)
        before = read_all_files()
        arguments = {"argument": (sql,), "file": ("--file", file), "standard input": ("-",)}[input_source]
        process = run_sql(results, *arguments, stdin=sql)
        assert (process.returncode, process.stdout) == (2, ""), template
        assert "TOPSECRET" not in process.stderr
        assert read_all_files() == before, template


def test_refused_query_with_an_output_file_leaves_no_files(results: Path, tmp_path: Path) -> None:
    for sql in ("FROM read_text('/etc/hostname')", f"FROM glob('{tmp_path}/.nip-run-*')", "SELEC"):
        assert run_sql(results, sql, "-o", tmp_path / "x.parquet").returncode == 2
    assert list(tmp_path.iterdir()) == []


def _read_cpu_seconds_of_threads(pid: int) -> float:
    """Return the CPU seconds of all threads except the main one; they rise once DuckDB runs the query."""
    stats = []
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        if path.parent.name != str(pid):
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
                stats.append(path.read_text())
    return sum(sum(map(int, stat.rpartition(")")[2].split()[11:13])) for stat in stats) / os.sysconf("SC_CLK_TCK")


@pytest.mark.gate
def test_ctrl_c_ends_a_query_at_once(results: Path, tmp_path: Path) -> None:
    sql = "SELECT count(*) FROM range(10_000_000_000) a, range(1000) b WHERE a.range % 7 = b.range % 11"
    process = start_nip_run("sql", sql, "--results", results, cwd=tmp_path, TMPDIR=str(tmp_path))
    wait_until(lambda: _read_cpu_seconds_of_threads(process.pid) > 0.5 or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    assert wait_for_exit(process) == (130, "", "interrupted\n")  # the query would take hours
    assert list(tmp_path.iterdir()) == []
