"""The server's records in PostgreSQL: as in SQLite, and with many writers at once."""

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
from tests.server.test_serve import refused
from tests.support.postgresql import run_postgresql
from tests.support.registry_locations import bundle
from tests.support.server_contents import read_tables
from tests.support.server_process import ServerProcess, run_server

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def database() -> Iterator[Callable[[], str]]:
    with run_postgresql() as made:
        yield made


@pytest.fixture(scope="module")
def served(database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with run_server(tmp_path_factory.mktemp("server"), database=database()) as running:
        yield running


def test_ten_publishers_at_once_have_all_their_releases_once(served: ServerProcess) -> None:
    failed: list[BaseException] = []

    def publish(number: int) -> None:
        try:
            mine = [bundle(f"p{number}-{n}", kind=Kind.DATASET) for n in range(3)]
            served.publish("alice" if number % 2 else "bob", *mine, bundle("shared", kind=Kind.DATASET))
        except Exception as error:  # noqa: BLE001 - whatever it is
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


def test_a_database_has_one_server(served: ServerProcess, tmp_path: Path) -> None:
    assert served.database is not None
    assert "another server uses this database" in refused(
        "new", "--port", "0", "--database", served.database, cwd=tmp_path
    )
    gone = served.database.replace("host=", "host=/nowhere")
    assert "cannot use the database" in refused("new", "--port", "0", "--database", gone, cwd=tmp_path)


def test_a_closed_board_worker_leaves_no_connection_open(database: Callable[[], str], tmp_path: Path) -> None:
    with closing(BoardWorker(Settings(folder=tmp_path, database=database()))):
        pass
    gc.collect()  # a connection that is still open warns when it is collected, which fails the test


def test_writers_at_once_lose_no_count_and_make_no_name_twice(database: Callable[[], str]) -> None:
    url = database()
    taken = []

    def write(number: int) -> None:
        with closing(Database(url)) as mine:  # all make the tables, too
            for turn in range(10):
                with mine.writing() as connection:
                    mine.increment_revision(connection)
                try:
                    with mine.writing() as connection:
                        add_account(connection, f"name{turn}{'x' * turn}", time.time())
                except TakenError:
                    taken.append((number, turn))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with closing(Database(url)) as mine, mine.reading() as connection:
        assert mine.revision(connection) == 80
        assert len(connection.execute(select(accounts)).all()) == 10
    assert len(taken) == 70


def test_a_reader_sees_one_state_of_all_tables(database: Callable[[], str]) -> None:
    with closing(Database(database())) as mine:
        with mine.reading() as connection:
            before = mine.revision(connection)
            with mine.writing() as other:
                mine.increment_revision(other)
            assert mine.revision(connection) == before
        with mine.reading() as connection:
            assert mine.revision(connection) == before + 1


def test_a_backup_goes_from_either_database_into_either_and_numbers_go_on(
    served: ServerProcess, database: Callable[[], str], tmp_path: Path
) -> None:
    assert served.database is not None
    with closing(served.open_database()) as records:
        back_up(records, tmp_path / "a")
    light, heavy = f"sqlite:///{tmp_path / 'light.sqlite'}", database()
    with closing(Database(light)) as new:
        restore(new, tmp_path / "a")
        back_up(new, tmp_path / "b")
    with closing(Database(heavy)) as new:
        restore(new, tmp_path / "b")
        with new.writing() as connection:
            add_account(connection, "zoe", time.time())
            connection.execute(accounts.delete().where(accounts.c.name == "zoe"))
    assert read_tables(light) == read_tables(heavy) == read_tables(served.database)
