"""DuckDB uses no extensions and no network, and works in folders of any name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from contextvars import Context
from pathlib import Path

import duckdb
import numpy as np
import pytest

from runner.base.storage.duckdb_connections import borrow_connection, connect, duckdb_pattern, reuse_connections
from tests.support.files import json_lines
from tests.support.processes import nip_run, nip_run_here, python
from tests.support.runs import only_run
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

NAMES = ("a?b=c", os.fsdecode(b"no\xffutf8"))
MORE_NAMES = (
    "quo'te", "~",
    "a?b", "a*b", "a[0-9]b", "back\\slash", "back\\*slash", 'dou"ble', "new\nline", "md:x", "sqlite:x", "s3:/x",
    "http:/x", "file:x",
)  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(name, marks=pytest.mark.full) for name in MORE_NAMES)])
def test_results_folder_can_have_any_name(tmp_path: Path, name: str) -> None:
    spec = spec_file(tmp_path, size=2, fine_tune={"formats": ["verl"]})
    home, options = tmp_path / "home", ("--results", name, "--json", "-q")
    home.mkdir()

    def run_command(*command_arguments: str) -> object:
        done = nip_run_here(*command_arguments, *options, cwd=tmp_path, HOME=str(home))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    run_command(str(spec))
    run = only_run(tmp_path / name)
    (run / "rollouts.parquet").unlink()
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
    run_command(str(spec))
    query = "SELECT count(*) AS n FROM completions c JOIN rollouts r ON c.rollout_id = r.rollout_id"
    assert run_command("sql", query + " WHERE c.rollout_id NOT IN (SELECT rollout_id FROM messages)") == [{"n": 2}]
    assert run_command("leaderboard", "--rebuild") == {"runs": [run.name]}
    assert [row["run_id"] for row in run_command("leaderboard")] == [run.name]  # type: ignore[attr-defined]
    assert len(run_command("runs")) == 1  # type: ignore[arg-type]
    run_command("show", run.name)
    run_command("show", run.name, "p0")
    run_command("export", run.name, "--format", "verl")
    assert (run / "fine_tune" / "export-verl" / "m.rl.parquet").is_file()
    assert list(home.iterdir()) == []
    assert {entry.name for entry in tmp_path.iterdir()} == {"home", "spec.yaml", "data.jsonl", Path(name).parts[0]}


@pytest.mark.full
def test_folder_that_cannot_be_linked_is_refused_before_any_request(tmp_path: Path) -> None:
    temporary_folder = tmp_path / "no?place"
    temporary_folder.mkdir()
    with run_chat_server() as server:
        spec_file(tmp_path, server.base_url, size=2)
        done = nip_run("spec.yaml", "--results", "a?b", "-q", cwd=tmp_path, TMPDIR=str(temporary_folder))
        assert (done.returncode, server.requests) == (1, 0)
    assert "set TMPDIR" in done.stderr
    assert "bug in nip-run" not in done.stderr


@pytest.mark.full
def test_dataset_folder_can_have_any_name(tmp_path: Path) -> None:
    for name in (*NAMES, *MORE_NAMES):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        spec_file(folder, size=2)
        done = nip_run_here("check", str(folder / "spec.yaml"), "--json", cwd=tmp_path)
        assert done.returncode == 0, (name, done.stderr)


@pytest.mark.parametrize("statement", ["LOAD httpfs", "INSTALL httpfs", "ATTACH 'md:x'", "ATTACH 'sqlite:x'"])
def test_connection_finds_no_extensions(statement: str) -> None:
    with connect() as connection, pytest.raises(duckdb.Error, match="/dev/null"):
        connection.execute(statement)


def test_connection_loads_no_extension_for_a_query() -> None:
    with connect() as connection, pytest.raises(duckdb.Error, match="requires the extension httpfs"):
        connection.execute("FROM 's3://a/b.parquet'")


def test_query_cannot_read_python_variables() -> None:
    numbers = np.array([1, 2])
    with connect() as connection, pytest.raises(duckdb.CatalogException):
        connection.execute("FROM numbers")
    assert duckdb.execute("FROM numbers").fetchall() == [(number,) for number in numbers]


def test_out_of_memory_query_writes_nothing_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with connect(memory="16MB") as connection, pytest.raises(duckdb.OutOfMemoryException):
        connection.execute("CREATE TABLE t AS SELECT repeat('x', 1000) || range FROM range(100_000)").fetchall()
    assert list(tmp_path.iterdir()) == []


def test_duckdb_pattern_of_a_plain_name_is_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert duckdb_pattern(Path("~/x.parquet")) == str(tmp_path / "~" / "x.parquet")


def test_duckdb_pattern_matches_only_the_given_file(tmp_path: Path) -> None:
    for name in ("a*", "ab", "a?"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"name": name}))
    with connect() as connection:
        for name in ("a*", "a?"):
            path = tmp_path / f"{name}.jsonl"
            assert connection.execute("SELECT name FROM read_json(?)", [duckdb_pattern(path)]).fetchall() == [(name,)]
            assert json_lines(path) == [{"name": name}]


@pytest.fixture
def reused_connections() -> Iterator[None]:
    with reuse_connections():
        yield


@pytest.mark.usefixtures("reused_connections")
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE f(a INTEGER)", "CREATE TEMP VIEW f AS SELECT 1", "CREATE MACRO f(a) AS a + 1",
        "SET VARIABLE f = 1", "PREPARE f AS SELECT 1", "CREATE TYPE f AS ENUM ('x')",
        "SET search_path = 'pg_catalog'", "SET threads = 7",
    ],
)  # fmt: skip
def test_borrowed_connection_is_reset(statement: str) -> None:
    queries = [
        f"SELECT count(*) FROM duckdb_{objects}() WHERE {objects[:-1]}_name = 'f'"
        for objects in ("tables", "views", "types")
    ]
    queries += ["SELECT current_setting('threads'), current_setting('search_path')", "SELECT getvariable('f')"]
    with suppress(duckdb.InvalidInputException), borrow_connection("64MB") as connection:
        assert connection.execute(statement) is connection
    with borrow_connection("64MB") as connection:
        assert [connection.execute(query).fetchall() for query in queries] == [*3 * [[(0,)]], [(1, "")], [(None,)]]
        for leftover in ("SELECT f(1)", "EXECUTE f"):
            with pytest.raises(duckdb.Error, match="does not exist"):
                connection.sql(leftover)


@pytest.mark.usefixtures("reused_connections")
def test_connection_is_reused_and_an_invalid_memory_size_refused() -> None:
    with borrow_connection("63MB") as first:
        pass
    with pytest.raises(duckdb.Error), borrow_connection("nonsense"):
        pass
    with borrow_connection("63MB") as second:
        assert second is first


def test_connection_is_closed_after_its_block_without_reuse() -> None:
    def borrow_and_return() -> duckdb.DuckDBPyConnection:
        with borrow_connection("63MB") as connection:
            return connection

    connection = Context().run(borrow_and_return)  # an empty context, because the tests reuse connections
    with pytest.raises(duckdb.ConnectionException):
        connection.execute("SELECT 1")


def test_spill_folder_is_removed_at_exit_without_warnings(tmp_path: Path) -> None:
    done = python(
        "from runner.base.storage.duckdb_connections import process_spill; print(process_spill())",
        PYTHONWARNINGS="always", TMPDIR=str(tmp_path),
    )  # fmt: skip
    assert (Path(done.stdout.strip()).parent, done.stderr) == (tmp_path, "")
    assert not [*tmp_path.iterdir()]
