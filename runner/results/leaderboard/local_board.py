"""Read the rows of a results folder's leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from runner.base.errors import NipRunError, UsageError
from runner.base.text import comma_join, counted, did_you_mean
from runner.results.leaderboard.model import LeaderboardRow, rows_of_view
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.schema import LEADERBOARD_SQL
from runner.results.leaderboard.unranked import Unranked


def local_rows(results: Results, benchmark: str | None = None) -> list[LeaderboardRow]:
    """Return the rows of the view `leaderboard` in its order; with `benchmark`, only the rows of that benchmark.

    Raises:
        UsageError: the board has no run of the benchmark.
        LeaderboardError: the board cannot be read.
    """
    if benchmark is not None:
        _check_benchmark(results, benchmark)
    where, values = ("WHERE benchmark = ?", [benchmark]) if benchmark else ("", [])
    return rows_of_view(*results.board.query(f"SELECT * FROM ({LEADERBOARD_SQL}) {where}", values, is_internal=True))


def _check_benchmark(results: Results, name: str) -> None:
    _, rows = results.board.query("SELECT DISTINCT benchmark FROM runs WHERE benchmark IS NOT NULL ORDER BY 1")
    benchmarks = [str(row[0]) for row in rows]
    if name in benchmarks:
        return
    available = f"; choose one of: {comma_join(benchmarks)}" if benchmarks else missing_board_hint(results)
    raise UsageError(f"no benchmark {name!r} in {results.path}{did_you_mean(name, benchmarks) or available}")


def missing_board_hint(results: Results) -> str:
    """Return advice to rebuild the board if a results folder has runs but no board; otherwise an empty text."""
    runs = 0 if results.board.path.is_file() else len(list(results.board.runs()))
    if not runs:
        return ""
    return f"; there is no board for {counted(runs, 'run folder')}. Rebuild it with: {results.board.rebuild_command}"


def with_stop_reasons(rows: Sequence[LeaderboardRow], results: Results) -> list[LeaderboardRow]:
    """Return the rows. The `reason` of interrupted runs says why they stopped, such as `stopped by its budget`."""
    from runner.results.manifest import Status

    return [row if row.status != Status.INTERRUPTED else _with_stop_reason(row, results) for row in rows]


def _with_stop_reason(row: LeaderboardRow, results: Results) -> LeaderboardRow:
    with suppress(NipRunError):  # the board may have runs whose folders were removed
        if reason := results.run(row.run_id).manifest().why_stopped:
            return replace(row, reason=Unranked.UNFINISHED.format(status=reason))
    return row
