"""Matching of two systems' datapoints by their label and the content of the columns that the verifier sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runner.results.comparison.systems import DatapointScores, System, SystemReader
from runner.results.metric_definitions import Metric

_Content = tuple[int | str, tuple[str, ...]]
"""The label of a datapoint, and the hashes of its columns."""


@dataclass(frozen=True)
class MatchedPoints:
    """The datapoints that two systems share, and the datapoints that only one has."""

    pairs: Sequence[tuple[DatapointScores, DatapointScores]]
    groups: Sequence[str]
    """The group of each pair."""
    only_base: Sequence[DatapointScores]
    only_other: Sequence[DatapointScores]


def match_systems(base: System, other: System, measure: Metric, reader: SystemReader) -> MatchedPoints:
    """Match the datapoints of two systems by label and by the columns that both verifiers see; ids may differ.

    If both verifiers see the same columns, datapoints with equal content are the same for every model: they are paired
    by id first, and the rest in the order of their ids. Otherwise, or without columns, datapoints with equal content
    may differ in other columns. Then they are paired only if they have the same id, or if the content is unique.

    Raises the same errors as `SystemReader.points`.
    """
    base_points, other_points = reader.points(base, measure), reader.points(other, measure)
    names, pairs = sorted(base.columns & other.columns), []
    base_by_content, other_by_content = _index_by_content(base_points, names), _index_by_content(other_points, names)
    for content, same_base in base_by_content.items():
        same_other = {point.id: point for point in other_by_content.get(content, ())}
        is_unique = len(same_base) == 1 and len(other_by_content.get(content, ())) == 1
        unmatched = [point for point in same_base if point.id not in same_other]
        pairs += [(point, same_other.pop(point.id)) for point in same_base if point.id in same_other]
        if names and (base.columns == other.columns or is_unique):
            pairs += zip(unmatched, same_other.values(), strict=False)
    pairs.sort(key=lambda pair: (pair[0].id, pair[0].label))
    matched_ids = {id(point) for pair in pairs for point in pair}
    only = [[point for point in points if id(point) not in matched_ids] for points in (base_points, other_points)]
    return MatchedPoints(pairs, _join_groups(pairs), *only)


def _index_by_content(points: Iterable[DatapointScores], names: Sequence[str]) -> dict[_Content, list[DatapointScores]]:
    points_by_content: dict[_Content, list[DatapointScores]] = {}
    for point in points:
        content = point.label, tuple(point.contents.get(name, "") for name in names)
        points_by_content.setdefault(content, []).append(point)
    return points_by_content


def _join_groups(pairs: Sequence[tuple[DatapointScores, DatapointScores]]) -> list[str]:
    """Return the group of each pair. Groups that share a datapoint, of either system, become one group."""
    parents: dict[tuple[int, str], tuple[int, str]] = {}  # a union-find structure of (system, group)

    def find_root(node: tuple[int, str]) -> tuple[int, str]:
        while (parent := parents.setdefault(node, node)) != node:
            parents[node] = parents[parent]
            node = parent
        return node

    for base, other in pairs:
        parents[find_root((1, other.group))] = find_root((0, base.group))
    names: dict[tuple[int, str], str] = {}
    return [names.setdefault(find_root((0, base.group)), base.group) for base, _ in pairs]
