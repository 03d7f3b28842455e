"""Versions of the file formats, and the refusal of files from a newer version of nip-run.

Each kind of file has its version at a different place, listed below. A file without a version was written by nip-run
0.1.0 and has version 0. nip-run reads files of every version up to the number in this module, and refuses newer files
before it changes anything. If you change a format, raise its number here, and continue to read the old versions.

    run folder    `format` in manifest.json, for every file of the folder except its two logs
    logs          `format` in the first record of journal.jsonl and of stages.jsonl. Logs are appended to and never
                  rewritten, so each keeps the format that it started with. The form of a first record never changes.
                  From 2 on it names its run, and the lines are bound to the log (see
                  `runner.base.storage.log_lines`); a journal holds the complete answers of servers
    cache         SQLite's `user_version`; from 1 on it has the table `answers`, which version 0 may lack
    leaderboard   the table `format`; from 2 on it has the table `datapoints` and tasks, from 3 on the ranks of tied
                  rows, and more columns, from 4 on the runs that share answers, from 5 on ranks by tests of all pairs,
                  from 6 on tasks by the columns that the verifier sees, from 7 on tests that separate runs only in the
                  order of their accuracies. An older board is updated from the run folders: in memory when it is
                  queried, in the file when a run is appended
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.base.errors import NewerFormatError, RunError

RUN_FOLDER = 1
LOG_FORMAT = 2
CACHE = 1
LEADERBOARD = 7

KEY = "format"

STAGE_LOG = "stages.jsonl"
"""The log of a training run."""


def refuse_newer(
    path: Path, version: Any, newest_known: int, *, error: type[RunError] = NewerFormatError, hint: str = ""
) -> None:
    """Check that this version of nip-run can read a file whose format has this `version`.

    Raises:
        RunError: the version is not a natural number, so the file is damaged. If a newer version of nip-run wrote the
            file, the exception is of type `error`, and its message ends with `hint`.
    """
    if type(version) is not int or version < 0:
        raise RunError(f"{path} is damaged: its format cannot be {version!r}; replace the file with an intact copy")
    if version > newest_known:
        raise error(
            f"{path} was written by a newer version of nip-run (its format is {version!r}, this version reads "
            f"up to {newest_known}); upgrade nip-run{hint}"
        )
