"""Matching of two streams of rows by key, in bounded memory, if their orders are similar."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Key = tuple[Any, ...]

MAX_WAITING = 32 << 20
"""Maximum size in characters of the unmatched rows in memory."""


@dataclass(frozen=True)
class Match:
    """A row of each stream with the same key; None if a stream has none."""

    key: Key
    recorded: Row | None
    again: Row | None
    place: int
    """The position of the recorded row, or else of the other row, counted from 1."""
    moved: bool = False
    """The row is not in order."""


class TooFar(Exception):
    """The streams are in orders too different for the memory limit; carries the number of rows read."""

    def __init__(self, read: int) -> None:
        super().__init__(f"after {read:,} rows")
        self.read = read


@dataclass(frozen=True)
class _Placed:
    """A row with its position, counted from 1."""

    key: Key
    row: Row
    place: int

    @property
    def size(self) -> int:
        return len(repr(self.row))


class _Stream:
    """A stream of rows, with the rows that are not matched yet."""

    def __init__(self, rows: Iterator[Row], key: Callable[[Row], Key]) -> None:
        self._rows, self._key = rows, key
        self._waiting: dict[Key, deque[_Placed]] = {}
        self._last_matched = 0
        self.size_waiting = 0
        self.read = 0
        self.has_ended = False

    def next(self) -> _Placed | None:
        """Read the next row; None at the end."""
        row = next(self._rows, None)
        if row is None:
            self.has_ended = True
            return None
        self.read += 1
        return _Placed(self._key(row), row, self.read)

    def wait(self, placed: _Placed) -> None:
        self._waiting.setdefault(placed.key, deque()).append(placed)
        self.size_waiting += placed.size

    def take(self, key: Key) -> _Placed | None:
        """Remove and return the first unmatched row with this key."""
        alike = self._waiting.get(key)
        if alike is None:
            return None
        placed = alike.popleft()
        if not alike:
            del self._waiting[key]
        self.size_waiting -= placed.size
        return placed

    def left(self) -> list[_Placed]:
        """Return the unmatched rows in order."""
        return sorted((placed for alike in self._waiting.values() for placed in alike), key=lambda one: one.place)

    def passes(self, place: int) -> bool:
        """Tell whether a matched row is after all rows that were matched before."""
        is_next = place > self._last_matched
        self._last_matched = max(self._last_matched, place)
        return is_next


def matched(recorded: Iterator[Row], again: Iterator[Row], key: Callable[[Row], Key]) -> Iterator[Match]:
    """Yield each row of either stream once, matched in order with the rows of the same key.

    Raises:
        TooFar: the orders are too different for the memory limit.
    """
    ours, theirs = _Stream(recorded, key), _Stream(again, key)

    def match(mine: _Placed | None, other: _Placed | None) -> Match:
        if mine is not None and other is not None:
            # Rows in one order are matched in that order, however far apart they stand.
            in_order = [ours.passes(mine.place), theirs.passes(other.place)]
            return Match(mine.key, mine.row, other.row, mine.place, moved=not all(in_order))
        if mine is not None:
            return Match(mine.key, mine.row, None, mine.place)
        assert other is not None
        return Match(other.key, None, other.row, other.place)

    while not (ours.has_ended and theirs.has_ended):
        mine, other = ours.next(), theirs.next()
        if mine is not None:
            if (like := theirs.take(mine.key)) is not None or theirs.has_ended:
                yield match(mine, like)
            else:
                ours.wait(mine)
        if other is not None:
            if (like := ours.take(other.key)) is not None or ours.has_ended:
                yield match(like, other)
            else:
                theirs.wait(other)
        if ours.size_waiting + theirs.size_waiting > MAX_WAITING:
            raise TooFar(max(ours.read, theirs.read))
    yield from (match(mine, None) for mine in ours.left())
    yield from (match(None, other) for other in theirs.left())
