"""Two streams of rows, in about the same order, matched by what each row is of; memory is bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
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


@dataclass
class _Waiting:
    """Rows of one stream whose like has not come yet."""

    rows: dict[Key, deque[tuple[int, Row]]] = field(default_factory=dict)
    size: int = 0

    def add(self, key: Key, place: int, row: Row) -> None:
        self.rows.setdefault(key, deque()).append((place, row))
        self.size += len(repr(row))

    def take(self, key: Key) -> tuple[int, Row] | None:
        found = self.rows.get(key)
        if found is None:
            return None
        place, row = found.popleft()
        if not found:
            del self.rows[key]
        self.size -= len(repr(row))
        return place, row

    def rest(self) -> Iterator[tuple[Key, int, Row]]:
        found = [(place, key, row) for key, rows in self.rows.items() for place, row in rows]
        found.sort(key=lambda one: one[0])
        yield from ((key, place, row) for place, key, row in found)


def matched(recorded: Iterator[Row], again: Iterator[Row], key: Callable[[Row], Key]) -> Iterator[Match]:
    """Each row of either stream once, with its like: the first of a key with the first, the second with the second.

    Raises:
        TooFar: the streams are in orders so different that it would take more memory than is given.
    """
    ours, theirs = _Waiting(), _Waiting()
    furthest = [0, 0]

    def match(of: Key, mine: tuple[int, Row], other: tuple[int, Row]) -> Match:
        # Rows in one order are matched in that order, however far apart they stand.
        moved = mine[0] < furthest[0] or other[0] < furthest[1]
        furthest[:] = max(furthest[0], mine[0]), max(furthest[1], other[0])
        return Match(of, mine[1], other[1], mine[0], moved)

    place = 0
    while True:
        place += 1
        mine, other = next(recorded, None), next(again, None)
        if mine is None and other is None:
            break
        one, two = (None if row is None else key(row) for row in (mine, other))
        if mine is not None and one is not None:
            if one == two and other is not None and one not in ours.rows and one not in theirs.rows:
                yield match(one, (place, mine), (place, other))
                continue
            like = theirs.take(one)
            if like is not None:
                yield match(one, (place, mine), like)
            elif other is None:  # the other stream has ended: nothing is to come
                yield Match(one, mine, None, place)
            else:
                ours.add(one, place, mine)
        if other is not None and two is not None:
            like = ours.take(two)
            if like is not None:
                yield match(two, like, (place, other))
            elif mine is None:
                yield Match(two, None, other, place)
            else:
                theirs.add(two, place, other)
        if ours.size + theirs.size > MAX_WAITING:
            raise TooFar(place)
    yield from (Match(of, row, None, at) for of, at, row in ours.rest())
    yield from (Match(of, None, row, at) for of, at, row in theirs.rest())
