"""The datapoints of two systems into pairs: one datapoint is one label and one content of what templates use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runner.results.comparison.systems import DatapointScores

_Key = tuple[int, tuple[str, ...]]


@dataclass(frozen=True)
class Matched:
    """The datapoints that two systems share, and those that one alone has."""

    pairs: Sequence[tuple[DatapointScores, DatapointScores]]
    groups: Sequence[str]
    """Of each pair."""
    only_base: Sequence[DatapointScores]
    only_other: Sequence[DatapointScores]


def matched(
    base: Sequence[DatapointScores], other: Sequence[DatapointScores], columns: frozenset[str], *, is_all: bool
) -> Matched:
    """Match datapoints that have one label and one content of these columns; ids may differ.

    `is_all` says that these are all the columns that the templates of either use. Where they are, datapoints that are
    alike are the same for every model, and are paired by id first and then in the order of their ids. Where they are
    not, or there are none, only those of one id are: what tells the others apart is not compared.
    """
    names, pairs = sorted(columns), []
    mine, theirs = _by_content(base, names), _by_content(other, names)
    for key, ours in mine.items():
        them = {point.id: point for point in theirs.get(key, ())}
        rest = [point for point in ours if point.id not in them]
        pairs += [(point, them.pop(point.id)) for point in ours if point.id in them]
        if names and (is_all or (len(ours) == 1 and len(theirs.get(key, ())) == 1)):
            pairs += zip(rest, them.values(), strict=False)
    pairs.sort(key=lambda pair: (pair[0].id, pair[0].label))
    taken = {id(point) for pair in pairs for point in pair}
    left = [[point for point in points if id(point) not in taken] for points in (base, other)]
    return Matched(pairs, _groups(pairs), *left)


def _by_content(points: Iterable[DatapointScores], names: Sequence[str]) -> dict[_Key, list[DatapointScores]]:
    found: dict[_Key, list[DatapointScores]] = {}
    for point in points:
        found.setdefault((point.label, tuple(point.contents.get(name, "") for name in names)), []).append(point)
    return found


def _groups(pairs: Sequence[tuple[DatapointScores, DatapointScores]]) -> list[str]:
    """The group of each pair: those that one group of either system joins are together."""
    above: dict[tuple[int, str], tuple[int, str]] = {}

    def top(one: tuple[int, str]) -> tuple[int, str]:
        while (higher := above.setdefault(one, one)) != one:
            above[one] = above[higher]
            one = higher
        return one

    for base, other in pairs:
        above[top((1, other.group))] = top((0, base.group))
    first: dict[tuple[int, str], str] = {}
    return [first.setdefault(top((0, base.group)), base.group) for base, _ in pairs]
