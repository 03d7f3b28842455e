"""A competition's board costs what is on it, and not what it is scored by."""

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

ROWS, HELD = 30_000, 10_000


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    database = Database(Settings(folder=tmp_path).database_url)
    with database.writing() as writing:
        add_account(writing, "acme", 0.0)
        dataset = {"id": 1, "kind": "dataset", "owner": "acme", "name": "d", "version": "1", "sha256": "0" * 64,
                   "visibility": "public", "publisher_id": 1, "created": 0.0}  # fmt: skip
        writing.execute(insert(releases), dataset)
        one = {"id": 1, "owner": "acme", "name": "c", "title": "", "release_id": 1, "rows_sha256": "x", "day_limit": 5,
               "created": 0.0, "closes": 9e9}  # fmt: skip
        writing.execute(insert(competitions), one)
        rows = [{"competition_id": 1, "datapoint_id": str(n), "label": 0, "is_held": n < HELD} for n in range(ROWS)]
        writing.execute(insert(competition_labels), rows)
    with database.reading() as reading:
        yield reading
    database.close()


def test_its_rows_are_counted_where_they_are(connection: Connection) -> None:
    def peak(ask: Callable[[], object]) -> int:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        ask()
        return tracemalloc.get_traced_memory()[1] - before

    found = describe_board(connection, ANYBODY, "acme", "c", 1.0)  # what is kept of statements is not counted
    assert (found["rows_open"], found["rows_held_out"]) == (ROWS - HELD, HELD)
    tracemalloc.start()
    try:
        all_read = peak(lambda: connection.execute(select(competition_labels.c.is_held)).all())
        assert peak(lambda: describe_board(connection, ANYBODY, "acme", "c", 1.0)) < all_read / 10
    finally:
        tracemalloc.stop()
