"""What a question in SQL cannot do: read or write a file, stay, or go on when it is ended."""

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
    """The results folder of one run of four datapoints."""
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
"""Files of others, and those that the tables are views of: the board's, its log, the runs' Parquet files."""


@pytest.mark.full
@pytest.mark.parametrize("way", ["argument", "file", "standard input"])
def test_no_question_reads_or_writes_a_file_however_it_comes(results: Path, tmp_path: Path, way: str) -> None:
    (tmp_path / "secret.csv").write_text("a,b\n1,TOPSECRET\n")
    duckdb.execute(f"COPY (SELECT 'TOPSECRET' AS a) TO '{tmp_path / 'other.parquet'}'")
    places = {
        "board": results / FILE, "messages": next(results.rglob("messages.parquet")), "folder": results,
        "secret": tmp_path / "secret.csv", "other": tmp_path / "other.parquet", "new": tmp_path / "new",
    }  # fmt: skip
    file = tmp_path / "question.sql"
    file.write_text("")

    def everything() -> dict[Path, bytes]:
        return {path: path.read_bytes() for at in (results, tmp_path) for path in at.rglob("*") if path.is_file()}

    for hostile in HOSTILE if way == "argument" else HOSTILE[::8]:
        question = hostile.format(**places)
        if way == "file":
            file.write_text(question)
        before = everything()
        words = {"argument": (question,), "file": ("--file", file), "standard input": ("-",)}[way]
        done = run_sql(results, *words, stdin=question)
        assert (done.returncode, done.stdout) == (2, ""), hostile
        assert "TOPSECRET" not in done.stderr
        assert everything() == before, hostile


def test_a_hostile_question_for_a_file_leaves_nothing(results: Path, tmp_path: Path) -> None:
    for question in ("FROM read_text('/etc/hostname')", f"FROM glob('{tmp_path}/.nip-run-*')", "SELEC"):
        assert run_sql(results, question, "-o", tmp_path / "x.parquet").returncode == 2
    assert list(tmp_path.iterdir()) == []


def _cpu_of_threads(pid: int) -> float:
    """Return the CPU seconds of a process's threads but the main one: many only once DuckDB works on the question."""
    stats = []
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        if path.parent.name != str(pid):
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
                stats.append(path.read_text())
    return sum(sum(map(int, stat.rpartition(")")[2].split()[11:13])) for stat in stats) / os.sysconf("SC_CLK_TCK")


@pytest.mark.gate
def test_ctrl_c_ends_a_question_at_once(results: Path, tmp_path: Path) -> None:
    question = "SELECT count(*) FROM range(10_000_000_000) a, range(1000) b WHERE a.range % 7 = b.range % 11"
    process = start_nip_run("sql", question, "--results", results, cwd=tmp_path, TMPDIR=str(tmp_path))
    wait_until(lambda: _cpu_of_threads(process.pid) > 0.5 or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    assert wait_for_exit(process) == (130, "", "interrupted\n")  # the answer takes hours
    assert list(tmp_path.iterdir()) == []
