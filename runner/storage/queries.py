"""What every question to DuckDB needs: paths that are not patterns, and a Ctrl-C that is heard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_QUERY_INTERRUPTED = "Query interrupted"
"""All that tells DuckDB's error for a Ctrl-C from others."""


def duckdb_pattern(path: Path) -> str:
    """A path as DuckDB's readers want it: they take file names for patterns."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


@contextmanager
def interruptible_queries() -> Iterator[None]:
    """Ctrl-C in a query as `KeyboardInterrupt`, as everywhere else: DuckDB makes it an error like any other."""
    try:
        yield
    except RuntimeError as error:
        if str(error) == _QUERY_INTERRUPTED:
            raise KeyboardInterrupt from error
        raise
