"""The results of analyses: a table in the folder of the analysed run for each analyzer, version of it and model.

The file is `analyses/NAME-INSTRUMENT.parquet`. An instrument is an analyzer with everything that its answers depend on:
its file, its function, the model with its parameters, and the parser. Another prompt, model or sampling parameter makes
another instrument.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from runner.analysis.analyzer import YES_NO
from runner.analysis.published import SUFFIX, read_rows
from runner.base.errors import RunError
from runner.base.storage.parquet import write_parquet
from runner.base.storage.safe_files import create
from runner.base.text import comma_join
from runner.results.folder import RunFolder
from runner.results.table_columns import ANALYSES, ANALYSIS_COLUMNS

Status = Literal["answered", "no_answer", "not_applicable", "failed"]
"""`no_answer`: the model gave none of the answers in any attempt. `failed`: the calls failed, so nothing is known."""


@dataclass(frozen=True)
class TextSpan:
    """A part of a message that an answer is about."""

    agent: str
    channel: str
    round: int
    start: int
    end: int
    is_exact: bool | None = None
    """Whether a source has the text, if it is a quotation."""
    source: str | None = None
    """The name of the column that has the text, or a description of the message."""
    source_start: int | None = None
    source_end: int | None = None


@dataclass(frozen=True)
class UnitResult:
    """The answer for one unit."""

    unit_id: str
    rollout_id: str
    datapoint_id: str
    group: str
    agent: str | None
    channel: str | None
    round: int | None
    status: Status
    answer: str | None
    value: float | None
    """The number that the answer stands for; None without an answer, and for labels."""
    reason: str | None
    """The model's or the function's reason; for other statuses, why there is no answer."""
    model: str
    spans: tuple[TextSpan, ...] = ()
    votes: tuple[str | None, ...] | None = None
    """The answer of each vote, None for a vote without an answer; None if the model was asked once."""


@dataclass(frozen=True)
class AnalysisTable:
    """All results of one instrument on one run, in the order of the units."""

    run_id: str
    analyzer: str
    analyzer_sha256: str
    question_sha256: str
    instrument: str
    """The first 10 digits of the instrument's hash."""
    analysis_run_id: str | None
    """The run that asked the model; None if a function answered for every unit."""
    results: tuple[UnitResult, ...]
    unit: str = "channel"
    """The kind of the units."""
    answers: tuple[str, ...] = YES_NO
    """All answers that the analyzer allows."""
    answer_values: tuple[float, ...] | None = (1.0, 0.0)
    """The number of each answer; None for labels."""

    @property
    def name(self) -> str:
        """The name of the table's file, and of the folder with the files of its run."""
        return f"{self.analyzer}-{self.instrument}"


_TABLE_FIELDS = tuple(field.name for field in fields(AnalysisTable) if field.name != "results")
_REQUIRED = (
    *(name for name in _TABLE_FIELDS if name not in ("analysis_run_id", "answer_values")),
    "unit_id", "rollout_id", "datapoint_id", "group", "status", "model",
)  # fmt: skip
_SPAN_TYPES = {
    "agent": str, "channel": str, "round": int, "start": int, "end": int, "is_exact": bool, "source": str,
    "source_start": int, "source_end": int,
}  # fmt: skip
_OPTIONAL = ("is_exact", "source", "source_start", "source_end")
_LONGEST_LINE = 64 << 20


def write_analysis(folder: RunFolder, table: AnalysisTable) -> Path:
    """Write a table of results next to the other analyses of a run, atomically, and return its path.

    Raises:
        RunError: the file cannot be written.
    """
    target = folder.additions.make(ANALYSES) / f"{table.name}.parquet"
    shared = {name: getattr(table, name) for name in _TABLE_FIELDS}
    try:
        with TemporaryDirectory(prefix=".table-", dir=target.parent) as temporary:
            lines = Path(temporary) / "results.jsonl"
            with create(lines) as file:
                file.writelines(_line(shared, result) for result in table.results)
            write_parquet(
                [lines], ANALYSIS_COLUMNS, target, longest=_LONGEST_LINE, temporary=Path(temporary) / "results.parquet"
            )
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror}") from error
    return target


def _line(shared: Mapping[str, object], result: UnitResult) -> bytes:
    row = {**shared, **{field.name: getattr(result, field.name) for field in fields(UnitResult)}}
    row["spans"] = [
        {name: value for name, value in asdict(span).items() if value is not None} for span in result.spans
    ] or None
    return json.dumps(row).encode() + b"\n"


def analysis_files(folder: RunFolder) -> list[Path]:
    """Return the files with results of analyses of a run, sorted by name; releases have JSON lines.

    The results of your own analysis of a fetched release replace those of the same instrument in the release.
    """
    files = {
        path.stem: path
        for run in dict.fromkeys((folder.path, folder.additions.path))
        for suffix in (SUFFIX, ".parquet")
        for path in sorted((run / ANALYSES).glob(f"*-*{suffix}"))
    }
    return [files[stem] for stem in sorted(files)]


def read_analyses(folder: RunFolder) -> list[AnalysisTable]:
    """Return the results of all analyses of a run, in the order of their file names.

    Raises:
        RunError: a file cannot be read.
    """
    return [read_analysis(path) for path in analysis_files(folder)]


def read_analysis(path: Path) -> AnalysisTable:
    """Return the results of one analysis.

    Raises:
        RunError: the file cannot be read, or is empty.
    """
    rows = list(read_rows(path, ANALYSIS_COLUMNS))
    if not rows:
        raise RunError(f"{path} has no results; remove it, and analyze the run again")
    for number, row in enumerate(rows, 1):
        if (problem := _find_problem(row)) is not None:
            raise RunError(f"{path} is damaged: row {number}: {problem}; remove it, and analyze the run again")
    shared = {name: rows[0][name] for name in _TABLE_FIELDS}
    try:
        shared |= _parse_answers(shared["answers"], shared["answer_values"])
        return AnalysisTable(**shared, results=tuple(map(_result, rows)))
    except (TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}; remove it, and analyze the run again") from error


def _find_problem(row: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a row; None if it can be read."""
    missing = [name for name in _REQUIRED if row[name] is None]
    if missing:
        return f"{comma_join(missing)} missing"
    return None if all(map(is_span, row["spans"] or ())) else "a span lacks a value, or has a wrong one"


def is_span(span: object) -> bool:
    """Return whether JSON has the fields of a span, with the right types."""
    return (
        isinstance(span, dict)
        and span.keys() <= _SPAN_TYPES.keys()
        and all(
            isinstance(span[name], kind) if span.get(name) is not None else name in _OPTIONAL
            for name, kind in _SPAN_TYPES.items()
        )
    )


def _parse_answers(answers: Sequence[Any], values: Sequence[Any] | None) -> dict[str, Any]:
    """Return the fields with all possible answers and their numbers. Raises TypeError or ValueError if it cannot."""
    numbers = None if values is None else tuple(map(float, values))
    if len(set(map(str, answers))) < 2 or (numbers and (len(numbers) != len(answers) or len(set(numbers)) < 2)):
        raise ValueError("`answers` and `answer_values` need an entry for each of two or more answers")
    return {"answers": tuple(map(str, answers)), "answer_values": numbers}


def _result(row: Mapping[str, Any]) -> UnitResult:
    values = {field.name: row[field.name] for field in fields(UnitResult)}
    values["spans"] = tuple(TextSpan(**span) for span in row["spans"] or ())
    values["votes"] = None if row["votes"] is None else tuple(row["votes"])
    return UnitResult(**values)
