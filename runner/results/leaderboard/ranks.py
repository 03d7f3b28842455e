"""The rows of the board into ranges of ranks: who is not told apart from a leader is tied with it.

Ranks are made when a run is put on the board, and read when it is asked. Each test of a run against a leader is kept,
so that one more run costs one more test, and not all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from runner.results.leaderboard.model import RankRange, rank
from runner.results.leaderboard.schema import OF_GROUP, OF_PAIR
from runner.statistics.paired_groups import Pairs

if TYPE_CHECKING:
    import duckdb

AT_ONCE = 64
"""Runs whose groups stand in memory together."""

_RANKED = """
SELECT benchmark, list, run_id, accuracy, ci_low, ci_high, stopped IS NOT NULL, game_sha256 FROM leaderboard
WHERE reason IS NULL ORDER BY benchmark, list, run_id
"""
"""The runs that rank, list by list. One query, since the view is expensive to plan."""

_PAIRS = f"""
WITH systems AS (SELECT unnest($systems) AS system, unnest($runs) AS run_id), shares AS (
    SELECT
        s.system, r.datapoint_id, any_value(d."group") AS "group", avg(r.correct::INT) AS accuracy, count(*) AS plays,
        coalesce(var_samp(r.correct::INT), 0) AS variance
    FROM systems s
    JOIN rollouts r ON r.run_id = s.run_id
    JOIN datapoints d ON d.run_id = r.run_id AND d.datapoint_id = r.datapoint_id
    WHERE r.correct IS NOT NULL GROUP BY s.system, r.datapoint_id
), grouped AS (
    SELECT b.system, a."group", {OF_GROUP}
    FROM shares a JOIN shares b ON b.datapoint_id = a.datapoint_id AND b.system <> a.system
    WHERE a.system = $leader GROUP BY b.system, a."group"
)
SELECT system, {OF_PAIR} FROM grouped GROUP BY system
"""
Ask = Callable[[str, dict[str, object]], Sequence[Sequence[Any]]]
"""A question to the board with its parameters into its rows."""


@dataclass(frozen=True)
class RankedSystem:
    """A system that ranks: the runs of one task that are pooled as its repeats, and the interval of its accuracy."""

    runs: Sequence[str]
    low: float | None
    high: float | None
    stopped: bool
    """Whether a run of it may have stopped once it was decided, so that no test of a fixed number of games holds."""
    game: str | None = None
    """The hash of what its games share: two samples of one system have the same, and neither is better."""

    def is_apart_from(self, other: RankedSystem) -> bool:
        """Whether their intervals do not overlap."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return False
        return self.high < other.low or other.high < self.low


def p_values(ask: Ask, leader: str, others: Sequence[str], systems: Mapping[str, RankedSystem]) -> Iterator[float]:
    """Of systems against a leader; see `Pairs`. Where one may have stopped, only if their intervals do not overlap."""
    for start in range(0, len(others), AT_ONCE):
        asked = others[start : start + AT_ONCE]
        runs = [(name, run) for name in (leader, *asked) for run in systems[name].runs]
        names, ids = ([row[column] for row in runs] for column in (0, 1))
        rows = ask(_PAIRS, {"leader": leader, "systems": names, "runs": ids})
        found = {name: _p(Pairs(*lists), systems[leader], systems[name]) for name, *lists in rows}
        yield from (found.get(name, 1.0) for name in asked)


def _p(pairs: Pairs, leader: RankedSystem, other: RankedSystem) -> float:
    if leader.game is not None and leader.game == other.game:
        return 1.0
    if not (leader.stopped or other.stopped):
        return pairs.test().p
    return pairs.at_any_time()[1] if leader.is_apart_from(other) else 1.0


def rank_rows(connection: duckdb.DuckDBPyConnection) -> None:
    """Give every row of the board that ranks its range of ranks."""
    rows = connection.execute(_RANKED).fetchall()
    tests = _Tests(connection, {run: RankedSystem([run], *facts) for _, _, run, _, *facts in rows})
    ranks: dict[str, RankRange] = {}
    for _, ranked in groupby(rows, key=lambda row: row[:2]):
        ranks |= rank(((run, accuracy) for _, _, run, accuracy, *_ in ranked), tests.p_values)
    connection.begin()
    connection.execute("DELETE FROM ranks")
    _insert(connection, "ranks", [(run, *both) for run, both in ranks.items()])
    connection.execute("DELETE FROM rank_tests")
    _insert(connection, "rank_tests", [(leader, run, p) for (leader, run), p in tests.used.items()])
    connection.commit()


class _Tests:
    """The p-values of runs against leaders: those that are known, and those that have to be made."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, systems: Mapping[str, RankedSystem]) -> None:
        self._connection = connection
        self._systems = systems
        known = connection.execute("SELECT leader, run_id, p FROM rank_tests").fetchall()
        self._known = {(leader, run): p for leader, run, p in known}
        self.used: dict[tuple[str, str], float] = {}

    def p_values(self, leader: str, others: Sequence[str]) -> list[float]:
        missing = [run for run in others if (leader, run) not in self._known]
        made = p_values(self._ask, leader, missing, self._systems)
        self._known |= {(leader, run): p for run, p in zip(missing, made, strict=True)}
        found = {(leader, run): self._known[leader, run] for run in others}
        self.used |= found
        return list(found.values())

    def _ask(self, question: str, parameters: dict[str, object]) -> list[Any]:
        return self._connection.execute(question, parameters).fetchall()


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[tuple[object, ...]]) -> None:
    if rows:
        columns = [list(column) for column in zip(*rows, strict=True)]
        connection.execute(f"INSERT INTO {table} SELECT {', '.join(['unnest(?)'] * len(columns))}", columns)
