"""What a dataset may come to, counted while it is read: a small file can hold a large one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.spec.datasets.settings import DatasetLimits

CELL_BYTES = 64
"""What Python needs for one value of one row, whatever it holds."""


class TooLarge(Exception):
    """A dataset is larger than it may be; `key` is what raises the bound."""

    def __init__(self, found: str, name: str, limit: float) -> None:
        self.key = f"dataset.limits.{name}"
        super().__init__(f"{found}, more than {self.key} ({limit:,}); raise it to read the file all the same")


@dataclass(frozen=True)
class Meter:
    """Compares what is read with the limits.

    Every method raises `TooLarge`.
    """

    limits: DatasetLimits

    def check_file(self, path: Path) -> None:
        self.check_bytes(path.stat().st_size)

    def check_bytes(self, size: int) -> None:
        if size > self.limits.bytes:
            raise TooLarge(f"the file holds {size:,} bytes", "bytes", self.limits.bytes)

    def check_shape(self, rows: int, columns: int) -> None:
        """Check a table's size by its rows and columns, as if it were empty."""
        if rows > self.limits.rows:
            raise TooLarge(f"the file has {rows:,} rows or more", "rows", self.limits.rows)
        if columns > self.limits.columns:
            raise TooLarge(f"the file has {columns:,} columns or more", "columns", self.limits.columns)
        if rows * columns * CELL_BYTES > self.limits.bytes:
            found = f"{rows:,} rows of {columns:,} columns take {rows * columns * CELL_BYTES:,} bytes even if empty"
            raise TooLarge(found, "bytes", self.limits.bytes)
