"""Divide a run into shards, which separate processes can play: the datapoints and the limits of each shard.

A group of datapoints with all its games is never divided. Groups are assigned in the order of their first datapoints,
each to the first shard with the fewest datapoints so far. So shards depend only on the datapoints and the number of
shards, and differ in size by at most one group. If a longer run adds groups at the end, no group changes its shard.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from runner.spec.datasets.datapoint import Datapoint

MAX_SHARDS = 10_000

_PATTERN = r"([1-9][0-9]{0,5}){}([1-9][0-9]{0,5})"
_TEXT, _FOLDER_NAME = (re.compile(_PATTERN.replace("{}", between, 1)) for between in ("/", "-of-"))


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """The shard with this number, from 1, of a run that is divided into `of` shards."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a shard as written on the command line, such as `3/8`.

        Raises:
            ValueError: the text is not a shard; the message shows the correct form.
        """
        match = _TEXT.fullmatch(text.strip())
        shard = None if match is None else cls(int(match[1]), int(match[2]))
        if shard is None or shard.number > shard.of:
            raise ValueError(f"{text!r} is not a shard; write K/N for shard K of N, such as 3/8, with K from 1 to N")
        if shard.of > MAX_SHARDS:
            raise ValueError(f"{text!r} has more than {MAX_SHARDS:,} shards, the maximum; use fewer")
        return shard

    @classmethod
    def of_folder(cls, name: str) -> Self | None:
        """Return the shard whose folder has this name; None if it is not a shard's folder."""
        match = _FOLDER_NAME.fullmatch(name)
        shard = None if match is None else cls(int(match[1]), int(match[2]))
        return shard if shard is not None and shard.number <= shard.of <= MAX_SHARDS else None

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def pair(self) -> tuple[int, int]:
        """The number of this shard, and the number of all shards."""
        return self.number, self.of

    @property
    def folder(self) -> str:
        """The name of the shard's folder."""
        return f"{self.number}-of-{self.of}"

    def points(self, points: Sequence[Datapoint]) -> list[Datapoint]:
        """Return the run's datapoints that this shard plays, in order; empty if there are fewer groups than shards."""
        shard_of_group = _assign_groups(points, self.of)
        return [point for point in points if shard_of_group[point.group] == self.number]

    def sizes(self, points: Sequence[Datapoint]) -> list[int]:
        """Return how many of the run's datapoints each shard plays."""
        shard_of_group, sizes = _assign_groups(points, self.of), [0] * self.of
        for point in points:
            sizes[shard_of_group[point.group] - 1] += 1
        return sizes

    def share(self, limit: int, sizes: Sequence[int]) -> int | None:
        """Return this shard's share of a limit, which is proportional to its size and at least 1.

        The shares of all shards add up to the limit. None if the limit is smaller than the number of shards.
        """
        remaining = limit - self.of
        if remaining < 0 or not all(sizes):
            return None
        before, including, total = sum(sizes[: self.number - 1]), sum(sizes[: self.number]), sum(sizes)
        return 1 + remaining * including // total - remaining * before // total


def _assign_groups(points: Sequence[Datapoint], shards: int) -> dict[str, int]:
    """Return the number of each group's shard."""
    import heapq

    from runner.spec.datasets.datapoint import group_datapoints

    heap = [(0, number) for number in range(1, shards + 1)]
    shard_of_group = {}
    for group in group_datapoints(points):
        size, number = heapq.heappop(heap)
        shard_of_group[group[0].group] = number
        heapq.heappush(heap, (size + len(group), number))
    return shard_of_group
