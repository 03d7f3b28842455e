"""A published run without the rows of its dataset into the datapoints that its games are held against.

Their hashes, and those of their groups' names, stand in its pin, their labels in its rollouts; the hash of each in a
task follows from these, so that it ranks in another's list only with the very datapoints, labels and groups of it. What
a datapoint says is in none of them, and a game's name follows from the hash. That such rows were played is the
publisher's word, as with rows, beside which records could be written by hand: its numbers are as published.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import ReleaseError
from runner.base.storage.atomic_files import atomic_write
from runner.game.prompts.templates import VARIABLES
from runner.registry.fetched_release import PIN, read_pin
from runner.registry.records import ROLLOUTS_FILE
from runner.registry.rollout_records import rows_of
from runner.results.folder import RunFolder
from runner.results.leaderboard.rows import saved_value
from runner.results.tasks import WITHHELD, PlayedDatapoint, template_variables
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.datasets.loader import Dataset

MARK = "labels withheld: as published"
"""What is said of a row whose datapoints nobody else can look at."""
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class _Withheld(Datapoint):
    """A datapoint of which nothing but its hashes is known."""

    said_hash: str = ""

    @cached_property
    def content_hash(self) -> str:
        return self.said_hash


def take_withheld(folder: RunFolder) -> Dataset:
    """The datapoints of a run with nothing in them, which are also written where the board looks for them.

    Raises:
        ReleaseError: its pin and its rollouts do not say enough of them.
        OSError: they cannot be read or written.
    """
    manifest = folder.manifest()
    group_by = saved_value(folder, "dataset", "group_by")
    rows = list(_rows(folder.path / PIN.partition("/")[2]))
    labels = {str(row["datapoint_id"]): row["y"] for row in rows_of(folder.path / ROLLOUTS_FILE)}
    kept = bool(labels) and all(label is None for label in labels.values())  # by the dataset's owner
    unknown = [
        row["id"]
        for row in rows
        if row["id"] not in labels
        or (not kept and (type(labels[row["id"]]) is not int or labels[row["id"]] not in (0, 1)))
    ]
    if unknown or len({row["id"] for row in rows}) < len(rows):
        raise ReleaseError(
            f"its datapoints are withheld, and of {len(unknown)} of them no rollout has the label, so that its task "
            "and its numbers cannot be made again"
        )
    if group_by is None and any(row["group_sha256"] is not None for row in rows):
        raise ReleaseError(f"its spec does not group its datapoints, and {PIN} does")
    played = [_played(row, labels[row["id"]]) for row in rows]
    lines = [orjson.dumps(vars(one), option=orjson.OPT_APPEND_NEWLINE) for one in played]
    atomic_write(folder.path / WITHHELD, b"".join(lines))
    columns = tuple(sorted(template_variables(folder) - VARIABLES.keys()))
    empty = dict.fromkeys(columns, "")
    points = tuple(
        _Withheld(one.id, one.label, empty, one.group, row["sha256"]) for one, row in zip(played, rows, strict=True)
    )
    return Dataset(points, columns, manifest.dataset_source_sha256 or "", group_by)


def _played(row: Mapping[str, Any], label: int | None) -> PlayedDatapoint:
    group = row["group_sha256"]
    return PlayedDatapoint(row["id"], group or row["id"], label, row["content_sha256"], {}, group is not None)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        for row in read_pin(path)["rows"]:
            hashes = [row["sha256"], row["content_sha256"], row["group_sha256"] or row["sha256"]]
            if type(row["id"]) is not str or any(_HASH.fullmatch(one) is None for one in hashes):
                raise ValueError("a row has no id or hash")
            yield row
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReleaseError(f"{PIN} does not say which datapoints were played: {error}") from error
