"""Warnings of datapoints that share their question where `dataset.group_by` is not set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.base.hashing import tagged_hash
from runner.base.text import comma_join
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.datasets.loader import Dataset
from runner.spec.loader import Spec

_LONG = 40
"""Texts of at least this many characters are questions; shorter ones may be a topic or a difficulty that many share."""

_QUESTIONS = (
    "question", "problem", "claim", "prompt", "statement", "query", "text", "sentence", "passage", "premise", "theorem",
    "puzzle", "instruction", "instructions", "problem_statement", "question_text",
)  # fmt: skip
"""Names of columns that hold what is asked, however short it is; the likeliest first."""

Keys = Sequence[str]
"""For each datapoint, a hash of what it may share with others."""


def group_notes(spec: Spec) -> list[str]:
    """What to say where datapoints are shown the same question, whatever else differs, and where all is the same.

    A question is a column that templates use: one of that name, or a long text.
    """
    dataset = spec.dataset
    used = sorted({name for names in spec.prompts.variables.values() for name in names} & set(dataset.columns))
    if dataset.group_by is not None or not used:
        return []
    points = dataset.datapoints
    same = [tagged_hash("question", [point.columns[name] for name in used]) for point in points]
    notes = list(_same_notes(spec, used, same))
    for name in sorted(used, key=_likelihood):
        keys = [_key(point, name) for point in points]
        sharing = _sharing(points, keys)
        if len(sharing) > len(_sharing(points, same)):
            return [*notes, _note(spec, f"share their {name!r} with another", keys, _column_of(dataset, keys, name))]
    return notes


def _same_notes(spec: Spec, used: Sequence[str], same: Keys) -> Iterator[str]:
    """Of datapoints that no agent can tell apart."""
    points = spec.dataset.datapoints
    sharing = _sharing(points, same)
    if not sharing:
        return
    labels: dict[str, set[int | None]] = {}
    for point, key in sharing:
        labels.setdefault(key, set()).add(point.label)
    contrary = sum(len(labels[key]) > 1 for _, key in sharing)
    with_other = f" ({contrary} of them with both labels)" if contrary else ""
    what = f"are the same as another in all that templates show, {comma_join(used)}{with_other}"
    yield _note(spec, what, same, _column_of(spec.dataset, same, used[0]))


def _note(spec: Spec, what: str, keys: Keys, column: str | None) -> str:
    points = spec.dataset.datapoints
    sharing = _sharing(points, keys)
    first, key = sharing[0]
    second = next(point for point, its in sharing[1:] if its == key)
    named = "" if spec.fetched else f", as {first.id} and {second.id} do"
    named = named.replace(" do", " are") if what.startswith("are") else named
    column = column or "COLUMN, one that is the same for these alone"
    return (
        f"{len(sharing)} of {len(points)} datapoints {what}{named}: "
        "their errors are not independent, so intervals are too narrow or too wide; "
        f"set dataset.group_by: {column} (or, if they are independent, dataset.group_by: id)"
    )


def _sharing(points: Sequence[Datapoint], keys: Keys) -> list[tuple[Datapoint, str]]:
    """The datapoints that have the same key as another, each with it."""
    times = Counter(keys)
    return [(point, key) for point, key in zip(points, keys, strict=True) if times[key] > 1]


def _key(point: Datapoint, name: str) -> str:
    """A hash of a column's value where it is a question; else of the datapoint, which shares nothing."""
    value = point.columns[name]
    return tagged_hash("question", value) if is_question(name, value) else tagged_hash("alone", point.id)


def is_question(name: str, value: Any) -> bool:
    """Return whether a column's value is a text that agents are probably meant to read."""
    is_text = isinstance(value, str) and value.strip() != ""
    return is_text and (name.casefold() in _QUESTIONS or len(value) >= _LONG)


def _likelihood(name: str) -> tuple[int, str]:
    folded = name.casefold()
    return (_QUESTIONS.index(folded) if folded in _QUESTIONS else len(_QUESTIONS)), name


def _column_of(dataset: Dataset, keys: Keys, question: str) -> str | None:
    """A column that is the same where the keys are the same, and only there; another than the question if there is one.

    A shorter name of a group is easier to read in tables.
    """
    shorter = [name for name in dataset.columns if name != question]
    return next((name for name in (*shorter, question) if _tells(dataset.datapoints, keys, name)), None)


def _tells(points: Sequence[Datapoint], keys: Keys, name: str) -> bool:
    values = [_text(point.columns, name) for point in points]
    return None not in values and len(set(zip(values, keys, strict=True))) == len(set(values)) == len(set(keys))


def _text(columns: Mapping[str, Any], name: str) -> str | None:
    """How a group is named by a column's value; None: it names none."""
    value = columns[name]
    return None if value is None or isinstance(value, (list, dict)) or not str(value).strip() else str(value)
