"""Print the ranked runs of a registry and the training of their models, for `nip-run leaderboard --from`."""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.exit_codes import ExitCode
from runner.base.text import in_one_line
from runner.cli.terminal.leaderboard import print_leaderboard
from runner.cli.terminal.output import note, print_json, say, wrap_for_stderr
from runner.registry.board.board import PublishedRow, registry_board
from runner.registry.board.wording import describe_omissions, describe_training_games, explain_tiers
from runner.registry.lineage.descriptions import explain_marks
from runner.registry.transports.locations import connect_to_read

TIER, TRAINED_ON, MARKS = "tier", "trained on", "marks"
"""Columns that only leaderboards of registries have."""
MAX_MARKS = 2
"""Maximum number of marks in a row; `--json` has all marks."""


def show_published(address: str, benchmark: str | None, *, as_json: bool) -> int:
    """Print the leaderboard of a registry on stdout, and notes about omitted runs on stderr."""
    with connect_to_read(address) as registry:
        board = registry_board(registry, benchmark)
    if as_json:
        print_json(board.to_json())
        return ExitCode.DONE
    marks_legend = explain_marks(mark for row in board.rows for mark in row.marks[:MAX_MARKS])
    if board.rows:
        columns = [name for name in (TIER, TRAINED_ON, MARKS) if any(_extra_cells(row)[name] for row in board.rows)]
        print_leaderboard(board.rows, columns, _extra_cells)
        note(wrap_for_stderr(explain_tiers(board)))
        if marks_legend is not None:
            note(wrap_for_stderr(marks_legend))
    else:
        say(f"no benchmark run is published in {board.where}")
    note(*describe_omissions(board))
    return ExitCode.DONE


def _extra_cells(row: PublishedRow) -> dict[str, str]:
    """Return the cells of a row that differ from those of a local leaderboard."""
    return {
        "run": row.release.removeprefix("run/"),
        TIER: row.tier,
        TRAINED_ON: describe_training_games(row.effort),
        MARKS: _format_marks(row.marks),
    }


def _format_marks(marks: Sequence[str]) -> str:
    hidden = len(marks) - MAX_MARKS
    return in_one_line("; ".join([*marks[:MAX_MARKS], *([f"and {hidden} more"] if hidden > 0 else [])]))
