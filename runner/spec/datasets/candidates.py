"""Read the candidate answers of a row, and which of them are right, from a list column or from several columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any

import orjson

from runner.base.errors import SpecError
from runner.base.problems import PlaceOf, Problem
from runner.base.text import comma_join, did_you_mean, list_some
from runner.game.protocols.ballot import ANSWERS, MAX_ANSWERS, CandidateAnswers
from runner.spec.datasets.labels import SKIP
from runner.spec.datasets.settings import DatasetSettings

_KEY, _LABEL_KEY = "dataset.answers", "dataset.right_answers"
_MAX_LISTED = 5

Row = dict[str, Any]


class _Invalid(Exception):
    """Raised if the answers or the label of a row cannot be used; the message is the reason."""


@dataclass
class _Refused:
    """The rows that cannot be used, by reason."""

    answers: dict[str, list[str]] = field(default_factory=dict)
    labels: dict[str, list[str]] = field(default_factory=dict)

    def problems(self, place_of: PlaceOf) -> Iterator[Problem]:
        for key, reasons in ((_KEY, self.answers), (_LABEL_KEY, self.labels)):
            for reason, rows in list(reasons.items())[:_MAX_LISTED]:
                yield Problem(place_of(key), key, f"{reason}: {list_some(rows)}")


def list_answers(
    rows: Sequence[Row],
    columns: Sequence[str],
    settings: DatasetSettings,
    place_of: PlaceOf,
    describe: Callable[[Row], str],
) -> tuple[list[Row], tuple[str, ...]]:
    """Return the rows with a list of texts as `answers` and the right texts as `label`, and the new columns.

    The columns with the answers are removed from the rows, because templates must not show which column an answer is
    from. If the label column is empty in every row, the right answers are hidden, and all labels become None.

    Raises:
        SpecError: columns are missing, or rows have unusable answers or labels; lists all problems.
    """
    _check_settings(settings, place_of)
    sources = list(_source_columns(columns, settings, place_of))
    other_columns = [name for name in columns if name not in sources]
    if ANSWERS in other_columns:
        message = (
            f"the file has another column {ANSWERS!r}; rename it with dataset.columns, such as old_answers: answers"
        )
        raise SpecError([Problem(place_of(_KEY), _KEY, message)])
    skipped = {text.strip().casefold() for text, label in settings.labels.items() if label == SKIP}
    used = [row for row in rows if _text(row["label"]).casefold() not in skipped] if skipped else list(rows)
    is_hidden = all(_is_blank(row["label"]) for row in used)
    refused, new_rows = _Refused(), []
    for row in used:
        try:
            texts = _read_texts(row, sources)
        except _Invalid as error:
            refused.answers.setdefault(str(error), []).append(describe(row))
            continue
        try:
            right = None if is_hidden else _read_right(row["label"], texts, settings.right_answers)
        except _Invalid as error:
            refused.labels.setdefault(str(error), []).append(describe(row))
            continue
        values = {name: value for name, value in row.items() if name not in sources}
        right_texts = None if right is None else tuple(sorted(texts[i] for i in right))
        new_rows.append({**values, "label": right_texts, ANSWERS: list(texts)})
    problems = list(refused.problems(place_of))
    if not used:
        problems.append(Problem(place_of("dataset.labels"), "dataset.labels", "skips all rows; remove a word"))
    if problems:
        raise SpecError(problems)
    return new_rows, (*(name for name in other_columns if name != "label"), "label", ANSWERS)


def candidate_answers(row: Mapping[str, Any]) -> CandidateAnswers:
    """Return the candidate answers of a row that `list_answers` returned."""
    texts, right = tuple(row[ANSWERS]), row["label"]
    return CandidateAnswers(texts, None if right is None else tuple(i for i, text in enumerate(texts) if text in right))


def _check_settings(settings: DatasetSettings, place_of: PlaceOf) -> None:
    problems = []
    if settings.explode is not None:
        problems.append(("dataset.explode", "makes a datapoint of each element, but answers belong to one datapoint"))
    if settings.balance != "none":
        problems.append(("dataset.balance", "balances labels 0 and 1, which listed answers do not have"))
    words = [word for word, label in settings.labels.items() if label != SKIP]
    if words:
        problems.append(("dataset.labels", f"with listed answers, only `skip` is possible, not {comma_join(words)}"))
    if problems:
        raise SpecError(
            [Problem(place_of(key), key, f"{text}; remove it, or dataset.answers") for key, text in problems]
        )


def _source_columns(columns: Sequence[str], settings: DatasetSettings, place_of: PlaceOf) -> Iterator[str]:
    """Yield the columns with answers. The spec may name a renamed column by its old name too, such as the label's."""
    new_names = {old: new for new, old in settings.columns.items()}
    problems = []
    for name in (settings.answers,) if isinstance(settings.answers, str) else settings.answers or ():
        new_name = name if name in columns else new_names.get(name, name)
        if new_name in columns and new_name != "id":
            yield new_name
        else:
            available = [column for column in columns if column != "id"]
            hint = did_you_mean(name, available) or f"; choose from {comma_join(available)}"
            problems.append(Problem(place_of(_KEY), _KEY, f"the file has no column {name!r}{hint}"))
    if problems:
        raise SpecError(problems)


