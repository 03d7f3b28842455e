"""The sweeps among the rows of one list: what each set, and what came of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runner.registry.board.board import PublishedRow
from runner.results.leaderboard.model import LeaderboardRow, Row
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.sweep_table import SEED, SweepPoint, sweep_rows
from runner.results.metric_table import RANKING_METRIC
from runner.results.sweep_points import point_of

MOST_POINTS = 400
"""With more, a sweep is only listed: its table would be no overview, and its ranks take a test a row."""


@dataclass(frozen=True)
class SweepLine:
    """One system of a sweep, with all of its seeds."""

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
    """What it sets to several values, but for the seed."""
    lines: Sequence[SweepLine]

    @property
    def is_pooled(self) -> bool:
        return any(line.seeds > 1 for line in self.lines)


def sweeps_of(rows: Sequence[LeaderboardRow], results: Results) -> list[SweepPoints]:
    """The sweeps among a results folder's rows: seeds are pooled and ranked as `nip-run sweep` has them.

    Raises:
        LeaderboardError: the board is damaged.
    """
    found = []
    for name, members in _swept(rows):
        points = [SweepPoint(name, row.run_id, point, row.seed or 0) for row, point in members]
        lines = [
            SweepLine(
                row.point, row.run_ids, len(row.seeds), value.value, value.ci_low, value.ci_high, value.n,
                row.cost_usd, row.rank, row.reason or value.reason,
            )
            for row in sweep_rows(points, results, writes=False)
            for value in (row.metrics[RANKING_METRIC],)
        ]  # fmt: skip
        found.extend(_sweep(name, lines))
    return found


def published_sweeps(rows: Sequence[PublishedRow]) -> list[SweepPoints]:
    """Those among a registry's rows, each seed a line: a board pools no runs of others."""
    found = []
    for name, members in _swept(rows):
        lines = [
            SweepLine(
                point, (row.release.removeprefix("run/"),), 1, row.accuracy, row.ci_low, row.ci_high, row.n,
                row.cost_usd, row.ranks, row.reason,
            )
            for row, point in members
        ]  # fmt: skip
        found.extend(_sweep(name, lines))
    return found


def _swept(rows: Sequence[Row]) -> Iterator[tuple[str, list[tuple[Row, dict[str, Any]]]]]:
    """The rows of each spec that are points of a sweep and were not replayed, with their points."""
    groups: dict[str, list[tuple[Row, dict[str, Any]]]] = defaultdict(list)
    for row in rows:
        if row.point and row.replay_of is None and row.rejudge_of is None:
            with suppress(ValueError):  # a stranger's need be no point
                groups[str(row.name)].append((row, point_of(row.point)))
    for name, members in sorted(groups.items()):
        if 1 < len(members) <= MOST_POINTS:
            yield name, sorted(members, key=lambda one: [_order(value) for value in one[1].values()])


def _order(value: Any) -> tuple[int, float, str]:
    """Numbers by size, before all else by its words."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (0, float(value), "") if is_number else (1, 0.0, str(value))


def _sweep(name: str, lines: Sequence[SweepLine]) -> list[SweepPoints]:
    """A sweep with the keys that differ in it; none where only the seed does."""
    names = list(dict.fromkeys(key for line in lines for key in line.point if key != SEED))
    keys = [key for key in names if len({str(line.point.get(key)) for line in lines}) > 1]
    return [SweepPoints(name, keys, lines)] if keys else []


def short_names(keys: Collection[str]) -> dict[str, str]:
    """For each dotted key the shortest end of it that no other key has."""
    ends = Counter(end for key in keys for end in _ends(key))
    return {key: next((end for end in _ends(key) if ends[end] == 1), key) for key in keys}


def _ends(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[at:]) for at in range(len(parts) - 1, -1, -1)]
