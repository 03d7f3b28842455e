"""The server's database in PostgreSQL: the same behavior as SQLite, and concurrent writers."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select

from runner.base.errors import TakenError
from runner.documents.releases.reference import Kind
from runner.server.accounts.accounts import add_account
from runner.server.boards.worker import BoardWorker
from runner.server.settings import Settings
from runner.server.store.backup import back_up, restore
from runner.server.store.database import Database
from runner.server.store.schema import accounts
from tests.server.test_backup import list_hashes
from tests.server.test_serve import expect_serve_error
from tests.support.postgresql import run_postgresql
from tests.support.processes import wait_until
from tests.support.registry_locations import bundle
from tests.support.server_contents import read_tables
from tests.support.server_process import ServerProcess, run_server

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def database() -> Iterator[Callable[[], str]]:
    with run_postgresql() as create_database:
        yield create_database


@pytest.fixture(scope="module")
def served(database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with run_server(tmp_path_factory.mktemp("server"), database=database()) as process:
        yield process


def test_ten_concurrent_publishers_publish_each_release_once(served: ServerProcess) -> None:
    failed: list[BaseException] = []

    def publish(number: int) -> None:
        try:
            bundles = [bundle(f"p{number}-{n}", kind=Kind.DATASET) for n in range(3)]
            served.publish("alice" if number % 2 else "bob", *bundles, bundle("shared", kind=Kind.DATASET))
        except Exception as error:  # noqa: BLE001 - any error fails the test
            failed.append(error)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    names = [name for name, _ in list_hashes(served, None)]
    assert len(names) == len(set(names)) == 31
    with closing(served.open_database()) as records, records.reading() as connection:
        assert records.revision(connection) >= 10


def test_second_server_on_the_same_database_is_refused(served: ServerProcess, tmp_path: Path) -> None:
    assert served.database is not None
    assert "another server uses this database" in expect_serve_error(
        "new", "--port", "0", "--database", served.database, cwd=tmp_path
    )
    for option in ("--collect", "--rebuild", "--import"):
        assert "another server uses this database" in expect_serve_error(
            "new", option, "--database", served.database, cwd=tmp_path
        )
    unreachable = served.database.replace("host=", "host=/nowhere")
    assert "cannot use the database" in expect_serve_error(
        "new", "--port", "0", "--database", unreachable, cwd=tmp_path
    )


def test_address_with_a_null_character_is_not_found(served: ServerProcess) -> None:
    """PostgreSQL accepts no such text, so a query with it would fail."""
    wait_until(lambda: served.request("/").status == 200)
    for path in ("/run/%00/b/1", "/run/a/b/1%00", "/run/a%00/b/1/games", "/owner/%00", "/api/v1/tree/%00"):
        assert served.request(path).status == 404


def test_closed_board_worker_leaves_no_connection_open(database: Callable[[], str], tmp_path: Path) -> None:
    with closing(BoardWorker(Settings(folder=tmp_path, database=database()))):
        pass
    gc.collect()  # a connection that is still open warns when it is collected, which fails the test


def test_concurrent_writers_lose_no_revision_and_create_no_name_twice(database: Callable[[], str]) -> None:
    url = database()
    refused_names = []

    def write(number: int) -> None:
        with closing(Database(url)) as database_copy:  # every thread also creates the tables
            for attempt in range(10):
                with database_copy.writing() as connection:
                    database_copy.increment_revision(connection)
                try:
                    with database_copy.writing() as connection:
                        add_account(connection, f"name{attempt}{'x' * attempt}", time.time())
                except TakenError:
                    refused_names.append((number, attempt))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with closing(Database(url)) as database_copy, database_copy.reading() as connection:
        assert database_copy.revision(connection) == 80
        assert len(connection.execute(select(accounts)).all()) == 10
    assert len(refused_names) == 70


def test_reader_sees_a_consistent_snapshot(database: Callable[[], str]) -> None:
    with closing(Database(database())) as opened:
        with opened.reading() as connection:
            before = opened.revision(connection)
            with opened.writing() as writer:
                opened.increment_revision(writer)
            assert opened.revision(connection) == before
        with opened.reading() as connection:
            assert opened.revision(connection) == before + 1


def test_backup_restores_from_postgresql_to_sqlite_and_back(
    served: ServerProcess, database: Callable[[], str], tmp_path: Path
) -> None:
    assert served.database is not None
    with closing(served.open_database()) as records:
        back_up(records, tmp_path / "a")
    sqlite_url, postgresql_url = f"sqlite:///{tmp_path / 'light.sqlite'}", database()
    with closing(Database(sqlite_url)) as target:
        restore(target, tmp_path / "a")
        back_up(target, tmp_path / "b")
    with closing(Database(postgresql_url)) as target:
        restore(target, tmp_path / "b")
        with target.writing() as connection:
            add_account(connection, "zoe", time.time())
            connection.execute(accounts.delete().where(accounts.c.name == "zoe"))
    assert read_tables(sqlite_url) == read_tables(postgresql_url) == read_tables(served.database)
