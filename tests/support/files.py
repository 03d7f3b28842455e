"""What stands in files that were written, read by other means than the program's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    with duckdb.connect(":memory:") as connection:
        found = connection.execute(f"SELECT * FROM read_parquet('{path}')")
        columns = [item[0] for item in found.description]
        return [dict(zip(columns, row, strict=True)) for row in found.fetchall()]


def bytes_of(folder: Path) -> dict[str, bytes | None]:
    """Every name in a folder, and what stands in each file."""
    found = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in found}
