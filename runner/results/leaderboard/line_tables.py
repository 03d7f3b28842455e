"""The SQL tables of the labels and validations of analyses, which are JSON lines in the folders of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from runner.base.errors import RunError
from runner.base.storage.line_file import LineFile
from runner.base.storage.strict_json import parse_strict_json
from runner.results.folder import RunFolder
from runner.results.table_columns import ANALYSES, LABEL_COLUMNS, VALIDATION_COLUMNS


class LineTable(NamedTuple):
    """A table whose rows are the last lines for each value of its key."""

    files: str
    """The pattern of its files in the folder of a run."""
    columns: Mapping[str, str]
    key: tuple[str, ...]


LINE_TABLES = {
    "labels": LineTable("labels/*.jsonl", LABEL_COLUMNS, ("reader", "unit_id")),
    "validations": LineTable(f"{ANALYSES}/validations.jsonl", VALIDATION_COLUMNS, ("instrument", "question_sha256")),
}


def line_rows(folder: RunFolder, table: LineTable) -> list[tuple[Any, ...]]:
    """Return the rows of a run, without labels that their readers took back.

    Raises:
        RunError: a file cannot be read, or a line is not a JSON object.
    """
    rows: list[tuple[Any, ...]] = []
    for path in sorted(folder.path.glob(table.files)):
        current: dict[str, tuple[Any, ...]] = {}
        for number, line in enumerate(LineFile(path, path, path.name).complete_lines().splitlines(), 1):
            try:
                record = {"run_id": folder.run_id, **parse_strict_json(line)}
            except (ValueError, TypeError) as error:
                raise RunError(f"{path}:{number} is not a JSON object; correct or remove the line") from error
            key = str([record.get(name) for name in table.key])
            current.pop(key, None)
            if record.get("answer", "") is not None:
                current[key] = tuple(record.get(name) for name in table.columns)
        rows += current.values()
    return rows
