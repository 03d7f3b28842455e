"""Two streams of rows, in about the same order, matched by what each row is of; memory is bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Key = tuple[Any, ...]

MAX_WAITING = 32 << 20
"""Characters of the rows that are held since their like has not come yet."""


@dataclass(frozen=True)
class Match:
    """A row of one stream with that of the other which is of the same; None where the other has none."""

    key: Key
    recorded: Row | None
    again: Row | None
    place: int
    """Of the recorded row in its stream, from 1; where there is none, of the other in its own."""
    moved: bool = False
    """It stands before a row that it should follow, or after one that it should precede."""


class TooFar(Exception):
    """More rows than are held stand elsewhere than their like; how many were read."""

    def __init__(self, read: int) -> None:
        super().__init__(f"after {read:,} rows")
        self.read = read


@dataclass(frozen=True)
class _Placed:
    """A row where it stands in its stream, from 1."""

    key: Key
    row: Row
    place: int

    @property
    def size(self) -> int:
        return len(repr(self.row))


class _Stream:
    """A stream that is read row by row, and its rows that wait for their like."""

    def __init__(self, rows: Iterator[Row], key: Callable[[Row], Key]) -> None:
        self._rows, self._key = rows, key
        self._waiting: dict[Key, deque[_Placed]] = {}
        self._last_matched = 0
        self.size_waiting = 0
        self.read = 0
        self.has_ended = False

    def next(self) -> _Placed | None:
        """Its next row; None at its end."""
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
        """The first row of this key that waits."""
        alike = self._waiting.get(key)
        if alike is None:
            return None
        placed = alike.popleft()
        if not alike:
            del self._waiting[key]
        self.size_waiting -= placed.size
        return placed

    def left(self) -> list[_Placed]:
        """The rows that wait, in their order."""
        return sorted((placed for alike in self._waiting.values() for placed in alike), key=lambda one: one.place)

    def passes(self, place: int) -> bool:
        """Whether a row that is matched now stands after all that were matched before."""
        is_next = place > self._last_matched
        self._last_matched = max(self._last_matched, place)
        return is_next


def matched(recorded: Iterator[Row], again: Iterator[Row], key: Callable[[Row], Key]) -> Iterator[Match]:
    """Each row of either stream once, with its like: the first of a key with the first, the second with the second.

    Raises:
        TooFar: the streams are in orders so different that it would take more memory than is given.
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
