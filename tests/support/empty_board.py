"""New leaderboards as copies of an empty one: creating the tables and views takes a third of the time of a short run.

Leaderboards that exist already, and those of other processes, are opened as users open them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from unittest.mock import patch

from runner.results.leaderboard import database, schema

_is_copy: ContextVar[bool] = ContextVar("is_copy", default=False)
"""Whether the leaderboard that is open for writing is a copy of the empty one, so that it has all tables and views."""


@contextmanager
def copy_new_boards(folder: Path) -> Iterator[None]:
    """Let new leaderboards begin as copies of an empty one, which is created in `folder` when it is first needed."""
    empty = folder / database.FILE
    open_working_copy, definitions_sql = database._working_copy, schema.definitions_sql

    @contextmanager
    def open_copy(path: Path, *, fresh: bool) -> Iterator[Path]:
        with open_working_copy(path, fresh=fresh) as copy:
            is_new = path != empty and not copy.exists()
            if is_new:
                if not empty.exists():
                    database.Leaderboard(folder, lambda: ()).rebuild()
                shutil.copyfile(empty, copy)
            token = _is_copy.set(is_new)
            try:
                yield copy
            finally:
                _is_copy.reset(token)

    with (
        patch.object(database, "_working_copy", open_copy),
        patch.object(database, "definitions_sql", lambda: "" if _is_copy.get() else definitions_sql()),
    ):
        yield
