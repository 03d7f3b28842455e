"""The kinds of marks on a board's rows, and their meanings. A mark is a remark about a row, such as `yanked: REASON`.

The first words of a mark determine its kind. Pages explain the kinds of the marks that they show.
"""

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
    ("unfinished", ("unfinished",), "The run has not finished, so its numbers may change."),
    ("incomplete", ("incomplete",), "The run lost more games in transport than its spec allows."),
    ("replay", ("replay of", "a replay of"), "The run uses the answers of another run and is not a new sample."),
    ("judges debates", ("judges the debates of",), "The run judges the debates of another run."),
    ("tree", ("tree:",), "The run samples several answers per step, so its games are not independent."),
    ("unknown task", ("unknown task",), "The run's saved datapoints cannot be read."),
    ("no verdict", ("no rollout has a verdict",), "No game has a verdict to count."),
    ("another sample", ("other datapoints",), "The run has other datapoints than this list."),
    ("other columns", ("its templates use other columns",), "The verifier's prompts use other columns of the dataset."),
    ("stopped", ("stopped once decided",), "The run stopped once its result was decided, as its interval allows."),
    ("again", ("plays ",), "The run plays a published run again."),
    ("has answers", ("has the answers of",), "The run's first rounds come from another run."),
    ("looks like", ("looks like",), "The run has the same metadata as an unpublished run in this folder."),
    ("continues", ("continues",), "The run's models continue from the models of another training run."),
    ("child", ("child of",), "The run's spec is a modified copy of another spec."),
    ("training run", ("games of iteration", "test of"), "The run is part of a training run."),
    ("same rollouts", ("the same rollouts as",), "The run is a copy of another run: both are the same sample."),
    ("another play", ("another play of",), "The run repeats the same system."),
    ("as published", ("not recomputed", "labels withheld"), "The numbers could not be recomputed from the records."),
    ("recomputed", ("recomputed with",), "Another version computed the numbers; this version gets different ones."),
    ("trained on", ("trained on",), "The run's models were trained on datapoints of its own test."),
    ("yanked", ("yanked",), "The publisher withdrew the run and gave a reason."),
    ("not pinned", ("not pinned",), "The run's files are not in a public commit."),
    ("weights", ("weights not known",), "The run's model is identified only by a name."),
    ("claimed", ("claimed by",), "Other publishers claim to have produced the run's model, without proof."),
    ("lineage", _LINEAGE_STARTS, "Facts about who produced the run's models."),
)  # fmt: skip
"""The kinds of marks. Each has the possible first words of its marks, and its meaning."""

MEANINGS = {kind: meaning for kind, _, meaning in _KINDS} | {FALLBACK_KIND: "See the text of the mark."}


def mark_of(text: str) -> Mark:
    """Return a mark with its kind."""
    return Mark(next((kind for kind, starts, _ in _KINDS if text.startswith(starts)), FALLBACK_KIND), text)


def kinds_of(marks: Iterable[Mark]) -> list[str]:
    """Return the kinds of these marks, in the order of their explanations."""
    present = {mark.kind for mark in marks}
    return [kind for kind in MEANINGS if kind in present]
