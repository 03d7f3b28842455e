"""Datapoints into those that are played, in their order: shuffled, balanced and cut, a group together."""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.hashing import derived_seed
from runner.spec.datasets.datapoint import Datapoint, grouped
from runner.spec.datasets.settings import DatasetSettings

Unit = list[Datapoint]
"""Datapoints that are played together or not at all."""


def chosen(points: Sequence[Datapoint], settings: DatasetSettings, seed: int) -> list[Datapoint]:
    """The datapoints that are played, in their order; none where there is nothing to balance.

    A limit takes the first groups that are whole within it, so that a longer run has a shorter one's datapoints. It
    tears a group only where the first is larger than all of it.
    """
    if settings.shuffle:
        points = sorted(points, key=lambda point: _shuffled(point, seed))
    balanced = settings.balance == "label"
    units = _balanced(points) if balanced else grouped(points)
    if settings.limit is not None:
        units = _within(units, settings.limit, balanced=balanced)
    kept = {point.id for unit in units for point in unit}
    return [point for point in points if point.id in kept]


def _shuffled(point: Datapoint, seed: int) -> tuple[int | str, ...]:
    """What it is sorted by: its group's chance, then its own."""
    return (
        derived_seed("shuffle", seed, point.group), point.group, derived_seed("shuffle", seed, point.id), point.id,
    )  # fmt: skip


def _balanced(points: Sequence[Datapoint]) -> list[Unit]:
    """Units with as many of one label as of the other; as many datapoints as if there were no groups.

    What a group has of both labels stays together, the first of each; what is left of its more frequent label is paired
    with what is left of other groups, in the order of the datapoints.
    """
    place = {point.id: index for index, point in enumerate(points)}
    units: list[Unit] = []
    left: tuple[Unit, Unit] = [], []
    for group in grouped(points):
        both = [[point for point in group if point.label == label] for label in (0, 1)]
        pairs = min(map(len, both))
        if pairs:
            units.append([point for side in both for point in side[:pairs]])
        for side, rest in zip(both, left, strict=True):
            rest.extend(side[pairs:])
    zeros, ones = (sorted(rest, key=lambda point: place[point.id]) for rest in left)
    units.extend([zero, one] for zero, one in zip(zeros, ones, strict=False))
    return sorted(units, key=lambda unit: min(place[point.id] for point in unit))


def _within(units: list[Unit], limit: int, *, balanced: bool) -> list[Unit]:
    size, kept = 0, []
    for unit in units:
        size += len(unit)
        if size > limit:
            break
        kept.append(unit)
    if kept or not units:
        return kept
    first = units[0]
    if not balanced:
        return [first[:limit]]
    half = len(first) // 2  # zeros, then ones
    return [[*first[: limit // 2], *first[half : half + limit // 2]]]
