"""A published run without the rows of its dataset into the datapoints that its games are held against.

Their hashes and groups stand in its pin, their labels in its rollouts. What a datapoint says is in none of them, and
no number of a board depends on it: a game's name follows from the hash. That a hash is that of such a row is the
publisher's word, and a mark says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from runner.datasets.datapoint import Datapoint
from runner.datasets.load import Dataset
from runner.errors import ReleaseError
from runner.prompts.templates import VARIABLES
from runner.registry.fetched import PIN, small
from runner.registry.records import ROLLOUTS_FILE
from runner.registry.rollout_records import rows_of
from runner.results.board_rows import saved_value
from runner.results.folder import RunFolder
from runner.results.tasks import WITHHELD, PlayedDatapoint, template_variables
from runner.storage.atomic import atomic_write

MARK = "datapoints withheld: their labels and hashes are as it says"
MAX_PIN = 64 << 20
_HASH = re.compile(r"[0-9a-f]{64}")


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
    unknown = [row["id"] for row in rows if type(labels.get(row["id"])) is not int or labels[row["id"]] not in (0, 1)]
    if unknown or len({row["id"] for row in rows}) < len(rows):
        raise ReleaseError(
            f"its datapoints are withheld, and of {len(unknown)} of them no rollout has the label, so that its task "
            "and its numbers cannot be made again"
        )
    if group_by is not None and any(type(row.get("group")) is not int for row in rows):
        raise ReleaseError(f"its datapoints are withheld, and {PIN} does not say which of them are one group")
    groups = {row["id"]: row["id"] if group_by is None else str(row["group"]) for row in rows}
    _write(folder, rows, groups, labels, has_groups=group_by is not None)
    columns = tuple(sorted(template_variables(folder) - VARIABLES.keys()))
    points = tuple(_point(row, labels[row["id"]], groups[row["id"]], columns) for row in rows)
    return Dataset(points, columns, manifest.dataset_source_sha256 or "", group_by)


def _point(row: Mapping[str, Any], label: int, group: str, columns: tuple[str, ...]) -> Datapoint:
    point = Datapoint(row["id"], label, dict.fromkeys(columns, ""), group)
    vars(point)["content_hash"] = row["sha256"]  # which is of what is withheld
    return point


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        for row in orjson.loads(small(path, MAX_PIN))["rows"]:
            hashes = [row["sha256"], row["content_sha256"], row.get("played_sha256") or row["sha256"]]
            if type(row["id"]) is not str or any(_HASH.fullmatch(one) is None for one in hashes):
                raise ValueError("a row has no id or hash")
            yield row
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReleaseError(f"{PIN} does not say which datapoints were played: {error}") from error


def _write(
    folder: RunFolder,
    rows: list[dict[str, Any]],
    groups: Mapping[str, str],
    labels: Mapping[str, int],
    *,
    has_groups: bool,
) -> None:
    lines = []
    for row in rows:
        id_ = row["id"]
        played = PlayedDatapoint(id_, groups[id_], labels[id_], row["content_sha256"], {}, row.get("played_sha256"))
        if not has_groups and played.said_digest not in (None, played.own_digest):
            raise ReleaseError(f"{PIN}: the hash of datapoint {id_!r} is not that of its content, label and group")
        lines.append(orjson.dumps(vars(played), option=orjson.OPT_APPEND_NEWLINE))
    atomic_write(folder.path / WITHHELD, b"".join(lines))
