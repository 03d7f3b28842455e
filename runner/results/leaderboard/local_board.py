"""The rows of the board of a results folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from runner.base.errors import NipRunError, UsageError
from runner.base.text import comma_join, did_you_mean
from runner.results.leaderboard.model import LeaderboardRow, Unranked, rows_of_view
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Status


def local_rows(results: Results, benchmark: str | None = None) -> list[LeaderboardRow]:
    """Return the rows of the view `leaderboard`, in its order; only those of one benchmark if it is named.

    Raises:
        UsageError: no run is on the board for the benchmark.
        LeaderboardError: the board cannot be read.
    """
    if benchmark is not None:
        _check_benchmark(results, benchmark)
    where, values = ("WHERE benchmark = ?", [benchmark]) if benchmark else ("", [])
    return rows_of_view(*results.board.query(f"SELECT * FROM leaderboard {where}", values))


def _check_benchmark(results: Results, name: str) -> None:
    _, rows = results.board.query("SELECT DISTINCT benchmark FROM runs WHERE benchmark IS NOT NULL ORDER BY 1")
    known = [str(row[0]) for row in rows]
    if name in known:
        return
    there = did_you_mean(name, known) or (f"; there are: {comma_join(known)}" if known else without_board(results))
    raise UsageError(f"no benchmark {name!r} in {results.path}{there}")


def without_board(results: Results) -> str:
    """Return advice for a results folder that has runs and no board; else an empty text."""
    runs = len(list(results.board.runs())) if not results.board.path.is_file() else 0
    return f"; {runs} run folders are there, and no board: {results.board.rebuilding}" if runs else ""


def with_stop_reasons(rows: Sequence[LeaderboardRow], results: Results) -> list[LeaderboardRow]:
    """Return rows that say of an interrupted run why it stopped, such as its budget."""
    return [row if row.status != Status.INTERRUPTED else _with_stop_reason(row, results) for row in rows]


def _with_stop_reason(row: LeaderboardRow, results: Results) -> LeaderboardRow:
    with suppress(NipRunError):  # the board may have runs whose folders are gone
        if why := results.run(row.run_id).manifest().why_stopped:
            return replace(row, reason=Unranked.UNFINISHED.format(status=why))
    return row
