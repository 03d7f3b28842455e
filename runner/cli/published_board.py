"""`nip-run leaderboard --from`: what is published in a registry, ranked, with the training behind each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.cli.board_lists import show_lists
from runner.cli.output import note, print_json, say, wrapped
from runner.exit_codes import ExitCode
from runner.registry.board import RegistryBoard, registry_board
from runner.registry.marks import legend
from runner.text import counted, in_one_line
from runner.transports.connect import to_read

TIER, TRAINED, MARKS = "tier", "trained on", "marks"
_FIRST = 2
"""Marks that stand in a row; `--json` has all."""


def show_published(where: str, benchmark: str | None, *, as_json: bool) -> int:
    """The board of a registry, on stdout; what it leaves out, on stderr."""
    with to_read(where) as registry:
        board = registry_board(registry, benchmark)
    if as_json:
        print_json(board.to_json())
        return ExitCode.DONE
    told = legend(mark for row in board.rows for mark in row["marks"][:_FIRST])
    for row in board.rows:
        row["shown_as"] = row["release"].removeprefix("run/")
        row[TRAINED] = _effort(row["effort"])
        row[MARKS] = _marks(row["marks"])
    if board.rows:
        columns = [name for name in (TIER, TRAINED, MARKS) if any(row[name] for row in board.rows)]
        show_lists(board.rows, columns)
        first = board.rows[0]["release"]
        said = (
            "self-reported: a board replays no journal; that numbers follow from their records does not show that the "
            f"games were played. Of one run this shows more: nip-run verify {first} --from {board.where}"
        )
        note(wrapped(said))
        if told is not None:
            note(wrapped(told))
    else:
        say(f"no benchmark is published in {board.where}")
    _tell(board)
    return ExitCode.DONE


def _effort(effort: Mapping[str, Any]) -> str:
    """How many games all training behind a run learnt from."""
    rollouts = effort["rollouts"] or 0
    if "rollouts" in effort["at_least"]:
        return f"at least {counted(rollouts, 'rollout')}" if rollouts else "not known"
    return counted(rollouts, "rollout") if rollouts else ""


def _marks(marks: Sequence[str]) -> str:
    more = len(marks) - _FIRST
    return in_one_line("; ".join([*marks[:_FIRST], *([f"and {more} more"] if more > 0 else [])]))


def _tell(board: RegistryBoard) -> None:
    for release, why in board.left_out:
        note(f"left out: {release}: {why}")
    for cycle in board.cycles:
        note(f"these say that their models come from each other, which cannot be: {', '.join(cycle)}")
    hidden = {"private": board.private, "yanked": board.yanked, "of an older version": board.older}
    told = [f"{number} {what}" for what, number in hidden.items() if number]
    if told:
        note(f"not shown: {', '.join(told)}")
