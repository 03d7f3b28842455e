"""The items of an audit: the datapoints of a dataset, or their candidate answers, which have one label each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.base.hashing import canonical
from runner.game.protocols.ballot import ANSWERS
from runner.spec.datasets.loader import Datapoint, Dataset

SPLIT = "split"


@dataclass(frozen=True)
class AuditItem:
    """A text or record that a verifier would judge, with its label, its group and what an agent could see of it."""

    id: str
    label: int | None
    group: str
    split: str | None
    columns: Mapping[str, Any]

    def text(self, column: str) -> str:
        """Return a column as text: empty for a missing value, JSON for lists and mappings."""
        value = self.columns.get(column)
        if value is None:
            return ""
        return value if isinstance(value, str) else canonical(value).decode()


def list_items(dataset: Dataset, ignored: Collection[str] = ()) -> list[AuditItem]:
    """Return the items of a dataset, without the columns that agents do not see or the user ignores.

    A datapoint with candidate answers becomes an item for each answer. Its label says whether the answer is right.
    """
    hidden = {SPLIT, dataset.group_by, *ignored}
    return [item for point in dataset.datapoints for item in _items_of(point, hidden)]


def list_columns(items: Sequence[AuditItem]) -> list[str]:
    """Return the names of the columns of all items."""
    return list(dict.fromkeys(name for item in items for name in item.columns))


def _items_of(point: Datapoint, hidden: Collection[str | None]) -> Iterator[AuditItem]:
    split = None if point.columns.get(SPLIT) is None else str(point.columns[SPLIT])
    columns = {name: value for name, value in point.columns.items() if name not in hidden}
    if point.answers is None:
        yield AuditItem(point.id, point.label, point.group, split, columns)
        return
    columns.pop(ANSWERS, None)
    for index, text in enumerate(point.answers.texts):
        label = None if point.answers.right is None else int(index in point.answers.right)
        yield AuditItem(f"{point.id} answer {index + 1}", label, point.group, split, {**columns, "answer": text})
