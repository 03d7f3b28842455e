"""Computes a hash of the rows of a competition or run. A run is a submission if both have the same hash.

The hash has all columns of the rows. On other boards, only the columns that the verifier's templates use define the
task (`results/tasks.py`). A competition cannot know these columns, since each participant writes the templates. And as
its labels are secret, a column that a participant adds could bring somebody's guesses of them into the prompts.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from runner.base.hashing import tagged_hash
from runner.registry.bundles.runs import ROWS
from runner.registry.transports.interface import FileTransport

MAX_LINE = 64 << 20
"""Maximum bytes of one row."""


def competition_rows(hashes: Iterable[str]) -> str:
    """Return the hash of a set of rows without labels; `hashes` has the hash of each row, in any order."""
    return tagged_hash("competition_rows", sorted(hashes))


def rows_of_run(tree: FileTransport, folder: str) -> str | None:
    """Return `competition_rows` for the datapoints of a published run.

    Return None if the rows have labels or are not part of the release. The check of the upload has verified that the
    games of the run were played on these rows.
    """
    path = f"{folder}/{ROWS}"
    if not any(file.path == path for file in tree.list_files(path)):
        return None
    hashes = []
    with tree.open(path) as file:
        while line := file.readline(MAX_LINE):
            row = orjson.loads(line)
            columns = {name: value for name, value in row.items() if name not in ("id", "label")}
            if row["label"] is not None:
                return None
            hashes.append(tagged_hash("datapoint", {"id": str(row["id"]), "label": None, "columns": columns}))
    return competition_rows(hashes)
