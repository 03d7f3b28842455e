"""What a registry's board says of itself and of its rows, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.base.text import counted
from runner.registry.board.board import TIER, RegistryBoard
from runner.registry.transports.listing import ReleaseEntry

_SELF_REPORTED = (
    "self-reported: a board replays no journal; that numbers follow from their records does not show that the games "
    "were played"
)


def tiers_in_words(board: RegistryBoard) -> str:
    """What is known of the rows beyond what they say, whose word that is, and what shows more of one run."""
    told = {row.tier.partition(" ")[0] for row in board.rows}
    said = [
        f"recomputed: {board.where} says that it has computed the numbers again from the journal; that the games were "
        "played is the publisher's word"
        if "recomputed" in told else "",
        f"reproduced: {board.where} says that others, as many as it counts, have published another play with the same "
        "result, whose numbers it has computed, too"
        if "reproduced" in told else "",
        _SELF_REPORTED if TIER in told else "",
    ]  # fmt: skip
    shown = "; ".join(line for line in said if line)
    return f"{shown}. Of one run this shows more: {verifying(board, board.rows[0].release)}"


def tier_in_words(entry: ReleaseEntry, where: str) -> str | None:
    """How far a server says that it has checked one run; None where it says nothing, or is no server."""
    return f"{entry.vouched}, says {where}" if entry.vouched else None


def verifying(board: RegistryBoard, release: str) -> str:
    """The command that looks closer at a release of a board."""
    return f"nip-run verify {release} --from {board.where}"


def games_learnt_from(effort: Mapping[str, Any]) -> str:
    """How many games all training behind a run learnt from."""
    rollouts = effort["rollouts"] or 0
    if "rollouts" in effort["at_least"]:
        return f"at least {counted(rollouts, 'rollout')}" if rollouts else "not known"
    return counted(rollouts, "rollout") if rollouts else ""


def not_shown(board: RegistryBoard) -> list[str]:
    """What a board leaves out, a line each, with why."""
    told = [f"left out: {release}: {why}" for release, why in board.left_out]
    told += [
        f"these say that their models come from each other, which cannot be: {', '.join(cycle)}"
        for cycle in board.cycles
    ]
    hidden = {"private": board.private, "yanked": board.yanked, "of an older version": board.older}
    counts = [f"{number} {what}" for what, number in hidden.items() if number]
    return [*told, f"not shown: {', '.join(counts)}"] if counts else told
