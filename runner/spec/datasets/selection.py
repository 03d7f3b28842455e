"""Select the datapoints that are played: shuffle, balance and limit them, and keep groups together."""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.hashing import derived_seed
from runner.spec.datasets.datapoint import Datapoint, group_datapoints
from runner.spec.datasets.settings import DatasetSettings

Unit = list[Datapoint]
"""Datapoints that are played together or not at all."""


def select_datapoints(points: Sequence[Datapoint], settings: DatasetSettings, seed: int) -> list[Datapoint]:
    """Return the datapoints that are played, in the order of play; empty if none is left after balancing.

    A limit selects the first groups that fit completely, so that a run with a higher limit includes the datapoints of
    one with a lower limit. A group is divided only if the first group exceeds the limit.
    """
    if settings.shuffle:
        points = sorted(points, key=lambda point: _shuffle_key(point, seed))
    balanced = settings.balance == "label"
    units = _balance(points) if balanced else group_datapoints(points)
    if settings.limit is not None:
        units = _limit(units, settings.limit, balanced=balanced)
    selected_ids = {point.id for unit in units for point in unit}
    return [point for point in points if point.id in selected_ids]


def spread_evenly(points: Sequence[Datapoint], number: int) -> list[Datapoint]:
    """Return at most `number` datapoints at equal distances, in their order."""
    count = min(number, len(points))
    return [points[index * len(points) // count] for index in range(count)]


def _shuffle_key(point: Datapoint, seed: int) -> tuple[int | str, ...]:
    """Return the sort key of a datapoint: the random number of its group, then its own random number."""
    return (
        derived_seed("shuffle", seed, point.group), point.group, derived_seed("shuffle", seed, point.id), point.id,
    )  # fmt: skip


def _balance(points: Sequence[Datapoint]) -> list[Unit]:
    """Return units with equally many datapoints of both labels.

    Within a group, the first datapoints of both labels are paired and stay together. The remaining datapoints of the
    more frequent label are paired with remaining datapoints of other groups, in the order of the datapoints.
    """
    position = {point.id: index for index, point in enumerate(points)}
    units: list[Unit] = []
    surplus: tuple[Unit, Unit] = [], []
    for group in group_datapoints(points):
        by_label = [[point for point in group if point.label == label] for label in (0, 1)]
        pairs = min(map(len, by_label))
        if pairs:
            units.append([point for points_of_label in by_label for point in points_of_label[:pairs]])
        for points_of_label, rest in zip(by_label, surplus, strict=True):
            rest.extend(points_of_label[pairs:])
    rejected, accepted = (sorted(rest, key=lambda point: position[point.id]) for rest in surplus)
    units.extend(list(pair) for pair in zip(rejected, accepted, strict=False))
    return sorted(units, key=lambda unit: min(position[point.id] for point in unit))


def _limit(units: list[Unit], limit: int, *, balanced: bool) -> list[Unit]:
    size, units_within = 0, []
    for unit in units:
        size += len(unit)
        if size > limit:
            break
        units_within.append(unit)
    if units_within or not units:
        return units_within
    first = units[0]
    if not balanced:
        return [first[:limit]]
    half = len(first) // 2  # datapoints with label 0 come first, then those with label 1
    return [[*first[: limit // 2], *first[half : half + limit // 2]]]
