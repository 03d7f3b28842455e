"""What the marks of a board's rows mean, by the words that they begin with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OTHER = "other"


@dataclass(frozen=True)
class Mark:
    """What is said of one row."""

    kind: str
    text: str


_OF_LINEAGE = ("goes on from", "ancestor ", "its lineage", "made by", "several say", "it was ")

_KINDS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("unfinished", ("unfinished",), "It did not play to its end, so that its numbers would change."),
    ("incomplete", ("incomplete",), "It lost more games in transport than its spec allows."),
    ("replay", ("replay of", "a replay of"), "It was played with the answers of another run: it is no new sample."),
    ("judges debates", ("judges the debates of",), "It judges what was said in another run."),
    ("tree", ("tree:",), "It samples several answers a step, which are not independent games."),
    ("unknown task", ("unknown task",), "The datapoints that were saved with it cannot be read."),
    ("no verdict", ("no rollout has a verdict",), "There is nothing to count."),
    ("another sample", ("another selection", "other datapoints"), "It was asked other datapoints than this list."),
    ("other columns", ("its templates use other columns",), "Its agents were shown other columns of the dataset."),
    ("stopped", ("stopped once decided",), "It stopped when its result was decided; its interval allows for that."),
    ("again", ("plays ",), "It plays a published run anew."),
    ("has answers", ("has the answers of",), "Its first rounds are another run's."),
    ("looks like", ("looks like",), "It says the same of itself as a run of this folder, which never published it."),
    ("continues", ("continues",), "Its models go on from those of another training."),
    ("child", ("child of",), "Its spec was made from another one's by changing it."),
    ("training run", ("games of iteration", "test of"), "It is one part of a training run."),
    ("same rollouts", ("the same rollouts as",), "A copy: both are one sample."),
    ("another play", ("another play of",), "A repeat of the same system, and no system of its own."),
    ("as published", ("not recomputed", "labels withheld"), "Its numbers could not be made again from its records."),
    ("recomputed", ("recomputed with",), "Another version made its numbers, and this one finds others."),
    ("trained on", ("trained on",), "Its models learnt from datapoints that it is tested with."),
    ("yanked", ("yanked",), "Whoever published it took it back, with a reason."),
    ("not pinned", ("not pinned",), "Its files are in no public commit."),
    ("weights", ("weights not known",), "Nothing but a name says which model it is."),
    ("claimed", ("claimed by",), "Others say that they made its model, and nothing confirms it."),
    ("lineage", _OF_LINEAGE, "What is known, or not, of who made its models."),
)  # fmt: skip
"""Each kind, how its words begin, and what it means."""

MEANINGS = {kind: meaning for kind, _, meaning in _KINDS} | {OTHER: "As it says."}


def mark_of(text: str) -> Mark:
    """What is said of a row, with its kind."""
    return Mark(next((kind for kind, starts, _ in _KINDS if text.startswith(starts)), OTHER), text)


def kinds_of(marks: Iterable[Mark]) -> list[str]:
    """The kinds of marks that there are, in the order in which they are told."""
    found = {mark.kind for mark in marks}
    return [kind for kind in MEANINGS if kind in found]
