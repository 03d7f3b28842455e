"""The memory for a competition's board does not grow with the number of labels."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, select

from runner.server.accounts.accounts import ANYBODY, add_account
from runner.server.competitions.board import describe_board
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.store.schema import competition_labels, competitions, releases

ROWS, HELD_OUT = 30_000, 10_000


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    database = Database(Settings(folder=tmp_path).database_url)
    with database.writing() as writer:
        add_account(writer, "acme", 0.0)
        dataset = {"id": 1, "kind": "dataset", "owner": "acme", "name": "d", "version": "1", "sha256": "0" * 64,
                   "visibility": "public", "publisher_id": 1, "created": 0.0}  # fmt: skip
        writer.execute(insert(releases), dataset)
        competition = {"id": 1, "owner": "acme", "name": "c", "title": "", "release_id": 1, "rows_sha256": "x",
                       "day_limit": 5, "created": 0.0, "closes": 9e9}  # fmt: skip
        writer.execute(insert(competitions), competition)
        rows = [{"competition_id": 1, "datapoint_id": str(n), "label": 0, "is_held": n < HELD_OUT} for n in range(ROWS)]
        writer.execute(insert(competition_labels), rows)
    with database.reading() as reader:
        yield reader
    database.close()


def test_board_counts_rows_in_the_database_without_loading_them(connection: Connection) -> None:
    def peak_bytes(call: Callable[[], object]) -> int:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        call()
        return tracemalloc.get_traced_memory()[1] - before

    board = describe_board(connection, ANYBODY, "acme", "c", 1.0)  # fills the statement cache before measuring
    assert (board["rows_open"], board["rows_held_out"]) == (ROWS - HELD_OUT, HELD_OUT)
    tracemalloc.start()
    try:
        read_all_bytes = peak_bytes(lambda: connection.execute(select(competition_labels.c.is_held)).all())
        assert peak_bytes(lambda: describe_board(connection, ANYBODY, "acme", "c", 1.0)) < read_all_bytes / 10
    finally:
        tracemalloc.stop()
