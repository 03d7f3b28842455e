"""The versions of what is written, and the refusal of what a newer nip-run wrote.

Each thing says its version in a place of its own. What says none was written by 0.1.0 and has version 0. A reader
takes every version up to its own, and refuses a newer one before anything is changed. Who changes a format raises its
number here, and reads the old ones on.

    run folder    `format` in manifest.json, for every file of the folder but its two logs
    logs          `format` in the first record of journal.jsonl and of stages.jsonl: they are appended to and never
                  rewritten, so each goes on as it was begun. A first record keeps its form in all versions.
                  From 2 on it says whose log it is, and the lines are bound to it (see `log_lines`); a journal holds
                  servers' answers whole
    cache         SQLite's `user_version`; from 1 on it has the table `answers`, which version 0 may lack
    leaderboard   the table `format`; from 2 on it has the table `datapoints` and tasks, from 3 on the ranks of rows
                  that are tied, and more columns, from 4 on which runs share answers. An older board is brought up to
                  date from the run folders: in memory where it is asked, in the file where a run is appended
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.base.errors import NewerFormatError, RunError

RUN_FOLDER = 1
LOG_FORMAT = 2
CACHE = 1
LEADERBOARD = 4

KEY = "format"

STAGE_LOG = "stages.jsonl"
"""The log of a training run, which is written by what trains."""


def refuse_newer(
    path: Path, found: Any, known: int, *, error: type[RunError] = NewerFormatError, hint: str = ""
) -> None:
    """Take a file whose version is known.

    Raises:
        RunError: of the kind `error`; a newer nip-run wrote the file. `hint` is what can be done besides upgrading. Or
            its format is not a number, so that the file is damaged.
    """
    if type(found) is not int or found < 0:
        raise RunError(f"{path} is damaged: its format cannot be {found!r}")
    if found > known:
        raise error(
            f"{path} was written by a newer nip-run (its format is {found!r}, this one knows up to {known}); upgrade "
            f"nip-run{hint}"
        )
