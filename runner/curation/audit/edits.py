"""Edits between the versions of one text in a group: where they differ, and how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from runner.base.batches import group_pairs
from runner.curation.audit.items import AuditItem, list_columns

MIN_VERSIONS: Final = 3
"""The fewest versions of a group whose edits can tell a label. Of two versions, each is an edit of the other."""
MAX_VERSIONS: Final = 30
"""The number of versions of a group, from the first, that are compared with all others."""


class Edit(NamedTuple):
    """The part where two texts differ: its length in characters, and its start as a share of the text."""

    size: int
    position: float


@dataclass(frozen=True)
class EditSummary:
    """The edits between the wrong versions of a column and the nearest right version in their groups."""

    column: str
    edits: int
    median_size: float
    median_position: float


def find_edit(first: str, second: str) -> Edit:
    """Return the part where `first` differs from `second`, after their common start and before their common end."""
    start = _common_start(first, second)
    rest, other_rest = first[start:][::-1], second[start:][::-1]
    size = max(len(rest), len(other_rest)) - _common_start(rest, other_rest)
    return Edit(size, start / max(len(first), 1))


def _common_start(first: str, second: str) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
    return low


def nearest_versions(items: Sequence[AuditItem], texts: Sequence[str]) -> list[Edit] | None:
    """Return the edit from each text to the most similar one of its group; None if no group has three versions.

    Texts of smaller groups have an edit of size 0, so that they do not predict anything.
    """
    edits = [Edit(0, 0.0)] * len(items)
    for members in _groups(items):
        if len(members) < MIN_VERSIONS:
            continue
        for index in members:
            siblings = [sibling for sibling in members[:MAX_VERSIONS] if sibling != index]
            edits[index] = min(find_edit(texts[index], texts[sibling]) for sibling in siblings)
    return edits if any(edit.size for edit in edits) else None


def summarize_edits(items: Sequence[AuditItem]) -> Iterator[EditSummary]:
    """Yield for each column the edits that make right versions wrong, if there are any."""
    for column in list_columns(items):
        edits: list[Edit] = []
        for members in _groups(items):
            right = [items[index].text(column) for index in members[:MAX_VERSIONS] if items[index].label == 1]
            wrong = [items[index].text(column) for index in members[:MAX_VERSIONS] if items[index].label == 0]
            if right:
                edits += [min(find_edit(text, right_text) for right_text in right) for text in wrong]
        edits = [edit for edit in edits if edit.size]
        if edits:
            sizes, positions = zip(*edits, strict=True)
            yield EditSummary(column, len(edits), median(sizes), median(positions))


def _groups(items: Sequence[AuditItem]) -> list[list[int]]:
    """Return the indices of the items of each group."""
    return list(group_pairs((item.group, index) for index, item in enumerate(items)).values())
