"""Match the rows of two streams by key, for the comparison of tables in `rows`.

The memory for unmatched rows is limited, so the rows of both streams must be in similar orders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Key = tuple[Any, ...]

MAX_UNMATCHED = 32 << 20
"""Maximum size in characters of the unmatched rows in memory."""


@dataclass(frozen=True)
class Match:
    """The two rows with the same key, one of each stream; None for a stream that has no such row."""

    key: Key
    recorded: Row | None
    recomputed: Row | None
    position: int
    """The position of the recorded row, or of the recomputed row if there is no recorded one, counted from 1."""
    is_out_of_order: bool = False
    """Whether, in one of the streams, a row of an earlier match comes after the row of this match."""


class OrdersTooDifferent(Exception):
    """Raised if so many rows are unmatched that they exceed the memory limit, after reading `row_count` rows."""

    def __init__(self, row_count: int) -> None:
        super().__init__(f"after {row_count:,} rows")
        self.row_count = row_count


@dataclass(frozen=True)
class _PositionedRow:
    """A row with its position, counted from 1."""

    key: Key
    row: Row
    position: int

    @property
    def size(self) -> int:
        return len(repr(self.row))


class _Stream:
    """A stream of rows, which remembers its unmatched rows."""

    def __init__(self, rows: Iterator[Row], key: Callable[[Row], Key]) -> None:
        self._rows, self._key = rows, key
        self._unmatched: dict[Key, deque[_PositionedRow]] = {}
        self._last_matched = 0
        self.unmatched_size = 0
        self.row_count = 0
        self.has_ended = False

    def read_row(self) -> _PositionedRow | None:
        """Return the next row; None at the end of the stream."""
        row = next(self._rows, None)
        if row is None:
            self.has_ended = True
            return None
        self.row_count += 1
        return _PositionedRow(self._key(row), row, self.row_count)

    def add_unmatched(self, positioned: _PositionedRow) -> None:
        """Remember a row until the other stream has a row with its key."""
        self._unmatched.setdefault(positioned.key, deque()).append(positioned)
        self.unmatched_size += positioned.size

    def remove_unmatched(self, key: Key) -> _PositionedRow | None:
        """Remove and return the first unmatched row with this key."""
        same_key = self._unmatched.get(key)
        if same_key is None:
            return None
        positioned = same_key.popleft()
        if not same_key:
            del self._unmatched[key]
        self.unmatched_size -= positioned.size
        return positioned

    def unmatched_rows(self) -> list[_PositionedRow]:
        """Return the unmatched rows, sorted by position."""
        return sorted((item for items in self._unmatched.values() for item in items), key=lambda item: item.position)

    def record_match(self, position: int) -> bool:
        """Record that the row at a position was matched; return whether all earlier matches had smaller positions."""
        is_in_order = position > self._last_matched
        self._last_matched = max(self._last_matched, position)
        return is_in_order


def match_rows(recorded: Iterator[Row], recomputed: Iterator[Row], key: Callable[[Row], Key]) -> Iterator[Match]:
    """Yield a match for each row of both streams. The n-th rows with the same key match each other.

    Raises:
        OrdersTooDifferent: so many rows are unmatched that they exceed the memory limit.
    """
    recorded_stream, recomputed_stream = _Stream(recorded, key), _Stream(recomputed, key)

    def match(first: _PositionedRow | None, second: _PositionedRow | None) -> Match:
        if first is not None and second is not None:
            in_order = [recorded_stream.record_match(first.position), recomputed_stream.record_match(second.position)]
            return Match(first.key, first.row, second.row, first.position, is_out_of_order=not all(in_order))
        if first is not None:
            return Match(first.key, first.row, None, first.position)
        assert second is not None
        return Match(second.key, None, second.row, second.position)

    while not (recorded_stream.has_ended and recomputed_stream.has_ended):
        first, second = recorded_stream.read_row(), recomputed_stream.read_row()
        if first is not None:
            if (matching := recomputed_stream.remove_unmatched(first.key)) is not None or recomputed_stream.has_ended:
                yield match(first, matching)
            else:
                recorded_stream.add_unmatched(first)
        if second is not None:
            if (matching := recorded_stream.remove_unmatched(second.key)) is not None or recorded_stream.has_ended:
                yield match(matching, second)
            else:
                recomputed_stream.add_unmatched(second)
        if recorded_stream.unmatched_size + recomputed_stream.unmatched_size > MAX_UNMATCHED:
            raise OrdersTooDifferent(max(recorded_stream.row_count, recomputed_stream.row_count))
    yield from (match(first, None) for first in recorded_stream.unmatched_rows())
    yield from (match(None, second) for second in recomputed_stream.unmatched_rows())
