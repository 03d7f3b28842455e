"""The board of a results folder as lists, one a task, each row with why it has no rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import groupby
from typing import Any

from runner.base.errors import NipRunError, UsageError
from runner.base.text import comma_join, did_you_mean
from runner.results.answer_origins import NO_OWN_SAMPLE
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Status

_SELECTION = ("split", "limit", "filter", "group_by")


def local_rows(results: Results, benchmark: str | None = None) -> list[dict[str, Any]]:
    """The rows of the view `leaderboard`, in its order; of one benchmark, where that is named.

    Raises:
        UsageError: no run is on the board for the benchmark.
        LeaderboardError: the board cannot be read.
    """
    if benchmark is not None:
        _check_benchmark(results, benchmark)
    where, values = ("WHERE benchmark = ?", [benchmark]) if benchmark else ("", [])
    columns, rows = results.board.query(f"SELECT * FROM leaderboard {where}", values)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _check_benchmark(results: Results, name: str) -> None:
    _, rows = results.board.query("SELECT DISTINCT benchmark FROM runs WHERE benchmark IS NOT NULL ORDER BY 1")
    known = [str(row[0]) for row in rows]
    if name in known:
        return
    there = did_you_mean(name, known) or (f"; there are: {comma_join(known)}" if known else without_board(results))
    raise UsageError(f"no benchmark {name!r} in {results.path}{there}")


def without_board(results: Results) -> str:
    """What to do where there are runs and no board; nothing where that is not so."""
    runs = len(list(results.board.runs())) if not results.board.path.is_file() else 0
    return f"; {runs} run folders are there, and no board: {results.board.rebuilding}" if runs else ""


def told_reason(row: Mapping[str, Any], results: Results) -> str | None:
    """Why a run does not rank; of one that its budget stopped, that."""
    reason: str | None = row["reason"]
    if row["status"] != Status.INTERRUPTED:
        return reason
    with suppress(NipRunError):  # the board may have runs whose folders are gone
        why = results.run(row["run_id"]).manifest().why_stopped
        return f"unfinished: {why}" if why else reason
    return reason


def shared_in_words(row: Mapping[str, Any]) -> list[str]:
    """How many verdicts of a row come from answers of another run, unless its `reason` says so."""
    if not row["shared"] or (row["reason"] or "").startswith((NO_OWN_SAMPLE, "replay of ")):
        return []
    return [f"{row['shared']} of {row['n']} verdicts come from answers that it shares with {row['shared_with']}"]


def lists_of(rows: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The rows of a board, which stand in its order, as a list for each task of each benchmark."""
    return [list(listed) for _, listed in groupby(rows, key=lambda row: (row["benchmark"], row["list"]))]


def selection_in_words(row: Mapping[str, Any]) -> str:
    """Which of its dataset a task takes: `split test, group by problem`."""
    return ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in _SELECTION if row[name] is not None)
