"""Finds the sweeps among the rows of a leaderboard's list, with the keys that each sweep sets and its results.

A sweep is the runs of one spec with different values of some keys; each combination of values is a point.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runner.registry.board.board import PublishedRow
from runner.results.leaderboard.model import LeaderboardRow, Row
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.sweep_table import SEED, SweepPoint, sweep_rows
from runner.results.metric_definitions import RANKING_METRIC
from runner.results.sweep_points import parse_point

MAX_POINTS = 400
"""Maximum points of a sweep with a table. A larger table would be hard to read and slow to rank."""


@dataclass(frozen=True)
class SweepLine:
    """The results at one point of a sweep, pooled over its seeds."""

    point: Mapping[str, Any]
    runs: Sequence[str]
    seeds: int
    value: float | None
    low: float | None
    high: float | None
    n: int | None
    cost: float | None
    rank: tuple[int, int] | None
    reason: str | None


@dataclass(frozen=True)
class SweepPoints:
    """The points of one spec's sweep."""

    name: str
    keys: Sequence[str]
    """The keys with several values, except the seed."""
    lines: Sequence[SweepLine]


def sweeps_of(rows: Sequence[LeaderboardRow], results: Results) -> list[SweepPoints]:
    """Return the sweeps among a results folder's rows, pooled over seeds and ranked as in `nip-run sweep`.

    Raises:
        LeaderboardError: the board is damaged.
    """
    sweeps = []
    for name, members in _rows_by_sweep(rows):
        points = [SweepPoint(name, row.run_id, point, row.seed or 0) for row, point in members]
        lines = [
            SweepLine(
                row.point, row.run_ids, len(row.seeds), value.value, value.ci_low, value.ci_high, value.n,
                row.cost_usd, row.rank, row.reason or value.reason,
            )
            for row in sweep_rows(points, results, writes=False)
            for value in (row.metrics[RANKING_METRIC],)
        ]  # fmt: skip
        sweeps.extend(_sweep(name, lines))
    return sweeps


def published_sweeps(rows: Sequence[PublishedRow]) -> list[SweepPoints]:
    """Return the sweeps among a registry's rows, with a line for each seed, because published runs are not pooled."""
    sweeps = []
    for name, members in _rows_by_sweep(rows):
        lines = [
            SweepLine(
                point, (row.release.removeprefix("run/"),), 1, row.accuracy, row.ci_low, row.ci_high, row.n,
                row.cost_usd, row.ranks, row.reason,
            )
            for row, point in members
        ]  # fmt: skip
        sweeps.extend(_sweep(name, lines))
    return sweeps


def _rows_by_sweep(rows: Sequence[Row]) -> Iterator[tuple[str, list[tuple[Row, dict[str, object]]]]]:
    """Yield the name of each sweep's spec, and the rows of the sweep with their points. Replays are left out."""
    rows_by_spec: dict[str, list[tuple[Row, dict[str, Any]]]] = defaultdict(list)
    for row in rows:
        if row.point and row.replay_of is None and row.rejudge_of is None:
            with suppress(ValueError):  # a published row may have an invalid point
                rows_by_spec[str(row.name)].append((row, parse_point(row.point)))
    for name, members in sorted(rows_by_spec.items()):
        if 1 < len(members) <= MAX_POINTS:
            yield name, sorted(members, key=lambda member: [_sort_key(value) for value in member[1].values()])


def _sort_key(value: Any) -> tuple[int, float, str]:
    """Return a sort key for a value: numbers come first, by size; other values follow, by their text."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (0, float(value), "") if is_number else (1, 0.0, str(value))


def _sweep(name: str, lines: Sequence[SweepLine]) -> list[SweepPoints]:
    """Return a sweep as a list with one item, or an empty list if only the seed differs."""
    names = list(dict.fromkeys(key for line in lines for key in line.point if key != SEED))
    keys = [key for key in names if len({str(line.point.get(key)) for line in lines}) > 1]
    return [SweepPoints(name, keys, lines)] if keys else []


def format_value(value: Any) -> str:
    """Format the value of a sweep's key."""
    return value if isinstance(value, str) else json.dumps(value)


def short_names(keys: Collection[str]) -> dict[str, str]:
    """Return the shortest unique suffix of each dotted key."""
    counts = Counter(suffix for key in keys for suffix in _suffixes(key))
    return {key: next((suffix for suffix in _suffixes(key) if counts[suffix] == 1), key) for key in keys}


def _suffixes(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1)]
