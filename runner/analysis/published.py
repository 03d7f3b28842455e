"""The results of analyses in releases: JSON lines instead of Parquet, so that checks and people can read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import RunError, errors_as, os_errors_as
from runner.base.storage.parquet import read_tables
from runner.base.storage.safe_files import open_to_read
from runner.base.storage.strict_json import parse_strict_json

SUFFIX = ".jsonl"
_TYPES: Mapping[str, tuple[type, ...]] = {
    "VARCHAR": (str,), "INTEGER": (int,), "DOUBLE": (int, float), "JSON": (list,)
}  # fmt: skip


def read_rows(path: Path, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table in either form; values of the type JSON are parsed.

    Raises:
        RunError: the file cannot be read, or a value has the wrong type.
    """
    if path.suffix != SUFFIX:
        nested = [name for name, kind in columns.items() if kind == "JSON"]
        names = ", ".join(f'"{name}"' for name in columns)
        for values in read_tables(f"SELECT {names} FROM analysis", {"analysis": path}, {}):
            row = dict(zip(columns, values, strict=True))
            yield {**row, **{name: orjson.loads(row[name]) for name in nested if row[name] is not None}}
        return
    with os_errors_as(RunError, f"cannot read {path}"), open_to_read(path) as file:
        for number, line in enumerate(file, 1):
            yield _parse_row(line, columns, f"{path}:{number} is damaged")


def _parse_row(line: bytes, columns: Mapping[str, str], problem: str) -> dict[str, object]:
    with errors_as(RunError, problem, ValueError):
        row = parse_strict_json(line)
    if not isinstance(row, dict):
        raise RunError(f"{problem}: not an object")
    for name, kind in columns.items():
        if row.get(name) is not None and not isinstance(row[name], _TYPES[kind]):
            raise RunError(f"{problem}: {name} has the wrong type")
    return {name: row.get(name) for name in columns}
