"""Find the roles of a data file's columns, such as id and label, by their names and values, for `init --data`."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from runner.base.batches import group_pairs
from runner.base.storage.safe_files import open_to_read
from runner.base.text import in_one_line, list_some
from runner.spec.datasets.csv_errors import numbered_rows, read_with
from runner.spec.datasets.labels import LABEL_OF_DIGIT, LABEL_OF_WORD, SKIP
from runner.spec.datasets.loader import normalize_text
from runner.spec.datasets.reader import Table
from runner.spec.datasets.typed_rows import CSV, JSON

_NAMES: Final[Mapping[str, Collection[str]]] = {
    "id": ("id", "uid", "key", "number", "nr", "no"),
    "label": ("label", "verdict", "truth", "true", "correct", "gold", "target", "rating", "supported", "veracity"),
    "group": ("group", "topic", "subject", "theme", "category", "cluster"),
    "claim": ("claim", "statement", "assertion", "proposition", "sentence", "hypothesis", "headline"),
    "question": ("question", "problem", "prompt", "query", "task"),
    "solution": ("solution", "code", "program", "answer", "response", "completion"),
    "context": ("context", "passage", "evidence", "document", "article"),
}
"""Words that occur in the names of the columns for each role. Roles are assigned in this order."""
PROMPT_ROLES: Final = ("context", "question", "claim", "solution")
"""The roles of columns that agents see."""
_TRUE = "true yes t y 1 1.0 correct right supported supports valid real fact accept accepted"
_FALSE = "false no f n 0 0.0 incorrect wrong refuted refutes unsupported invalid fake myth reject rejected buggy"
_MEANINGS: Final = {**dict.fromkeys(_TRUE.split(), 1), **dict.fromkeys(_FALSE.split(), 0)}
"""The probable label of each word."""
_CODE = re.compile(
    r"^\s*(def \w+\(|class \w+|import \w+|from \w+ import|return\b|#include\b|function \w+|public )", re.MULTILINE
)
_MIN_CLAIM_LENGTH = 12
"""Minimum average length, in characters, of the texts in a column of claims whose name is unknown."""
_HAS_TEXT = r"regexp_matches({}, '[^[:space:]\pZ]')"
"""SQL that is true if a column has a character that is not blank. `trim` would not remove tabs."""


@dataclass
class ColumnRoles:
    """The columns of a data file, by role, and what a spec needs to use its rows."""

    columns: dict[str, str]
    """The column of each role, by role."""
    labels: dict[str, Any]
    """The meaning of each word in the label column that nip-run does not know: 0, 1, `skip`, or `CHANGE` if unclear."""
    is_code: bool
    """Whether the datapoints are programs for a problem."""
    notices: list[str] = field(default_factory=list)
    """Messages about rows that need attention, each with the spec key that handles them."""
    counts: dict[str, int] = field(default_factory=dict)
    """The number of rows that the spec uses, and the number of rows that it skips for each reason.

    Empty if the user must decide what a label means.
    """
    keys: dict[str, Any] = field(default_factory=dict)
    """The other spec keys that handle these rows."""


def find_roles(table: Table, path: Path) -> ColumnRoles | None:
    """Return the roles of a table's columns; None if no column has labels or no column has text to judge."""
    values = {name: [row[name] for row in table.rows] for name in table.columns}
    columns: dict[str, str] = {}
    for role in _NAMES:
        free = [name for name in table.columns if name not in columns.values()]
        best = max(free, key=lambda name: _score(role, name, values[name]), default=None)
        if best is not None and _score(role, best, values[best]) > 0:
            columns[role] = best
    if not {"claim", "solution"} & columns.keys():
        free = [name for name in table.columns if name not in columns.values() or columns.get("question") == name]
        longest = max(free, key=lambda name: _mean_length(values[name]), default=None)
        if longest is not None and _mean_length(values[longest]) >= _MIN_CLAIM_LENGTH:
            columns = {role: name for role, name in columns.items() if name != longest} | {"claim": longest}
    if "label" not in columns or not {"claim", "solution"} & columns.keys():
        return None
    if "question" in columns and "group" not in columns and _repeats(values[columns["question"]]):
        columns["group"] = columns["question"]
    solutions = values.get(columns.get("solution", ""), [])
    is_code = "question" in columns and sum(bool(_CODE.search(str(text))) for text in solutions) * 2 > len(solutions)
    if "solution" in columns and "question" not in columns and "claim" not in columns:
        columns["claim"] = columns.pop("solution")
    roles = ColumnRoles(columns, _label_meanings(values[columns["label"]], is_text=table.labels_are_text), is_code)
    _check_rows(roles, values, _RowNamer(path, len(table.rows)))
    return roles


