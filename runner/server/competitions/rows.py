"""The rows that a competition is about, and whether a run was played on just these, by the hashes of its datapoints."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from runner.base.hashing import tagged_hash
from runner.registry.bundles.runs import ROWS
from runner.registry.transports.interface import Transport

MAX_LINE = 64 << 20


def competition_rows(hashes: Iterable[str]) -> str:
    """The hash of datapoints without labels, by the hash of each, in any order."""
    return tagged_hash("competition_rows", sorted(hashes))


def rows_of_run(tree: Transport, folder: str) -> str | None:
    """`competition_rows` of the datapoints that a published run was played on.

    None of one that has labels, or whose rows are not in its release: nobody could see what it was played on. What the
    file says was checked before: it is what the run's journal was played with.
    """
    path = f"{folder}/{ROWS}"
    if not any(file.path == path for file in tree.stored(path)):
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
