"""Warn about datapoints that share their question if `dataset.group_by` is not set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.base.hashing import tagged_hash
from runner.base.text import comma_join
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.datasets.loader import Dataset
from runner.spec.loader import Spec

_MIN_QUESTION_LENGTH = 40
"""Minimum length of a text that counts as a question. Shorter texts may be a topic or a difficulty."""

_QUESTION_COLUMNS = (
    "question", "problem", "claim", "prompt", "statement", "query", "text", "sentence", "passage", "premise", "theorem",
    "puzzle", "instruction", "instructions", "problem_statement", "question_text",
)  # fmt: skip
"""Names of columns that contain questions of any length, in the order of preference."""

Keys = Sequence[str]
"""A hash for each datapoint. Datapoints with equal hashes share their question."""


def group_notes(spec: Spec) -> list[str]:
    """Return warnings about datapoints with the same question, and about datapoints that look identical to agents.

    A question is a column that templates use, with one of the known names or with a long text.
    """
    dataset = spec.dataset
    used = sorted({name for names in spec.prompts.variables.values() for name in names} & set(dataset.columns))
    if dataset.group_by is not None or not used:
        return []
    points = dataset.datapoints
    same = [tagged_hash("question", [point.columns[name] for name in used]) for point in points]
    notes = list(_identical_notes(spec, used, same))
    for name in sorted(used, key=_question_rank):
        keys = [_question_key(point, name) for point in points]
        sharing = _points_with_shared_key(points, keys)
        if len(sharing) > len(_points_with_shared_key(points, same)):
            column = _find_group_column(dataset, keys, name)
            return [*notes, _sharing_note(spec, f"share their {name!r} with another", keys, column)]
    return notes


def _identical_notes(spec: Spec, used: Sequence[str], same: Keys) -> Iterator[str]:
    """Yield a warning if agents cannot distinguish some datapoints."""
    points = spec.dataset.datapoints
    sharing = _points_with_shared_key(points, same)
    if not sharing:
        return
    labels: dict[str, set[int | None]] = {}
    for point, key in sharing:
        labels.setdefault(key, set()).add(point.label)
    contradictory = sum(len(labels[key]) > 1 for _, key in sharing)
    label_note = f" ({contradictory} of them with both labels)" if contradictory else ""
    description = f"are the same as another in all that templates show, {comma_join(used)}{label_note}"
    yield _sharing_note(spec, description, same, _find_group_column(spec.dataset, same, used[0]))


def _sharing_note(spec: Spec, description: str, keys: Keys, column: str | None) -> str:
    points = spec.dataset.datapoints
    sharing = _points_with_shared_key(points, keys)
    first, key = sharing[0]
    second = next(point for point, other_key in sharing[1:] if other_key == key)
    examples = "" if spec.fetched else f", as {first.id} and {second.id} do"
    examples = examples.replace(" do", " are") if description.startswith("are") else examples
    column = column or "COLUMN, one that is the same for these alone"
    return (
        f"{len(sharing)} of {len(points)} datapoints {description}{examples}: "
        "their errors are not independent, so intervals are too narrow or too wide; "
        f"set dataset.group_by: {column} (or, if they are independent, dataset.group_by: id)"
    )


def _points_with_shared_key(points: Sequence[Datapoint], keys: Keys) -> list[tuple[Datapoint, str]]:
    """Return the datapoints whose key another datapoint also has, each with its key."""
    counts = Counter(keys)
    return [(point, key) for point, key in zip(points, keys, strict=True) if counts[key] > 1]


def _question_key(point: Datapoint, name: str) -> str:
    """Return a hash of a column's value if it is a question, else a hash of the datapoint's unique id."""
    value = point.columns[name]
    return tagged_hash("question", value) if is_question(name, value) else tagged_hash("alone", point.id)


def is_question(name: str, value: Any) -> bool:
    """Return whether a column's value is a text that agents are probably meant to read."""
    is_text = isinstance(value, str) and value.strip() != ""
    return is_text and (name.casefold() in _QUESTION_COLUMNS or len(value) >= _MIN_QUESTION_LENGTH)


def _question_rank(name: str) -> tuple[int, str]:
    folded = name.casefold()
    return (_QUESTION_COLUMNS.index(folded) if folded in _QUESTION_COLUMNS else len(_QUESTION_COLUMNS)), name


def _find_group_column(dataset: Dataset, keys: Keys, question: str) -> str | None:
    """Return a column that identifies the groups of equal keys, or None. Another column than the question is preferred.

    Its values are usually shorter, so they are easier to read in tables.
    """
    names = [*(name for name in dataset.columns if name != question), question]
    return next((name for name in names if _identifies_groups(dataset.datapoints, keys, name)), None)


def _identifies_groups(points: Sequence[Datapoint], keys: Keys, name: str) -> bool:
    values = [_group_name(point.columns, name) for point in points]
    return None not in values and len(set(zip(values, keys, strict=True))) == len(set(values)) == len(set(keys))


def _group_name(columns: Mapping[str, Any], name: str) -> str | None:
    """Return the group's name in a column; None if the value cannot be a name."""
    value = columns[name]
    return None if value is None or isinstance(value, (list, dict)) or not str(value).strip() else str(value)
