"""Reconstruct the datapoints of a run that was published without the rows of its dataset, so that it can be ranked.

The run's *pin* (`inputs/dataset.pin.json`) has the hashes of the datapoints and groups, and its rollouts have the
labels. From both, a board computes the task, so that the run is ranked only with runs on the same datapoints, labels
and groups. Only the publisher can check that the hashes and labels are right, so the board marks the run's metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import ReleaseError
from runner.base.hashing import SHA256
from runner.base.storage.atomic_files import atomic_write
from runner.base.text import counted
from runner.game.prompts.templates import VARIABLES
from runner.registry.fetched_release import PIN, read_pin
from runner.registry.rollout_checker import read_rows
from runner.registry.rollouts_file import ROLLOUTS_FILE
from runner.results.folder import RunFolder
from runner.results.saved_spec import saved_value
from runner.results.tasks import WITHHELD, PlayedDatapoint, template_variables
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.datasets.loader import Dataset

MARK = "labels withheld: as published"
"""The mark on a board's row if only the publisher has the dataset's rows."""


@dataclass(frozen=True)
class _WithheldDatapoint(Datapoint):
    """A datapoint with a hash instead of its content."""

    published_hash: str = ""

    @cached_property
    def content_hash(self) -> str:
        return self.published_hash


def load_withheld(folder: RunFolder) -> Dataset:
    """Return the datapoints of a run without their contents, and write them to the file that a board reads.

    Raises:
        ReleaseError: the run's pin and rollouts are damaged, or lack hashes or labels.
        OSError: a file cannot be read or written.
    """
    manifest = folder.manifest()
    group_by = saved_value(folder, "dataset", "group_by")
    rows = list(_pinned_rows(folder.path / PIN.partition("/")[2]))
    labels = {str(row["datapoint_id"]): row["y"] for row in read_rows(folder.path / ROLLOUTS_FILE)}
    # The owner of a dataset may withhold all labels, but not some of them.
    are_labels_withheld = bool(labels) and all(label is None for label in labels.values())
    valid_labels = [(type(None), None)] if are_labels_withheld else [(int, 0), (int, 1)]
    labeled_ids = {point_id for point_id, label in labels.items() if (type(label), label) in valid_labels}
    unlabeled_ids = [row["id"] for row in rows if row["id"] not in labeled_ids]
    if unlabeled_ids or len({row["id"] for row in rows}) < len(rows):
        raise ReleaseError(
            f"the run's dataset rows are withheld, and no rollout has the label of "
            f"{counted(len(unlabeled_ids), 'datapoint')}, so the task and metrics cannot be recomputed"
        )
    if group_by is None and any(row["group_sha256"] is not None for row in rows):
        raise ReleaseError(f"the run's spec does not group the datapoints, but {PIN} does")
    played_points = [_played_datapoint(row, labels[row["id"]]) for row in rows]
    lines = [orjson.dumps(vars(point), option=orjson.OPT_APPEND_NEWLINE) for point in played_points]
    atomic_write(folder.path / WITHHELD, b"".join(lines))
    columns = tuple(sorted(template_variables(folder) - VARIABLES.keys()))
    empty_columns = dict.fromkeys(columns, "")
    datapoints = tuple(
        _WithheldDatapoint(point.id, point.label, empty_columns, point.group, published_hash=row["sha256"])
        for point, row in zip(played_points, rows, strict=True)
    )
    return Dataset(datapoints, columns, manifest.dataset_source_sha256 or "", group_by)


def _played_datapoint(row: Mapping[str, Any], label: int | None) -> PlayedDatapoint:
    group = row["group_sha256"]
    return PlayedDatapoint(
        id=row["id"],
        group=group or row["id"],
        label=label,
        content_sha256=row["content_sha256"],
        columns={},
        group_is_hash=group is not None,
        all_columns_sha256=row.get("all_columns_sha256"),
    )


def _pinned_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        for row in read_pin(path)["rows"]:
            optional = row["group_sha256"], row.get("all_columns_sha256")
            hashes = [row["sha256"], row["content_sha256"], *filter(None, optional)]
            if type(row["id"]) is not str or any(SHA256.fullmatch(digest) is None for digest in hashes):
                raise ValueError("a row has no id or hash")
            yield row
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReleaseError(f"{PIN} does not say which datapoints were played: {error}") from error
