"""`nip-run leaderboard --from`: what is published in a registry, ranked, with the training behind each row."""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.exit_codes import ExitCode
from runner.base.text import in_one_line
from runner.cli.terminal.board_lists import show_lists
from runner.cli.terminal.output import note, print_json, say, wrapped
from runner.registry.board.board import PublishedRow, registry_board
from runner.registry.board.wording import describe_omissions, describe_training_games, explain_tiers
from runner.registry.lineage.descriptions import legend
from runner.registry.transports.locations import connect_to_read

TIER, TRAINED, MARKS = "tier", "trained on", "marks"
_FIRST = 2
"""Marks that stand in a row; `--json` has all."""


def show_published(where: str, benchmark: str | None, *, as_json: bool) -> int:
    """The board of a registry, on stdout; what it leaves out, on stderr."""
    with connect_to_read(where) as registry:
        board = registry_board(registry, benchmark)
    if as_json:
        print_json(board.to_json())
        return ExitCode.DONE
    told = legend(mark for row in board.rows for mark in row.marks[:_FIRST])
    if board.rows:
        columns = [name for name in (TIER, TRAINED, MARKS) if any(_cells(row)[name] for row in board.rows)]
        show_lists(board.rows, columns, _cells)
        note(wrapped(explain_tiers(board)))
        if told is not None:
            note(wrapped(told))
    else:
        say(f"no benchmark is published in {board.where}")
    for line in describe_omissions(board):
        note(line)
    return ExitCode.DONE


def _cells(row: PublishedRow) -> dict[str, str]:
    """Return the cells of a row that a board of a results folder does not have."""
    return {
        "run": row.release.removeprefix("run/"),
        TIER: row.tier,
        TRAINED: describe_training_games(row.effort),
        MARKS: _marks(row.marks),
    }


def _marks(marks: Sequence[str]) -> str:
    more = len(marks) - _FIRST
    return in_one_line("; ".join([*marks[:_FIRST], *([f"and {more} more"] if more > 0 else [])]))
