"""Compute the ranks of a board's rows: 95 % confidence sets, from paired tests of the rows of one task.

Ranks are computed when a run is added to the board. The board stores the p-value of each pair of runs, so a new run
needs only the tests of its own pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from runner.results.leaderboard.model import RankRange, rank
from runner.results.leaderboard.schema import GROUP_TERMS_SQL, PAIR_TERMS_SQL
from runner.statistics.paired_groups import Pairs
from runner.statistics.rank_sets import PAIR_LEVEL

if TYPE_CHECKING:
    import duckdb

AT_ONCE, VERDICTS_AT_ONCE = 64, 100_000
"""Limits of the memory of a query, which compares one system with others: at most `AT_ONCE` others, or more if they
have at most `VERDICTS_AT_ONCE` verdicts in total. Fewer queries save time, since each reads all rollouts."""

MEMORY = 128 << 20
"""The memory limit while ranks are computed. DuckDB spills larger data to files."""

_RANKED_RUNS_SQL = """
SELECT benchmark, list, run_id, accuracy, ci_low, ci_high, stopped IS NOT NULL, game_sha256, n FROM leaderboard
WHERE reason IS NULL ORDER BY benchmark, list, run_id
"""
"""SQL for the ranked runs of all lists. A single query saves time, since the view is expensive to plan."""

_PAIRS_SQL = f"""
WITH systems AS (SELECT unnest($systems) AS system, unnest($runs) AS run_id), shares AS (
    SELECT
        s.system, r.datapoint_id, any_value(d."group") AS "group", avg(r.correct::INT) AS accuracy, count(*) AS plays,
        coalesce(var_samp(r.correct::INT), 0) AS variance
    FROM systems s
    JOIN rollouts r ON r.run_id = s.run_id
    JOIN datapoints d ON d.run_id = r.run_id AND d.datapoint_id = r.datapoint_id
    WHERE r.correct IS NOT NULL GROUP BY s.system, r.datapoint_id
), grouped AS (
    SELECT b.system, a."group", {GROUP_TERMS_SQL}
    FROM shares a JOIN shares b ON b.datapoint_id = a.datapoint_id AND b.system <> a.system
    WHERE a.system = $hub GROUP BY b.system, a."group"
)
SELECT system, {PAIR_TERMS_SQL} FROM grouped GROUP BY system
"""
RunQuery = Callable[[str, dict[str, object]], Sequence[Sequence[Any]]]
"""A function that runs a SQL query with parameters and returns the rows."""


@dataclass(frozen=True)
class RankedSystem:
    """A ranked system: its runs, whose rollouts are pooled, and the interval of its accuracy."""

    runs: Sequence[str]
    low: float | None
    high: float | None
    stopped: bool
    """Whether a stopping rule ended one of its runs, so that tests for a fixed number of games are invalid."""
    game: str | None = None
    """The hash of what its games have in common. Two systems with the same hash are one system, and never separated."""
    verdicts: int | None = None
    """The number of its verdicts; None if unknown."""

    def is_separate_from(self, other: RankedSystem) -> bool:
        """Return whether the intervals of the two systems do not overlap."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return False
        return self.high < other.low or other.high < self.low


def pair_p_values(
    run_query: RunQuery, pairs: Sequence[tuple[str, str]], systems: Mapping[str, RankedSystem]
) -> dict[tuple[str, str], float]:
    """Return the p-value of each pair of systems. The first system of a pair is placed before the second.

    If the test favors the second system, p is 1: with lost games, two accuracies may come from different datapoints. If
    a stopping rule ended a run of one of the two, p is 1 unless their intervals do not overlap. A query compares one
    system, the hub, with many others, so a new system on a board needs one query.
    """
    untested: dict[str, set[str]] = {name: set() for pair in pairs for name in pair}
    for first, second in pairs:
        untested[first].add(second)
        untested[second].add(first)
    tested: dict[frozenset[str], tuple[float, str]] = {}
    while any(untested.values()):
        hub = max(sorted(untested), key=lambda name: len(untested[name]))
        for name, result in _test_pairs(run_query, hub, sorted(untested[hub]), systems):
            tested[frozenset((hub, name))] = result
            untested[name].discard(hub)
        untested[hub] = set()
    results = {pair: tested[frozenset(pair)] for pair in pairs}
    return {pair: 1.0 if favored == pair[1] else p for pair, (p, favored) in results.items()}