def find_answer_roles(table: Table) -> ColumnRoles | None:
    """Return the roles of the columns of questions with listed answers; None if no column is a list of answers."""
    values = {name: [row[name] for row in table.rows] for name in table.columns}
    lists = [name for name in table.columns if all(_is_answer_list(value) for value in values[name])]
    words = {"answer", "answerkey", "correct_answer", "right_answer", "answer_index", "answer_idx", "answer_letter"}
    labels = [
        name
        for name in table.columns
        if name not in lists and (name.casefold() in words or _score("label", name, [True]) > 2)
    ]
    if not lists or not labels:
        return None
    columns, free = {"label": labels[0]}, [name for name in table.columns if name not in (lists[0], labels[0])]
    for role in ("id", "question"):
        best = max(free, key=lambda name: _score(role, name, values[name]), default=None)
        if best is not None and _score(role, best, values[best]) > 0:
            columns[role] = best
    longest = max(free, key=lambda name: _mean_length(values[name]), default=None)
    if "question" not in columns and longest is not None:
        columns["question"] = longest
    keys: dict[str, Any] = {"answers": lists[0], **({} if "id" in columns else {"ids": "rows"})}
    if all(
        isinstance(label, str) and label in answers for label, answers in _labels_with_lists(table, labels[0], lists[0])
    ):
        keys["right_answers"] = "text"
    elif 0 in values[labels[0]]:
        keys["right_answers"] = "index"
    return ColumnRoles(columns, {}, is_code=False, keys=keys) if "question" in columns else None


def _labels_with_lists(table: Table, label: str, answers: str) -> Iterator[tuple[Any, Sequence[Any]]]:
    for row in table.rows:
        yield row[label], row[answers] if isinstance(row[answers], list) else json.loads(row[answers])


