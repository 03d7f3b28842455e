"""Read files with libraries instead of the code under test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    with duckdb.connect(":memory:") as connection:
        result = connection.execute(f"SELECT * FROM read_parquet('{path}')")
        columns = [item[0] for item in result.description]
        return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]


def read_folder(folder: Path) -> dict[str, bytes | None]:
    """Return the content of each file in a folder by its relative path; None stands for a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