def _test_pairs(
    run_query: RunQuery, hub: str, names: Sequence[str], systems: Mapping[str, RankedSystem]
) -> Iterator[tuple[str, tuple[float, str]]]:
    """Yield each name with the result of its test against `hub`: the p-value, and the name of the favored system."""
    most_verdicts = max(systems[name].verdicts or VERDICTS_AT_ONCE for name in names)
    size = max(AT_ONCE, VERDICTS_AT_ONCE // most_verdicts)
    for start in range(0, len(names), size):
        batch = names[start : start + size]
        runs = [(name, run) for name in (hub, *batch) for run in systems[name].runs]
        system_names, run_ids = ([row[column] for row in runs] for column in (0, 1))
        rows = run_query(_PAIRS_SQL, {"hub": hub, "systems": system_names, "runs": run_ids})
        pairs_by_name = {name: Pairs(*lists) for name, *lists in rows}
        for name in batch:
            if (pairs := pairs_by_name.get(name)) is None:
                yield name, (1.0, hub)
            else:
                favored = name if sum(pairs.sums) > 0 else hub
                yield name, (_p_value(pairs, systems[hub], systems[name]), favored)


def _p_value(pairs: Pairs, first: RankedSystem, second: RankedSystem) -> float:
    if first.game is not None and first.game == second.game:
        return 1.0
    if not (first.stopped or second.stopped):
        return pairs.test(level=PAIR_LEVEL).p
    return pairs.at_any_time()[1] if first.is_separate_from(second) else 1.0


def rank_rows(connection: duckdb.DuckDBPyConnection) -> None:
    """Compute the ranks of all rankable rows of the board, and store them with the p-values."""
    connection.execute(f"SET memory_limit = '{MEMORY}B'")
    rows = connection.execute(_RANKED_RUNS_SQL).fetchall()
    systems = {run: RankedSystem([run], *facts) for _, _, run, _, *facts in rows}
    tests = _StoredTests(connection, systems)
    ranks: dict[str, RankRange] = {}
    for _, rows_of_list in groupby(rows, key=lambda row: row[:2]):
        ranks |= rank(((run, accuracy) for _, _, run, accuracy, *_ in rows_of_list), tests.p_values)
    connection.begin()
    connection.execute("DELETE FROM ranks")
    _insert(connection, "ranks", [(run, *rank_range) for run, rank_range in ranks.items()])
    connection.execute("DELETE FROM rank_tests")
    _insert(connection, "rank_tests", [(*pair, p) for pair, p in sorted(tests.used.items())])
    connection.commit()


class _StoredTests:
    """The p-values of pairs of runs, which are computed if the board does not have them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, systems: Mapping[str, RankedSystem]) -> None:
        self._connection = connection
        self._systems = systems
        rows = connection.execute("SELECT leader, run_id, p FROM rank_tests").fetchall()
        self._p_values = {_key(first, second): p for first, second, p in rows}
        self.used: dict[tuple[str, str], float] = {}
        """The p-values of the pairs that are still compared, to store on the board."""

    def p_values(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        keys = [_key(*pair) for pair in pairs]
        new_pairs = [pair for pair, key in zip(pairs, keys, strict=True) if key not in self._p_values]
        new_p_values = pair_p_values(
            lambda *query: self._connection.execute(*query).fetchall(), new_pairs, self._systems
        )
        self._p_values |= {_key(*pair): p for pair, p in new_p_values.items()}
        self.used |= {key: self._p_values[key] for key in keys}
        return [self._p_values[key] for key in keys]


def _key(first: str, second: str) -> tuple[str, str]:
    """Return the pair in alphabetical order."""
    return (first, second) if first < second else (second, first)


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[tuple[object, ...]]) -> None:
    if rows:
        columns = [list(column) for column in zip(*rows, strict=True)]
        connection.execute(f"INSERT INTO {table} SELECT {', '.join(['unnest(?)'] * len(columns))}", columns)
