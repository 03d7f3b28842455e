"""Tasks of runs: the datapoints by the columns that the templates use, with labels and groups.

Rows are comparable if their task is the same: the same datapoints, from any file, in any order, and with any columns
that the templates do not use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from runner.base.hashing import tagged_hash
from runner.base.storage.safe_files import open_to_read, read_bounded
from runner.game.prompts.sandbox import scan
from runner.game.prompts.templates import MAX_BYTES, SUFFIX
from runner.results.folder import RunFolder
from runner.results.metric_table import RANKING_METRIC

MAX_LINE = 64 << 20
WITHHELD = "withheld.jsonl"
"""The board's datapoints of a published run that came without its rows: a `PlayedDatapoint` a line."""


@dataclass(frozen=True)
class PlayedDatapoint:
    """A datapoint as the board stores it."""

    id: str
    group: str
    label: int | None
    content_sha256: str
    """The hash of the columns that templates use."""
    columns: Mapping[str, Any]
    """The columns except id and label, including columns that no template uses, since a question may slice by them."""
    group_is_hash: bool = False
    """Whether its group is withheld, so that `group` is a hash."""

    @property
    def sha256(self) -> str:
        """The hash of the whole datapoint, equal to `Datapoint.content_hash`."""
        return tagged_hash("datapoint", {"id": self.id, "label": self.label, "columns": self.columns})

    @property
    def digest(self) -> str:
        """The hash of it within the task, which follows from hashes alone if its group and columns are withheld."""
        return tagged_hash("played", [self.id, self.group_sha256 or self.id, self.label, self.content_sha256])

    @property
    def group_sha256(self) -> str | None:
        """The hash of its group's name; None if it has no group but itself."""
        if self.group == self.id:
            return None
        return self.group if self.group_is_hash else tagged_hash("group", self.group)


def played_datapoints(folder: RunFolder, group_by: str | None) -> Iterator[PlayedDatapoint]:
    """Yield the datapoints of a run from its saved inputs.

    Raises:
        OSError: they cannot be read.
        ValueError: they are damaged.
    """
    used = template_variables(folder)
    path = folder.path / "inputs" / "dataset.jsonl"
    is_withheld = not path.is_file() and (folder.path / WITHHELD).is_file()
    with open_to_read(folder.path / WITHHELD if is_withheld else path) as file:
        while line := file.readline(MAX_LINE):
            try:
                row = orjson.loads(line)
                yield PlayedDatapoint(**row) if is_withheld else _datapoint(row, used, group_by)
            except (KeyError, TypeError) as error:
                raise ValueError("not a datapoint") from error


def _datapoint(row: Mapping[str, Any], used: frozenset[str], group_by: str | None) -> PlayedDatapoint:
    id_ = str(row["id"])
    group = id_ if group_by is None else str(row[group_by])
    columns = {name: value for name, value in row.items() if name not in ("id", "label")}
    content = {name: columns[name] for name in sorted(columns) if name in used}
    label = row["label"]
    if label not in (0, 1, None):
        raise ValueError(f"a label is 0 or 1, not {label!r}")
    return PlayedDatapoint(id_, group, None if label is None else int(label), tagged_hash("content", content), columns)


def template_variables(folder: RunFolder) -> frozenset[str]:
    """Return the variables that a run's templates use, including those of the runner.

    Raises:
        OSError: they cannot be read.
        ValueError: one is not UTF-8.
    """
    prompts = folder.path / "inputs" / "prompts"
    sources = (read_bounded(path, MAX_BYTES) for path in sorted(prompts.iterdir()) if path.suffix == SUFFIX)
    return frozenset(name for source in sources for name in scan(source.decode("utf-8-sig")).variables)


@dataclass(frozen=True)
class Task:
    """The properties that make rows comparable."""

    dataset_content_sha256: str
    """The hash of the datapoints that were played, with labels and groups; their order does not matter."""
    template_columns: str
    """The columns that the templates use, by name."""

    @classmethod
    def of(cls, digests: list[str], columns: frozenset[str]) -> Task:
        """Return the task of datapoints with these digests."""
        return cls(tagged_hash("dataset_content", sorted(digests)), ", ".join(sorted(columns)))

    @classmethod
    def of_run(cls, folder: RunFolder, group_by: str | None) -> Task:
        """Return the task of a run. Raises the same errors as `played_datapoints`."""
        points = list(played_datapoints(folder, group_by))
        columns = {name for point in points for name in point.columns}
        return cls.of([point.digest for point in points], template_variables(folder) & columns)

    @property
    def sha256(self) -> str:
        return tagged_hash("task", {"dataset": self.dataset_content_sha256, "metric": RANKING_METRIC})
