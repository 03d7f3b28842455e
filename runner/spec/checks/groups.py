"""Warnings of datapoints that share their question where `dataset.group_by` is not set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from runner.datasets.datapoint import Datapoint
from runner.hashing import tagged_hash
from runner.spec.load import Spec

_LONG = 40
"""Texts of at least this many characters are questions; shorter ones may be a topic or a difficulty that many share."""

Keyed = Sequence[tuple[Datapoint, str]]
"""Datapoints, each with a hash of what it shares with others."""


def group_notes(spec: Spec) -> list[str]:
    """A warning where datapoints are the same but for one of the columns that templates use.

    What they have in common must be a question: a long text, or a column of that name.
    """
    dataset = spec.dataset
    if dataset.group_by is not None:
        return []
    used = {name for names in spec.prompts.variables.values() for name in names} & set(dataset.columns)
    for other in sorted(used):
        rest = sorted(used - {other})
        sharing = _sharing(dataset.datapoints, rest)
        if sharing:
            first, key = sharing[0]
            question = next(name for name in rest if _is_question(name, first.columns[name]))
            second = next(point for point, its in sharing[1:] if its == key)
            column = _column_of(sharing, [name for name in dataset.columns if name not in rest]) or question
            named = "" if spec.fetched else f", as {first.id} and {second.id} do"
            note = (
                f"{len(sharing)} of {len(dataset.datapoints)} datapoints share their {question!r} with another{named}: "
                "their errors are not independent, so intervals are too narrow or too wide; "
                f"set dataset.group_by: {column} (or, if they are independent, dataset.group_by: id)"
            )
            return [note]
    return []


def _sharing(points: Sequence[Datapoint], names: Sequence[str]) -> Keyed:
    """The datapoints that have the same question as another, in these columns."""
    keyed = [(point, _key(point.columns, names)) for point in points]
    times = Counter(key for _, key in keyed)
    return [(point, key) for point, key in keyed if key is not None and times[key] > 1]


def _key(columns: Mapping[str, Any], names: Sequence[str]) -> str | None:
    asks = any(_is_question(name, columns[name]) for name in names)
    return tagged_hash("question", [columns[name] for name in names]) if asks else None


def _is_question(name: str, value: Any) -> bool:
    return isinstance(value, str) and value != "" and (name == "question" or len(value) >= _LONG)


def _column_of(sharing: Keyed, names: Sequence[str]) -> str | None:
    """Another column that is the same where the question is the same, and only there: a shorter name of a group."""
    questions = len({key for _, key in sharing})
    for name in names:
        pairs = {(str(point.columns[name]), key) for point, key in sharing if point.columns[name] not in (None, "")}
        if len(pairs) == len({value for value, _ in pairs}) == questions:
            return name
    return None
