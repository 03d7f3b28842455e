"""Datapoints, and groups of them. Games are planned from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runner.base.batches import group_pairs
from runner.base.hashing import hash_parity, tagged_hash
from runner.game.protocols.ballot import CandidateAnswers


@dataclass(frozen=True)
class Datapoint:
    """One item of a dataset: its id, its label, the columns that templates may show, and its group.

    If the dataset's owner hides the labels, all labels of the dataset are None. Without `dataset.group_by`, the
    datapoint's id is the group. `content_hash` does not depend on the group, since no game depends on the group.
    With candidate answers, which also are the column `answers`, the label is None.
    """

    id: str
    label: int | None
    columns: Mapping[str, Any]
    group: str = ""
    answers: CandidateAnswers | None = None

    def __post_init__(self) -> None:
        if not self.group:
            object.__setattr__(self, "group", self.id)

    @cached_property
    def prover_stance(self) -> int:
        """The verdict that a prover argues for in games of this datapoint, if the protocol draws stances at random."""
        text = self.columns.get("solution")
        return hash_parity(text if isinstance(text, str) else self.id)

    @cached_property
    def content_hash(self) -> str:
        """The hash of everything that a game can depend on."""
        content: dict[str, Any] = {"id": self.id, "label": self.label, "columns": self.columns}
        if self.answers is not None and self.answers.right is not None:
            content["right"] = self.answers.right
        return tagged_hash("datapoint", content)

    @property
    def is_labelled(self) -> bool:
        """Whether it is known which verdicts are right."""
        return self.label is not None or (self.answers is not None and self.answers.right is not None)

    @property
    def answer_count(self) -> int | None:
        """The number of candidate answers; None if there are none."""
        return None if self.answers is None else len(self.answers.texts)

    @property
    def saved_label(self) -> int | list[int] | None:
        """The value of the column `label` in saved datasets: with candidate answers, the numbers of the right ones."""
        if self.answers is None or self.answers.right is None:
            return self.label
        return [index + 1 for index in self.answers.right]


def group_datapoints(points: Iterable[Datapoint]) -> list[list[Datapoint]]:
    """Return the datapoints of each group, in the order of the groups' first datapoints."""
    return list(group_pairs((point.group, point) for point in points).values())
