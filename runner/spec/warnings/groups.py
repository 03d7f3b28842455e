"""Warn about datapoints with the same question if `dataset.group_by` is not set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
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

QuestionHashes = Sequence[str]
"""A hash for each datapoint. Datapoints with equal hashes have the same question."""


def group_notes(spec: Spec) -> list[str]:
    """Return warnings about datapoints with the same question, and about datapoints that look identical to agents.

    A question is a column that templates use, with one of the known names or with a long text. The test split is
    checked if the dataset has no warning, because one `dataset.group_by` is for both.
    """
    notes = _dataset_notes(spec)
    if notes or spec.test is None:
        return notes
    return [f"in the test split, {note}" for note in _dataset_notes(replace(spec, dataset=spec.test))]


def _dataset_notes(spec: Spec) -> list[str]:
    dataset = spec.dataset
    used = sorted({name for names in spec.prompts.variables.values() for name in names} & set(dataset.columns))
    if dataset.group_by is not None or not used:
        return []
    points = dataset.datapoints
    content_hashes = [tagged_hash("question", [point.columns[name] for name in used]) for point in points]
    identical = _points_with_shared_hash(points, content_hashes)
    notes = []
    if identical:
        labels: dict[str, set[int | None]] = {}
        for point, content_hash in identical:
            labels.setdefault(content_hash, set()).add(point.label)
        contradictory = sum(len(labels[content_hash]) > 1 for _, content_hash in identical)
        label_note = f" ({contradictory} of them with both labels)" if contradictory else ""
        description = f"are the same as another in all that templates show, {comma_join(used)}{label_note}"
        notes.append(_sharing_note(spec, description, "are", content_hashes, used[0]))
    for name in sorted(used, key=_question_rank):
        hashes = [_question_hash(point, name) for point in points]
        if len(_points_with_shared_hash(points, hashes)) > len(identical):
            return [*notes, _sharing_note(spec, f"share their {name!r} with another", "do", hashes, name)]
    return notes


def _sharing_note(spec: Spec, description: str, verb: str, hashes: QuestionHashes, question: str) -> str:
    """Return a warning about datapoints with equal hashes. `verb` repeats the verb of their description."""
    points = spec.dataset.datapoints
    sharing = _points_with_shared_hash(points, hashes)
    first, shared_hash = sharing[0]
    second = next(point for point, other_hash in sharing[1:] if other_hash == shared_hash)
    examples = "" if spec.fetched else f", as {first.id} and {second.id} {verb}"
    column = _find_group_column(spec.dataset, hashes, question) or "COLUMN, one that is the same for these alone"
    return (
        f"{len(sharing)} of {len(points)} datapoints {description}{examples}: "
        "their errors are not independent, so intervals are too narrow or too wide; "
        f"set dataset.group_by: {column} (or, if they are independent, dataset.group_by: id)"
    )


def _points_with_shared_hash(points: Sequence[Datapoint], hashes: QuestionHashes) -> list[tuple[Datapoint, str]]:
    """Return the datapoints whose hash another datapoint also has, each with its hash."""
    counts = Counter(hashes)
    return [(point, hash_) for point, hash_ in zip(points, hashes, strict=True) if counts[hash_] > 1]


def _question_hash(point: Datapoint, name: str) -> str:
    """Return a hash of a column's value if it is a question, otherwise a hash of the datapoint's unique id."""
    value = point.columns[name]
    return tagged_hash("question", value) if is_question(name, value) else tagged_hash("alone", point.id)


def is_question(name: str, value: Any) -> bool:
    """Return whether a column's value is a text that agents should probably see."""
    is_text = isinstance(value, str) and value.strip() != ""
    return is_text and (name.casefold() in _QUESTION_COLUMNS or len(value) >= _MIN_QUESTION_LENGTH)


def _question_rank(name: str) -> tuple[int, str]:
    """Return the sort key of a column: columns with known names come first."""
    folded = name.casefold()
    return (_QUESTION_COLUMNS.index(folded) if folded in _QUESTION_COLUMNS else len(_QUESTION_COLUMNS)), name


def _find_group_column(dataset: Dataset, hashes: QuestionHashes, question: str) -> str | None:
    """Return a column that has equal values exactly where the hashes are equal; None if there is none.

    The column `question` comes last, because the values of other columns are shorter and easier to read in tables.
    """
    names = [*(name for name in dataset.columns if name != question), question]
    return next((name for name in names if _identifies_groups(dataset.datapoints, hashes, name)), None)


def _identifies_groups(points: Sequence[Datapoint], hashes: QuestionHashes, name: str) -> bool:
    values = [_group_name(point.columns, name) for point in points]
    return None not in values and len(set(zip(values, hashes, strict=True))) == len(set(values)) == len(set(hashes))


def _group_name(columns: Mapping[str, object], name: str) -> str | None:
    """Return a datapoint's group according to a column; None if the value cannot be the name of a group."""
    value = columns[name]
    return None if value is None or isinstance(value, (list, dict)) or not str(value).strip() else str(value)
