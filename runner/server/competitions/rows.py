"""Computes the hash of the rows of a competition or run. A run is a submission if both hashes are equal.

The hash includes all columns of the rows except labels. On other boards, only the columns that the verifier's prompt
templates use define the task (`runner.results.tasks`). A competition cannot do the same, because each participant
writes templates. A participant must not add a column either, because it could contain guesses of the secret labels.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from runner.base.hashing import tagged_hash
from runner.registry.bundles.runs import ROWS
from runner.registry.transports.interface import FileTransport

MAX_LINE_BYTES = 64 << 20
"""Maximum bytes of one row."""


def hash_rows(row_hashes: Iterable[str]) -> str:
    """Return the hash of a set of rows without labels; `row_hashes` has the hash of each row, in any order."""
    return tagged_hash("competition_rows", sorted(row_hashes))


def hash_run_rows(tree: FileTransport, folder: str) -> str | None:
    """Return the hash of the datapoints of a published run; None if they have labels or are not part of the release.

    The check of the upload has verified that the games of the run were played on these datapoints.
    """
    path = f"{folder}/{ROWS}"
    if not any(file.path == path for file in tree.list_files(path)):
        return None
    row_hashes = []
    with tree.open(path) as file:
        while line := file.readline(MAX_LINE_BYTES):
            row = orjson.loads(line)
            columns = {name: value for name, value in row.items() if name not in ("id", "label")}
            if row["label"] is not None:
                return None
            row_hashes.append(tagged_hash("datapoint", {"id": str(row["id"]), "label": None, "columns": columns}))
    return hash_rows(row_hashes)
