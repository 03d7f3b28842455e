"""The kinds of marks on a board's rows and their meanings, recognized by how the marks begin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FALLBACK_KIND = "other"


@dataclass(frozen=True)
class Mark:
    """A remark about a row."""

    kind: str
    text: str


_LINEAGE_STARTS = ("ancestor ", "its lineage", "made by", "several runs say", "it was ")

_KINDS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("unfinished", ("unfinished",), "It did not finish, so its numbers may change."),
    ("incomplete", ("incomplete",), "It lost more games in transport than its spec allows."),
    ("replay", ("replay of", "a replay of"), "It uses the answers of another run and is not a new sample."),
    ("judges debates", ("judges the debates of",), "It judges the debates of another run."),
    ("tree", ("tree:",), "It samples several answers per step, so its games are not independent."),
    ("unknown task", ("unknown task",), "Its saved datapoints cannot be read."),
    ("no verdict", ("no rollout has a verdict",), "No game has a verdict to count."),
    ("another sample", ("another selection", "other datapoints"), "It has other datapoints than this list."),
    ("other columns", ("its templates use other columns",), "Its prompts use other columns of the dataset."),
    ("stopped", ("stopped once decided",), "It stopped when its result was decided; its interval allows for that."),
    ("again", ("plays ",), "It plays a published run again."),
    ("has answers", ("has the answers of",), "Its first rounds come from another run."),
    ("looks like", ("looks like",), "Its metadata equals that of an unpublished run in this folder."),
    ("continues", ("continues",), "Its models continue from those of another training."),
    ("child", ("child of",), "Its spec is a modified copy of another spec."),
    ("training run", ("games of iteration", "test of"), "It is part of a training run."),
    ("same rollouts", ("the same rollouts as",), "A copy of another run: both are the same sample."),
    ("another play", ("another play of",), "A repeat of the same system."),
    ("as published", ("not recomputed", "labels withheld"), "Its numbers could not be recomputed from its records."),
    ("recomputed", ("recomputed with",), "Another version computed its numbers, and this version gets different ones."),
    ("trained on", ("trained on",), "Its models were trained on datapoints that it is tested on."),
    ("yanked", ("yanked",), "Its publisher withdrew it and gave a reason."),
    ("not pinned", ("not pinned",), "Its files are not in a public commit."),
    ("weights", ("weights not known",), "Its model is identified only by a name."),
    ("claimed", ("claimed by",), "Other publishers claim to have produced its model, without proof."),
    ("lineage", _LINEAGE_STARTS, "Facts about who produced its models."),
)  # fmt: skip
"""The kinds of marks, each with the beginnings of its marks and its meaning."""

MEANINGS = {kind: meaning for kind, _, meaning in _KINDS} | {FALLBACK_KIND: "See the text of the mark."}


def mark_of(text: str) -> Mark:
    """Return a mark with its kind."""
    return Mark(next((kind for kind, starts, _ in _KINDS if text.startswith(starts)), FALLBACK_KIND), text)


def kinds_of(marks: Iterable[Mark]) -> list[str]:
    """Return the kinds of these marks, in the order of their explanations."""
    present = {mark.kind for mark in marks}
    return [kind for kind in MEANINGS if kind in present]
