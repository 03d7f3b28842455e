"""The one way in which datasets open DuckDB: one thread, bounded memory, and no extension that it could fetch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


def connect(memory: int) -> duckdb.DuckDBPyConnection:
    """A database in memory, of so many bytes."""
    import duckdb

    return duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "memory_limit": f"{max(memory >> 20, 64)}MiB",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
        },
    )
