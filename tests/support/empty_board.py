"""New leaderboards as copies of an empty one: creating the tables and views takes a third of the time of a short run.

Leaderboards that exist already, and those of other processes, are opened as users open them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from runner.results.leaderboard import database


@contextmanager
def copy_new_boards(folder: Path) -> Iterator[None]:
    """Let new leaderboards begin as copies of an empty one, which is created in `folder` when it is first needed."""
    empty = folder / database.FILE
    open_working_copy = database._working_copy

    @contextmanager
    def open_copy(path: Path, *, fresh: bool) -> Iterator[Path]:
        with open_working_copy(path, fresh=fresh) as copy:
            if path != empty and not copy.exists():
                if not empty.exists():
                    database.Leaderboard(folder, lambda: ()).rebuild()
                shutil.copyfile(empty, copy)
            yield copy

    with patch.object(database, "_working_copy", open_copy):
        yield