def _read_texts(row: Mapping[str, object], sources: Sequence[str]) -> tuple[str, ...]:
    if len(sources) == 1:
        values = row[sources[0]]
        if isinstance(values, str):
            with suppress(orjson.JSONDecodeError):
                values = orjson.loads(values)
        if not isinstance(values, (list, tuple)):
            raise _Invalid(f"column {sources[0]!r} must be a list of answers, or a text with a JSON list")
    else:
        values = [row[name] for name in sources if not _is_blank(row[name])]
    if any(not isinstance(value, (str, int, float)) or isinstance(value, bool) or _is_blank(value) for value in values):
        raise _Invalid("each answer must be a text or a number, and not empty")
    texts = tuple(_text(value) for value in values)
    if not 2 <= len(texts) <= MAX_ANSWERS:
        raise _Invalid(f"a datapoint needs from 2 to {MAX_ANSWERS} answers, not {len(texts)}")
    repeated = [text for text in texts if texts.count(text) > 1]
    if repeated:
        raise _Invalid(f"two answers are the same text {repeated[0]!r}")
    return texts


def _read_right(label: Any, texts: tuple[str, ...], form: str) -> tuple[int, ...]:
    """Return the indices of the right answers that a label names: one answer, or a list of answers."""
    if isinstance(label, str) and label.strip().startswith("[") and label.strip() not in texts:
        with suppress(orjson.JSONDecodeError):
            label = orjson.loads(label)
    names = label if isinstance(label, (list, tuple)) else [label]
    if not names or any(_is_blank(name) for name in names):
        raise _Invalid("rows without a right answer; add a label, or skip these rows with dataset.labels: {'': skip}")
    right = sorted({_index_of(name, texts, form) for name in names})
    if len(right) == len(texts):
        raise _Invalid("all answers are right, so there is nothing to decide")
    return tuple(right)


def _index_of(name: Any, texts: tuple[str, ...], form: str) -> int:
    """Return the index of the answer that a label names in this form."""
    text = _text(name)
    number = int(text) if text.isascii() and text.isdecimal() else None
    letter = ascii_uppercase.find(text.upper()) if len(text) == 1 and text.isascii() else -1
    readings = {
        "text": texts.index(text) if text in texts else None,
        "letter": letter if 0 <= letter < len(texts) else None,
        "number": number - 1 if number is not None and 1 <= number <= len(texts) else None,
        "index": number if number is not None and number < len(texts) else None,
    }
    if form != "auto":
        index = readings[form]
        if index is None:
            raise _Invalid(f"label {text[:40]!r} is not the {form} of an answer")
        return index
    matches = {reading: index for reading, index in readings.items() if index is not None and reading != "index"}
    if len(set(matches.values())) > 1:
        kinds = " and the ".join(f"{reading} of answer {index + 1}" for reading, index in matches.items())
        raise _Invalid(f"label {text[:40]!r} is the {kinds}; set {_LABEL_KEY} to {' or '.join(matches)}")
    if not matches:
        hint = f"; if the file counts answers from 0, set {_LABEL_KEY}: index" if number == 0 else ""
        raise _Invalid(f"label {text[:40]!r} is not the text, letter or number (from 1) of an answer{hint}")
    return next(iter(matches.values()))


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value).strip()
