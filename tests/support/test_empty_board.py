"""A copied leaderboard equals a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from runner.results.leaderboard.database import FILE, Leaderboard
from runner.results.leaderboard.schema import definitions_sql

CATALOG = (
    "SELECT table_name, sql FROM duckdb_tables() ORDER BY ALL",
    "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY ALL",
    "SELECT table_name, column_index, column_name, data_type, comment FROM duckdb_columns() ORDER BY ALL",
)


def read_catalog(connection: duckdb.DuckDBPyConnection) -> list[list[tuple[Any, ...]]]:
    """Return the tables, views and columns, without the table `format`, which has the version of the rows."""
    results = [connection.execute(query).fetchall() for query in CATALOG]
    return [[row for row in rows if row[0] != "format"] for rows in results]


def test_copied_board_has_the_tables_views_and_comments_of_the_definitions(tmp_path: Path) -> None:
    Leaderboard(tmp_path, lambda: ()).rebuild()
    with duckdb.connect(tmp_path / FILE, read_only=True) as board, duckdb.connect() as defined:
        defined.execute(definitions_sql())
        assert read_catalog(board) == read_catalog(defined)
        assert len(read_catalog(board)[1]) > 3
