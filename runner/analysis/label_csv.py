"""Labels as a validation set of Inspect Scout: CSV with the columns `id` and `target`.

Scout reads `true` and `false` as booleans, so these stand for the answers `yes` and `no`. Further columns, which Scout
ignores, preserve the labels completely. The format is documented at
https://meridianlabs-ai.github.io/inspect_scout/validation.html.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace

from runner.analysis.analyzer import YES_NO, Analyzer
from runner.analysis.label_queue import LabelQuestion
from runner.analysis.label_sample import SampledUnit
from runner.analysis.labels import MAX_PROBLEMS, Label
from runner.base.batches import group_pairs
from runner.base.errors import UsageError, errors_as
from runner.base.question_queue import check_name
from runner.base.text import comma_join, csv_text, list_some
from runner.results.manifest import now

_SCOUT = {"unit_id": "id", "answer": "target"}
_COLUMNS = {field.name: _SCOUT.get(field.name, field.name) for field in fields(Label)}
"""The columns by the name of the label's field."""
_BOOLEANS = dict(zip(YES_NO, ("true", "false"), strict=True))
_LARGEST_POSITION = 1 << 53


def labels_to_csv(labels: Iterable[Label], analyzer: Analyzer, texts: Mapping[str, str] | None = None) -> str:
    """Return labels as CSV, with a row for each label; `texts` are those of units, for the column `text`."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow([*_COLUMNS.values(), *([] if texts is None else ["text"])])
    targets = _BOOLEANS if set(analyzer.file.answers) == set(YES_NO) else {}
    for label in labels:
        cells = asdict(replace(label, answer=targets.get(label.answer or "", label.answer)))
        values = [*cells.values(), *([] if texts is None else [texts[label.unit_id]])]
        writer.writerow("" if value is None else csv_text(str(value)) for value in values)
    return lines.getvalue()


def rows_of_sample(
    sample: Iterable[SampledUnit],
    labels: Iterable[Label],
    analyzer: Analyzer,
    readers: Collection[str],
    stratified_by: str | None,
) -> list[Label]:
    """Return the rows of a sample to fill in: the labels of its units, and a row without an answer for each other one.

    If there are `readers`, each of them has a row for each unit. Otherwise, rows without an answer have no reader.
    """
    by_unit = group_pairs((label.unit_id, label) for label in labels)
    rows = []
    for unit in sample:
        existing = by_unit.get(unit.unit_id, [])
        missing = [name for name in readers if name not in {label.reader for label in existing}]
        empty = missing if readers or existing else [""]
        rows += existing + [
            Label(
                unit.unit_id, None, name, "", analyzer.name, analyzer.sha256, analyzer.question_sha256, None,
                unit.stratum, unit.position, stratified_by, unit.probability,
            )
            for name in empty
        ]  # fmt: skip
    return rows


def unit_text(question: LabelQuestion) -> str:
    """Return a unit as a single text, with the question about it at the end."""
    parts = []
    for message in question.messages:
        names = [str(message[key]) for key in ("name", "role") if message.get(key)]
        parts.append(f"{', '.join(names)}:\n{message['content']}")
    return "\n\n".join([*parts, question.text])


def labels_from_csv(text: str, analyzer: Analyzer, unit_ids: Collection[str], reader: str | None) -> list[Label]:
    """Return the labels in CSV text; `reader` is the reader of rows without one.

    A row with an empty target is a label without an answer, or is left out if it has no reader.

    Raises:
        UsageError: columns are missing, or rows have an unknown unit or answer, or another question, or a reader has
            different targets for a unit; lists them.
    """
    labels: dict[tuple[str, str], tuple[int, Label]] = {}
    problems: dict[str, list[int]] = {}
    for line, row in _numbered_rows(text):
        cells = {name: value.strip() for name, value in row.items() if name is not None and value is not None}
        try:
            label = _parse_row(cells, analyzer, unit_ids, reader)
            if label is None:
                continue
            first_line, first = labels.setdefault((label.reader, label.unit_id), (line, label))
            if first.answer != label.answer:
                raise UsageError(f"{label.reader} has another target for {label.unit_id} in line {first_line}")
        except (UsageError, ValueError) as error:
            problems.setdefault(str(error), []).append(line)
    if problems:
        raise UsageError(_describe_problems(problems))
    return [label for _, label in labels.values()]


def _numbered_rows(text: str) -> Iterator[tuple[int, dict[str | None, str | None]]]:
    """Yield rows with the numbers of their last lines."""
    previous_limit = csv.field_size_limit(max(len(text), 1))  # texts of units may be longer than the default allows
    rows = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    try:
        if missing := [name for name in _SCOUT.values() if name not in (rows.fieldnames or ())]:
            raise UsageError(
                f"the CSV file has no column {comma_join(missing)}; a validation set starts with `id,target`"
            )
        for row in rows:
            yield rows.line_num, row
    except csv.Error as error:
        raise UsageError(f"nothing was imported: line {rows.line_num}: {error}") from error
    finally:
        csv.field_size_limit(previous_limit)


def _describe_problems(problems: Mapping[str, Sequence[int]]) -> str:
    listed = [
        f"\n  line{'s' if len(lines) > 1 else ''} {list_some(lines)}: {problem}" for problem, lines in problems.items()
    ]
    more = f"\n  and {len(listed) - MAX_PROBLEMS} more errors" if len(listed) > MAX_PROBLEMS else ""
    return "nothing was imported:" + "".join(listed[:MAX_PROBLEMS]) + more


def _parse_row(
    cells: Mapping[str, str], analyzer: Analyzer, unit_ids: Collection[str], default_reader: str | None
) -> Label | None:
    """Return the label in a row; None without target and reader."""
    if missing := [name for name in _SCOUT.values() if name not in cells]:
        raise UsageError(f"the row has no cell {comma_join(missing)}; it may lack a comma or a quotation mark")
    unit_id, question = _unescape(cells["id"], unit_ids), cells.get("question_sha256")
    if unit_id not in unit_ids:
        raise UsageError(f"the run has no unit {unit_id!r}, or the question does not apply to it")
    if question and question != analyzer.question_sha256:
        raise UsageError(f"the label belongs to another question, {question[:10]}")
    if cells.get("predicate", "") not in ("", "eq"):
        raise UsageError(f"the predicate {cells['predicate']!r} is not supported; only `eq` is")
    reader = _unescape(cells.get("reader", ""), ()) or default_reader
    if reader is None and not cells["target"]:
        return None
    if reader is None:
        raise UsageError("the row has no reader; add a column `reader`, or name the reader with --readers NAME")
    check_name(reader)
    drawn, probability = _parse_number(cells, "drawn"), _parse_number(cells, "probability")
    if probability is not None and not 0 < probability <= 1:
        raise UsageError(f"`probability` is {probability:g}, but must be more than 0 and at most 1")
    if drawn is not None and not (drawn.is_integer() and 0 <= drawn <= _LARGEST_POSITION):
        raise UsageError(f"`drawn` is {drawn:g}, but must be a whole number from 0")
    return Label(
        unit_id, _parse_answer(cells["target"], analyzer), reader, cells.get("time") or now(), analyzer.name,
        cells.get("analyzer_sha256") or analyzer.sha256, analyzer.question_sha256, _parse_number(cells, "seconds"),
        _unescape(cells.get("stratum", ""), ()) or None, None if drawn is None else int(drawn),
        cells.get("stratified_by") or None, probability,
    )  # fmt: skip


def _parse_number(cells: Mapping[str, str], name: str) -> float | None:
    text = cells.get(name)
    with errors_as(UsageError, f"`{name}` is not a number", ValueError):
        value = float(text) if text else None
    if value is not None and not math.isfinite(value):
        raise UsageError(f"`{name}` is {text}, which is not a finite number")
    return value


def _parse_answer(target: str, analyzer: Analyzer) -> str | None:
    """Return the answer that a target stands for: its text, or a boolean for yes or no; None if it is empty."""
    if not target:
        return None
    answers = analyzer.file.answers
    target = _unescape(target, answers)
    if set(answers) == set(YES_NO):
        target = {value: answer for answer, value in _BOOLEANS.items()}.get(target.lower(), target)
    if target not in answers:
        raise UsageError(f"the target {target!r} is not one of {comma_join(answers)}")
    return target


def _unescape(text: str, exact: Collection[str]) -> str:
    """Remove the apostrophe that `csv_text` adds, unless `exact` has the text with it."""
    return text[1:] if text not in exact and text[:1] == "'" and csv_text(text[1:]) == text else text