def _is_answer_list(value: Any) -> bool:
    """Return whether a value is a list of at least two texts or numbers, or such a list as JSON in a text."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return False
    return isinstance(value, list) and len(value) > 1 and all(isinstance(item, str | int | float) for item in value)


def _score(role: str, name: str, values: Sequence[Any]) -> float:
    """Return how well a column fits a role; 0 if it does not. The last word of the column's name counts most."""
    words = re.findall(r"[^\W_]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).casefold())
    name_score = 2.0 if words and words[-1] in _NAMES[role] else 1.0 if {*words} & {*_NAMES[role]} else 0.0
    texts = [normalize_text(value) for value in values if not _is_empty(value)]
    if role == "label":
        share = sum(text in _MEANINGS for text in texts) / len(texts) if texts else 0.5
        return share + name_score if share > 0.5 or (name_score > 1 and len(set(texts)) < 6) else 0.0
    if role == "group":
        return name_score if _repeats(values) and len(texts) == len(values) else 0.0
    if role == "id":
        return name_score if name_score > 1 and len(set(texts)) * 2 > len(values) else 0.0
    return name_score if texts else 0.0


def _repeats(values: Sequence[Any]) -> bool:
    return 1 < len(set(map(normalize_text, values))) <= 0.8 * len(values)


def _mean_length(values: Sequence[Any]) -> float:
    return sum(len(value) for value in values if isinstance(value, str)) / len(values)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _label_meanings(values: Sequence[Any], *, is_text: bool) -> dict[str, object]:
    """Return the meaning of each label that nip-run cannot read: 0, 1, `skip`, or `CHANGE` for the user to decide."""
    if all(map(_is_empty, values)):
        return {}
    readable = LABEL_OF_WORD | (LABEL_OF_DIGIT if is_text else {})
    texts = dict.fromkeys(_label_text(value) for value in values if value not in (0, 1))
    is_clear = {0, 1} <= {_MEANINGS.get(_label_text(value)) for value in values}
    unclear = SKIP if is_clear else "CHANGE"
    return {text: _MEANINGS.get(text, unclear if text else SKIP) for text in texts if text not in readable}


def _label_text(value: Any) -> str:
    is_whole = isinstance(value, float) and value.is_integer()  # `parse_label` reads 2.0 as 2
    return "" if _is_empty(value) else normalize_text(int(value) if is_whole else value)


def _check_rows(roles: ColumnRoles, values: Mapping[str, Sequence[Any]], names: _RowNamer) -> None:
    """Add notices, counts and keys for rows without a label or text, with an unknown label, and for duplicates."""
    columns, labels = roles.columns, [_label_text(value) for value in values[roles.columns["label"]]]
    judged = [role for role in PROMPT_ROLES if role in columns and role != "context"]
    blank = {i for i in range(len(labels)) if any(_is_empty(values[columns[role]][i]) for role in judged)}
    for text in [text for text, meaning in roles.labels.items() if meaning == SKIP]:
        rows = [i for i, label in enumerate(labels) if label == text]
        problem = f"the label {text!r}" if text else "no label"
        skipped = f"skipped by dataset.labels: {{{text or repr('')}: skip}}"
        roles.notices.append(f"{names.describe(rows)}: {problem}; {skipped}")
        roles.counts[f"with {problem}"] = len({*rows} - blank)
    if blank:
        roles.keys["filter"] = " AND ".join(_HAS_TEXT.format(role) for role in judged)
        missing = f"no {' or no '.join(judged)}"
        roles.notices.append(f"{names.describe(sorted(blank))}: {missing}; skipped by dataset.filter")
        roles.counts[f"with {missing}"] = len(blank)
    contents: dict[tuple[str, ...], list[int]] = {}
    for i in range(len(labels)):
        if i not in blank and roles.labels.get(labels[i]) != SKIP:
            contents.setdefault(tuple(normalize_text(values[columns[role]][i]) for role in judged), []).append(i)
    repeated = [rows for rows in contents.values() if len(rows) > 1]
    if repeated:
        roles.keys["unique_by"] = judged
        _describe_duplicates(roles, values[columns[judged[-1]]], labels, repeated, names)
    is_clear = "CHANGE" not in roles.labels.values()  # otherwise the user decides which rows are used
    roles.counts = {"used": len(labels) - sum(roles.counts.values()), **roles.counts} if is_clear else {}
    ids = [normalize_text(value) for value in values[columns["id"]]] if "id" in columns else [""]
    counts = Counter(ids)
    bad_ids = [i for i, id_ in enumerate(ids) if not id_ or counts[id_] > 1]
    if bad_ids:
        column = columns.pop("id", None)
        roles.keys["ids"] = "rows"
        if column is not None:
            problem = f"column {column!r} is empty or not unique"
            roles.notices.append(f"{names.describe(bad_ids)}: {problem}; dataset.ids: rows")


def _describe_duplicates(
    roles: ColumnRoles, texts: Sequence[Any], labels: Sequence[str], repeated: Sequence[list[int]], names: _RowNamer
) -> None:
    """Add notices and counts for rows with the same content: those with one label, and those whose labels differ."""
    duplicates, conflicts = [], []
    for rows in repeated:
        by_label = group_pairs((_MEANINGS.get(labels[i], labels[i]), i) for i in rows)
        if len(by_label) > 1:
            conflicts.append((rows, by_label))
        else:
            duplicates.append(rows)
    content = " and ".join(roles.keys["unique_by"])
    if duplicates:
        lines = "; ".join(f"{names.describe(rows)}: the same {content}" for rows in duplicates[:5])
        more = f"; and {len(duplicates) - 5} more" if len(duplicates) > 5 else ""
        roles.notices.append(f"{lines}{more}; dataset.unique_by uses the first of them")
        roles.counts["repeated"] = sum(len(rows) - 1 for rows in duplicates)
    for rows, by_label in conflicts[:5]:
        counts = ", ".join(
            f"{len(label_rows)} with label {label!r} ({names.describe(label_rows, 5)})"
            for label, label_rows in sorted(by_label.items(), key=lambda item: len(item[1]), reverse=True)
        )
        quote = in_one_line(str(texts[rows[0]]).strip())
        roles.notices.append(
            f"the same {content} with different labels, '{quote[:60]}{'...' if len(quote) > 60 else ''}': {counts}; "
            "dataset.unique_by uses none of them: correct the labels, or remove the wrong rows"
        )
    if len(conflicts) > 5:
        more_rows = [i for rows, _ in conflicts[5:] for i in rows]
        roles.notices.append(f"{names.describe(more_rows)}: {len(conflicts) - 5} more conflicts of this kind")
    if conflicts:
        roles.counts["with conflicting labels"] = sum(len(rows) for rows, _ in conflicts)


class _RowNamer:
    """Names rows by their lines in a text file, or by their numbers if the lines are not known."""

    def __init__(self, path: Path, count: int) -> None:
        lines = list(_first_lines(path))
        self._lines = lines if len(lines) == count else None

    def describe(self, rows: Sequence[int], limit: int = 10) -> str:
        """Describe rows, whose numbers start from 0, such as `lines 7, 9`."""
        numbers = [row + 1 if self._lines is None else self._lines[row] for row in rows]
        noun = "row" if self._lines is None else "line"
        return f"{noun}{'' if len(numbers) == 1 else 's'} {list_some(numbers, limit)}"


def _first_lines(path: Path) -> Iterator[int]:
    """Yield the number of the first line of each row of a text file, except for empty rows and the header."""
    if path.suffix.lower() in CSV:
        lines = read_with(path, lambda file: [line for line, row in numbered_rows(csv.reader(file)) if row])
        yield from (lines or [])[1:]
    elif path.suffix.lower() in JSON:
        with open_to_read(path) as file:
            yield from (number for number, line in enumerate(file, 1) if line.strip())
