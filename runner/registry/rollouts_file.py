"""Write and read `rollouts.jsonl`: the table of a run's rollouts as JSON lines, which any language can read.

Releases of runs have this file, and boards read it. Its bytes depend only on the table: it has the table's rows and
columns in the same order, and all digits of numbers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import orjson

from runner.base.errors import RunError, os_errors_as
from runner.base.storage.duckdb_connections import process_spill
from runner.base.storage.parquet import read_tables
from runner.base.storage.safe_files import create, open_to_read
from runner.base.storage.strict_json import parse_strict_json
from runner.results.folder import RunFolder
from runner.results.table_columns import COLUMNS

TABLE = "rollouts"

ROLLOUTS_FILE = "rollouts.jsonl"
"""The rollouts of a published run, one JSON object per line."""

MAX_ROW = 16 << 20
"""Maximum size of a row in bytes. Rows are small, because the messages of a rollout are not in this table."""


def write_rollouts(folder: RunFolder) -> Path:
    """Write a run's rollouts to a temporary file, which exists until the process ends, and return its path.

    The table is read and written row by row, because it may be larger than memory.

    Raises:
        RunError: the run has no table of rollouts, or a file cannot be read or written.
    """
    tables = {TABLE: folder.intact_table(TABLE)}
    if not tables[TABLE].is_file():
        raise RunError(f"{folder.path} has no {tables[TABLE].name}: run the same command again to create it")
    target = process_spill() / f"{TABLE}-{secrets.token_hex(8)}.jsonl"
    columns = list(read_tables(f"SELECT column_name, column_type FROM (DESCRIBE {TABLE})", tables, {}))
    names = [str(name) for name, _ in columns]
    # Tables store JSON as strings, and COLUMNS says which columns are JSON. In tables of earlier versions, such columns
    # have the type JSON.
    nested = {str(name) for name, kind in columns if kind == "JSON" or COLUMNS[TABLE].get(str(name)) == "JSON"}
    try:
        with create(target) as file:
            for values in read_tables(f"SELECT * FROM {TABLE}", tables, {}):
                row = {
                    name: orjson.loads(value) if name in nested and value is not None else value
                    for name, value in zip(names, values, strict=True)
                }
                file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror}") from error
    except (orjson.JSONDecodeError, TypeError) as error:
        raise RunError(f"{tables[TABLE]} is damaged: {error}") from error
    return target


def read_published_rows(path: Path) -> Iterator[dict[str, object]]:
    """Yield the rows of a published `rollouts.jsonl`. Their columns are not checked.

    Raises:
        RunError: the file cannot be read, or a line is not a JSON object.
    """
    with os_errors_as(RunError, f"cannot read {path}"), open_to_read(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_ROW + 1), b""), 1):
            yield _parse_row(line, f"{path}:{number} is damaged")


def _parse_row(line: bytes, problem: str) -> dict[str, object]:
    try:
        row = parse_strict_json(line)
    except orjson.JSONDecodeError as error:
        raise RunError(f"{problem}: not JSON, or longer than {MAX_ROW >> 20} MiB") from error
    except ValueError as error:
        raise RunError(f"{problem}: {error}") from error
    if not isinstance(row, dict):
        raise RunError(f"{problem}: not an object")
    return row
