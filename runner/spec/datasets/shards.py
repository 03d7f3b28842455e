"""One of several parts of a run, each played by a process of its own: which datapoints it has, and of what a share.

Groups stay whole, and so do the plays of a block and all repeats of a datapoint. They are dealt in the order of their
first datapoints, each to the shard that has the fewest datapoints by then, of several the first: so the parts follow
from the datapoints and the number of shards alone, differ in size by at most one group, and keep what they have where
a longer run has more groups behind those of a shorter one.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from runner.spec.datasets.datapoint import Datapoint, grouped

MAX_SHARDS = 10_000

_FORM = r"([1-9][0-9]{0,5}){}([1-9][0-9]{0,5})"
_WORD, _FOLDER = (re.compile(_FORM.replace("{}", between, 1)) for between in ("/", "-of-"))


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """The shard `number` of `of`, counted from 1."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """A shard as it is written on the command line, `3/8`.

        Raises:
            ValueError: it is no such thing; the message says what belongs there.
        """
        found = _WORD.fullmatch(text.strip())
        shard = None if found is None else cls(int(found[1]), int(found[2]))
        if shard is None or shard.number > shard.of:
            raise ValueError(f"{text!r}: K/N belongs here, the part K of N, such as 3/8; K is from 1 to N")
        if shard.of > MAX_SHARDS:
            raise ValueError(f"{text!r}: at most {MAX_SHARDS:,} shards")
        return shard

    @classmethod
    def of_folder(cls, name: str) -> Self | None:
        """The shard whose part has a folder of this name; None where that is no part's."""
        found = _FOLDER.fullmatch(name)
        shard = None if found is None else cls(int(found[1]), int(found[2]))
        return shard if shard is not None and shard.number <= shard.of <= MAX_SHARDS else None

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def pair(self) -> tuple[int, int]:
        """Its number, and of how many."""
        return self.number, self.of

    @property
    def folder(self) -> str:
        """The name of its part's folder."""
        return f"{self.number}-of-{self.of}"

    def all(self) -> list[Shard]:
        """It and its siblings, in order."""
        return [Shard(number, self.of) for number in range(1, self.of + 1)]

    def points(self, points: Sequence[Datapoint]) -> list[Datapoint]:
        """Those of a run's datapoints that it plays, in their order; none where there are fewer groups than shards."""
        dealt = _dealt(points, self.of)
        return [point for point in points if dealt[point.group] == self.number]

    def sizes(self, points: Sequence[Datapoint]) -> list[int]:
        """How many of a run's datapoints each shard plays."""
        dealt, sizes = _dealt(points, self.of), [0] * self.of
        for point in points:
            sizes[dealt[point.group] - 1] += 1
        return sizes

    def share(self, whole: int, sizes: Sequence[int]) -> int | None:
        """Its share of a limit: by its size, at least 1, and together no more than the whole.

        None where the limit is too small to give each shard something.
        """
        left = whole - self.of
        if left < 0 or not all(sizes):
            return None
        before, until, all_ = sum(sizes[: self.number - 1]), sum(sizes[: self.number]), sum(sizes)
        return 1 + left * until // all_ - left * before // all_


def _dealt(points: Sequence[Datapoint], shards: int) -> dict[str, int]:
    """The number of the shard that has each group."""
    fewest = [(0, number) for number in range(1, shards + 1)]
    dealt = {}
    for group in grouped(points):
        size, number = heapq.heappop(fewest)
        dealt[group[0].group] = number
        heapq.heappush(fewest, (size + len(group), number))
    return dealt
