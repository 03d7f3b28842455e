"""Check the size of a dataset while its file is read, because a small file can unpack to a large dataset."""

from __future__ import annotations

from dataclasses import dataclass

from runner.spec.datasets.settings import DatasetLimits

CELL_BYTES = 64
"""Bytes that Python needs for one value of one row, even if the value is empty."""


class TooLarge(Exception):
    """Raised if a dataset exceeds a limit; `key` is the spec key of the limit."""

    def __init__(self, size: str, name: str, limit: float) -> None:
        self.key = f"dataset.limits.{name}"
        super().__init__(f"{size}, more than {self.key} ({limit:,}); raise {self.key} to read the file")


@dataclass(frozen=True)
class Meter:
    """Compares the size of a dataset with the limits. Every method raises `TooLarge` if a limit is exceeded."""

    limits: DatasetLimits

    def check_bytes(self, size: int) -> None:
        if size > self.limits.bytes:
            raise TooLarge(f"the file has {size:,} bytes", "bytes", self.limits.bytes)

    def check_shape(self, rows: int, columns: int) -> None:
        """Check the numbers of rows and columns, and the memory that a table of this shape needs if it is empty."""
        if rows > self.limits.rows:
            raise TooLarge(f"the file has {rows:,} rows or more", "rows", self.limits.rows)
        if columns > self.limits.columns:
            raise TooLarge(f"the file has {columns:,} columns or more", "columns", self.limits.columns)
        if rows * columns * CELL_BYTES > self.limits.bytes:
            size = f"{rows:,} rows of {columns:,} columns take {rows * columns * CELL_BYTES:,} bytes even if empty"
            raise TooLarge(size, "bytes", self.limits.bytes)
