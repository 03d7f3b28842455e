"""Matching of two systems' datapoints by their label and the content of the columns that the verifier sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runner.results.comparison.systems import DatapointScores, System, SystemReader
from runner.results.metric_definitions import Metric

_Key = tuple[int, tuple[str, ...]]


@dataclass(frozen=True)
class MatchedPoints:
    """The datapoints that two systems share, and the datapoints that only one has."""

    pairs: Sequence[tuple[DatapointScores, DatapointScores]]
    groups: Sequence[str]
    """The group of each pair."""
    only_base: Sequence[DatapointScores]
    only_other: Sequence[DatapointScores]


def match_systems(base: System, other: System, measure: Metric, reading: SystemReader) -> MatchedPoints:
    """Match the datapoints of two systems that have scores by a metric. Raises the same errors as `reading.points`."""
    points = [reading.points(system, measure) for system in (base, other)]
    return match_datapoints(points[0], points[1], base.columns & other.columns, is_all=base.columns == other.columns)


def match_datapoints(
    base: Sequence[DatapointScores], other: Sequence[DatapointScores], columns: frozenset[str], *, is_all: bool
) -> MatchedPoints:
    """Match datapoints with the same label and the same content of these columns; ids may differ.

    `is_all` means that the templates of both systems use exactly these columns. Then datapoints with equal content are
    the same for every model: they are paired by id first, and the rest in the order of their ids. Otherwise, or without
    columns, equal datapoints may differ in other columns: only those with the same id, or with unique content, are
    paired.
    """
    names, pairs = sorted(columns), []
    base_points, other_points = _index_by_content(base, names), _index_by_content(other, names)
    for key, same_base in base_points.items():
        same_other = {point.id: point for point in other_points.get(key, ())}
        unmatched = [point for point in same_base if point.id not in same_other]
        pairs += [(point, same_other.pop(point.id)) for point in same_base if point.id in same_other]
        if names and (is_all or (len(same_base) == 1 and len(other_points.get(key, ())) == 1)):
            pairs += zip(unmatched, same_other.values(), strict=False)
    pairs.sort(key=lambda pair: (pair[0].id, pair[0].label))
    matched_ids = {id(point) for pair in pairs for point in pair}
    only = [[point for point in points if id(point) not in matched_ids] for points in (base, other)]
    return MatchedPoints(pairs, _join_groups(pairs), *only)


def _index_by_content(points: Iterable[DatapointScores], names: Sequence[str]) -> dict[_Key, list[DatapointScores]]:
    points_by_key: dict[_Key, list[DatapointScores]] = {}
    for point in points:
        points_by_key.setdefault((point.label, tuple(point.contents.get(name, "") for name in names)), []).append(point)
    return points_by_key


def _join_groups(pairs: Sequence[tuple[DatapointScores, DatapointScores]]) -> list[str]:
    """Return the group of each pair; groups of either system that share a datapoint are joined."""
    parents: dict[tuple[int, str], tuple[int, str]] = {}

    def find_root(node: tuple[int, str]) -> tuple[int, str]:
        while (parent := parents.setdefault(node, node)) != node:
            parents[node] = parents[parent]
            node = parent
        return node

    for base, other in pairs:
        parents[find_root((1, other.group))] = find_root((0, base.group))
    names: dict[tuple[int, str], str] = {}
    return [names.setdefault(find_root((0, base.group)), base.group) for base, _ in pairs]
