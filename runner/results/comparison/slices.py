"""Slices of the datapoints that two systems share, by the values of a column."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.base.errors import UsageError
from runner.results.comparison.matching import MatchedPoints
from runner.results.comparison.systems import System

MAX_SLICES = 100
"""The maximum number of slices. With more, tests that are corrected for the number of slices would detect nothing."""
MISSING = "(null)"
"""The name of the slice with missing values."""


def split_by_column(matched: MatchedPoints, column: str, base: System, other: System) -> Mapping[str, MatchedPoints]:
    """Split the pairs by the value of a column, and sort the slices: numbers, then text, then missing values.

    1, 1.0 and "1" are the same value.

    Raises:
        UsageError: there are too many values, or the systems have different values or no datapoint in common.
    """
    if not matched.pairs:
        raise UsageError(f"{base.name} and {other.name} share no datapoint, and slices need datapoints that both have")
    slices: dict[str, list[int]] = {}  # the indices of the pairs in each slice
    mismatches = []
    for index, (base_point, other_point) in enumerate(matched.pairs):
        name = _slice_name(base_point.value)
        slices.setdefault(name, []).append(index)
        if name != (other_name := _slice_name(other_point.value)):
            mismatches.append(f"{base_point.id} is {name} in {base.name} and {other_name} in {other.name}")
    if mismatches:
        more = f", and {len(mismatches) - 1} more" if len(mismatches) > 1 else ""
        raise UsageError(f"column {column!r} differs between the runs: {mismatches[0]}{more}; slice by another column")
    if len(slices) > MAX_SLICES:
        raise UsageError(f"column {column!r} has {len(slices):,} values; slice by a column with at most {MAX_SLICES}")
    return {name: _select_pairs(matched, slices[name]) for name in sorted(slices, key=_sort_key)}


def untested_slices_note(column: str, tested: Sequence[bool]) -> Iterator[str]:
    """Yield a note on slices that cannot be tested since they have a single group."""
    if count := tested.count(False):
        yield (
            f"{count} of {len(tested)} slices by {column!r} have a single group of datapoints, so their error is "
            "unknown, and they have no interval and no p-value"
        )


def _select_pairs(matched: MatchedPoints, indices: Sequence[int]) -> MatchedPoints:
    pairs, groups = matched.pairs, matched.groups
    return MatchedPoints([pairs[index] for index in indices], [groups[index] for index in indices], (), ())


def _slice_name(value: Any) -> str:
    if value is None:
        return MISSING
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _sort_key(name: str) -> tuple[int, float, str]:
    if name == MISSING:
        return 2, 0.0, name
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name
