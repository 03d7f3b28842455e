"""The datapoints that two systems share by the values of a column."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.base.errors import UsageError
from runner.results.comparison.matching import Matched
from runner.results.comparison.systems import System

SLICES = 100
"""A column with more values slices into nothing that could be told apart."""
MISSING = "(null)"


def sliced(found: Matched, column: str, base: System, other: System) -> Mapping[str, Matched]:
    """The pairs by value, in order: numbers by size, then texts, then what has none. 1, 1.0 and "1" are one value.

    Raises:
        UsageError: there are too many values, the systems differ in one, or they share no datapoint.
    """
    if not found.pairs:
        raise UsageError(f"{base.name} and {other.name} share no datapoint; slices are of those that both have")
    slices: dict[str, list[int]] = {}
    differ = []
    for index, (mine, theirs) in enumerate(found.pairs):
        name = _name(mine.value)
        slices.setdefault(name, []).append(index)
        if name != (its := _name(theirs.value)):
            differ.append(f"{mine.id} is {name} in {base.name} and {its} in {other.name}")
    if differ:
        more = f", and {len(differ) - 1} more" if len(differ) > 1 else ""
        raise UsageError(f"column {column!r} differs between the runs: {differ[0]}{more}; slice by another column")
    if len(slices) > SLICES:
        raise UsageError(f"column {column!r} has {len(slices):,} values; slices are at most {SLICES}")
    return {name: _part(found, slices[name]) for name in sorted(slices, key=_place)}


def untested(column: str, tested: Sequence[bool]) -> Iterator[str]:
    """What to say where slices are of one group each."""
    if lacking := tested.count(False):
        yield (
            f"{lacking} of {len(tested)} slices by {column!r} are one group of datapoints each, which tells nothing of "
            "the error: they have no interval and no p"
        )


def _part(found: Matched, at: Sequence[int]) -> Matched:
    return Matched([found.pairs[index] for index in at], [found.groups[index] for index in at], (), ())


def _name(value: Any) -> str:
    if value is None:
        return MISSING
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _place(name: str) -> tuple[int, float, str]:
    if name == MISSING:
        return 2, 0.0, name
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name
