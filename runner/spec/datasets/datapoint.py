"""One item that is played, and groups of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runner.base.hashing import hash_parity, tagged_hash


@dataclass(frozen=True)
class Datapoint:
    """One item: its id, its label, the columns that templates may show, and the group that it belongs to.

    The label is None where its owner keeps it; then no datapoint of its dataset has one.
    The group is its own id without `dataset.group_by`. No game depends on it, so it is not in the content hash.
    """

    id: str
    label: int | None
    columns: Mapping[str, Any]
    group: str = ""

    def __post_init__(self) -> None:
        if not self.group:
            object.__setattr__(self, "group", self.id)

    @cached_property
    def prover_stance(self) -> int:
        """The stance a prover is given for this datapoint where the protocol randomises it."""
        text = self.columns.get("solution")
        return hash_parity(text if isinstance(text, str) else self.id)

    @cached_property
    def content_hash(self) -> str:
        """Identity: the hash of everything a game can depend on."""
        return tagged_hash("datapoint", {"id": self.id, "label": self.label, "columns": self.columns})


def grouped(points: Iterable[Datapoint]) -> list[list[Datapoint]]:
    """The datapoints of each group, in the order of the groups' first."""
    groups: dict[str, list[Datapoint]] = {}
    for point in points:
        groups.setdefault(point.group, []).append(point)
    return list(groups.values())
