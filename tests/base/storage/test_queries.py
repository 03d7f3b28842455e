"""DuckDB behind closed doors: no extension, no network, and folders of any name."""

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
def test_a_results_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = spec_file(tmp_path, size=2, fine_tune={"formats": ["verl"]})
    home, words = tmp_path / "home", ("--results", name, "--json", "-q")
    home.mkdir()

    def told(*command: str) -> object:
        done = nip_run_here(*command, *words, cwd=tmp_path, HOME=str(home))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    told(str(path))
    run = only_run(tmp_path / name)
    (run / "rollouts.parquet").unlink()
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
    told(str(path))
    asked = "SELECT count(*) AS n FROM completions c JOIN rollouts r ON c.rollout_id = r.rollout_id"
    assert told("sql", asked + " WHERE c.rollout_id NOT IN (SELECT rollout_id FROM messages)") == [{"n": 2}]
    assert told("leaderboard", "--rebuild") == {"runs": [run.name]}
    assert [row["run_id"] for row in told("leaderboard")] == [run.name]  # type: ignore[attr-defined]
    assert len(told("runs")) == 1  # type: ignore[arg-type]
    told("show", run.name)
    told("show", run.name, "p0")
    told("export", run.name, "--format", "verl")
    assert (run / "fine_tune" / "export-verl" / "m.rl.parquet").is_file()
    assert list(home.iterdir()) == []
    assert {one.name for one in tmp_path.iterdir()} == {"home", "spec.yaml", "data.jsonl", Path(name).parts[0]}


@pytest.mark.full
def test_a_folder_that_cannot_be_linked_to_is_refused_before_any_call(tmp_path: Path) -> None:
    aside = tmp_path / "no?place"
    aside.mkdir()
    with run_chat_server() as server:
        spec_file(tmp_path, server.base_url, size=2)
        done = nip_run("spec.yaml", "--results", "a?b", "-q", cwd=tmp_path, TMPDIR=str(aside))
        assert (done.returncode, server.requests) == (1, 0)
    assert "set TMPDIR" in done.stderr
    assert "bug in nip-run" not in done.stderr


@pytest.mark.full
def test_a_dataset_may_stand_in_a_folder_of_any_name(tmp_path: Path) -> None:
    for name in (*NAMES, *MORE_NAMES):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        spec_file(folder, size=2)
        done = nip_run_here("check", str(folder / "spec.yaml"), "--json", cwd=tmp_path)
        assert done.returncode == 0, (name, done.stderr)


@pytest.mark.parametrize("statement", ["LOAD httpfs", "INSTALL httpfs", "ATTACH 'md:x'", "ATTACH 'sqlite:x'"])
def test_a_connection_looks_for_extensions_where_there_are_none(statement: str) -> None:
    with connect() as connection, pytest.raises(duckdb.Error, match="/dev/null"):
        connection.execute(statement)


def test_a_connection_loads_no_extension_for_what_a_question_names() -> None:
    with connect() as connection, pytest.raises(duckdb.Error, match="requires the extension httpfs"):
        connection.execute("FROM 's3://a/b.parquet'")


def test_a_question_names_no_variable_of_the_program() -> None:
    here = np.array([1, 2])
    with connect() as connection, pytest.raises(duckdb.CatalogException):
        connection.execute("FROM here")
    assert duckdb.execute("FROM here").fetchall() == [(one,) for one in here]


def test_a_full_memory_writes_nothing_where_the_user_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with connect(memory="16MB") as connection, pytest.raises(duckdb.OutOfMemoryException):
        connection.execute("CREATE TABLE t AS SELECT repeat('x', 1000) || range FROM range(100_000)").fetchall()
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_plain_is_the_files_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert duckdb_pattern(Path("~/x.parquet")) == str(tmp_path / "~" / "x.parquet")


def test_a_link_reads_the_one_file_that_is_meant(tmp_path: Path) -> None:
    for name in ("a*", "ab", "a?"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"name": name}))
    with connect() as connection:
        for name in ("a*", "a?"):
            one = tmp_path / f"{name}.jsonl"
            assert connection.execute("SELECT name FROM read_json(?)", [duckdb_pattern(one)]).fetchall() == [(name,)]
            assert json_lines(one) == [{"name": name}]


@pytest.fixture
def reused_connections() -> Iterator[None]:
    with reuse_connections():
        yield


@pytest.mark.usefixtures("reused_connections")
@pytest.mark.parametrize(
    "left",
    [
        "CREATE TABLE f(a INTEGER)", "CREATE TEMP VIEW f AS SELECT 1", "CREATE MACRO f(a) AS a + 1",
        "SET VARIABLE f = 1", "PREPARE f AS SELECT 1", "CREATE TYPE f AS ENUM ('x')",
        "SET search_path = 'pg_catalog'", "SET threads = 7",
    ],
)  # fmt: skip
def test_whoever_is_lent_a_connection_finds_it_as_it_was_made(left: str) -> None:
    asked = [f"SELECT count(*) FROM duckdb_{of}() WHERE {of[:-1]}_name = 'f'" for of in ("tables", "views", "types")]
    asked += ["SELECT current_setting('threads'), current_setting('search_path')", "SELECT getvariable('f')"]
    with suppress(duckdb.InvalidInputException), borrow_connection("64MB") as connection:
        assert connection.execute(left) is connection
    with borrow_connection("64MB") as connection:
        assert [connection.execute(one).fetchall() for one in asked] == [*3 * [[(0,)]], [(1, "")], [(None,)]]
        for again in ("SELECT f(1)", "EXECUTE f"):
            with pytest.raises(duckdb.Error, match="does not exist"):
                connection.sql(again)


@pytest.mark.usefixtures("reused_connections")
def test_a_connection_is_lent_again_and_none_with_a_memory_that_is_no_size() -> None:
    with borrow_connection("63MB") as first:
        pass
    with pytest.raises(duckdb.Error), borrow_connection("nonsense"):
        pass
    with borrow_connection("63MB") as again:
        assert again is first


def test_a_connection_outlives_no_block_that_keeps_none() -> None:
    def borrowed() -> duckdb.DuckDBPyConnection:
        with borrow_connection("63MB") as connection:
            return connection

    connection = Context().run(borrowed)  # where nobody keeps any, as the tests do
    with pytest.raises(duckdb.ConnectionException):
        connection.execute("SELECT 1")


def test_a_folder_of_links_is_gone_with_its_process_which_warns_of_nothing(tmp_path: Path) -> None:
    done = python(
        "from runner.base.storage.duckdb_connections import process_spill; print(process_spill())",
        PYTHONWARNINGS="always", TMPDIR=str(tmp_path),
    )  # fmt: skip
    assert (Path(done.stdout.strip()).parent, done.stderr) == (tmp_path, "")
    assert not [*tmp_path.iterdir()]
