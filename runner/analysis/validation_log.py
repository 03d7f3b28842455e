"""The validations of a run's instruments: JSON lines in the folder of the analysed run.

The file is `analyses/validations.jsonl`. The last line about an instrument and a question counts. An instrument with
too few labels for intervals has no line: it is not validated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import RunError
from runner.base.storage.line_file import LineFile, parse_record
from runner.results.folder import RunFolder
from runner.results.manifest import now
from runner.results.table_columns import ANALYSES

if TYPE_CHECKING:
    from runner.analysis.validation import Validation

VALIDATIONS = "validations.jsonl"


@dataclass(frozen=True)
class ValidationRecord:
    """The agreement of an instrument with people on one run."""

    instrument: str
    analyzer: str
    question_sha256: str
    run_id: str
    labeled_units: int
    readers: int
    raw: float | None
    """The share of equal answers."""
    kappa: float | None
    kappa_low: float | None
    """The lower end of the interval; None if kappa has none, as with equal answers only."""
    kappa_high: float | None
    alpha: float | None
    time: str


def validation_record(validation: Validation) -> ValidationRecord:
    """Return the record of a validation, with the current time."""
    table, kappa = validation.table, validation.kappa
    low, high = kappa.interval or (None, None)
    return ValidationRecord(
        table.instrument, table.analyzer, table.question_sha256, table.run_id, validation.labels.units,
        len(validation.labels.readers), validation.raw.value, kappa.value, low, high, validation.alpha.value, now(),
    )  # fmt: skip


def append_validations(run: Path, records: Iterable[ValidationRecord]) -> None:
    """Append records that differ from the last ones of their instruments by more than their time.

    Raises:
        RunError: the file cannot be read or written.
    """
    file = _line_file(run)
    with file.hold_lock():
        last = read_validations(run)
        new = [
            record for record in records
            if (old := last.get((record.instrument, record.question_sha256))) is None
            or replace(old, time=record.time) != record
        ]  # fmt: skip
        if new:
            file.append(map(asdict, new))


def read_validations(run: Path) -> dict[tuple[str, str], ValidationRecord]:
    """Return the last validation of each pair of an instrument and the hash of a question.

    Raises:
        RunError: the file cannot be read, or a complete line is not a validation.
    """
    records = {}
    for file in dict.fromkeys((run / ANALYSES / VALIDATIONS, _line_file(run).path)):  # published ones come first
        for number, line in enumerate(LineFile(file, file, file.name).complete_lines().splitlines(), 1):
            try:
                record = parse_record(ValidationRecord, line)
            except ValueError as error:
                raise RunError(f"{file}:{number}: not a validation: {error}; correct or remove the line") from error
            records[record.instrument, record.question_sha256] = record
    return records


def _line_file(run: Path) -> LineFile:
    folder = RunFolder(run).additions.path / ANALYSES
    return LineFile(folder / VALIDATIONS, folder / ".validations.lock", f"{VALIDATIONS} of run {run.name}")
