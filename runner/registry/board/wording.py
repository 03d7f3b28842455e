"""Texts that explain the board of a registry and its rows, for the command line and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.base.text import counted
from runner.registry.board.board import DEFAULT_TIER, RegistryBoard
from runner.registry.transports.listing import ReleaseEntry

_SELF_REPORTED = (
    "self-reported: the board replays no journal; metrics that follow from their records do not prove that the games "
    "were played"
)


def explain_tiers(board: RegistryBoard) -> str:
    """Explain the tiers (levels of verification) of a board's rows, with the command that checks a run further."""
    tiers = {row.tier.partition(" ")[0] for row in board.rows}
    explanations = [
        f"recomputed: {board.where} says that it recomputed the metrics from the journal; only the publisher vouches "
        "that the games were played"
        if "recomputed" in tiers else "",
        f"reproduced: {board.where} says that others (their number is in the tier) published another run with the "
        "same result, whose metrics it recomputed too"
        if "reproduced" in tiers else "",
        _SELF_REPORTED if DEFAULT_TIER in tiers else "",
    ]  # fmt: skip
    text = "; ".join(line for line in explanations if line)
    return f"{text}. To check one run further: nip-run verify {board.rows[0].release} --from {board.where}"


def describe_tier(entry: ReleaseEntry, address: str) -> str | None:
    """Return the level of verification that the server at `address` states for a run; None if it states none."""
    return f"{entry.tier}, says {address}" if entry.tier else None


def describe_training_games(effort: Mapping[str, Any]) -> str:
    """Describe how many games the models of a run were trained on in total."""
    rollouts = effort["rollouts"] or 0
    if "rollouts" in effort["at_least"]:
        return f"at least {counted(rollouts, 'rollout')}" if rollouts else "not known"
    return counted(rollouts, "rollout") if rollouts else ""


def describe_omissions(board: RegistryBoard) -> list[str]:
    """Return lines about the releases that a board omits, with reasons."""
    lines = [f"left out: {release}: {reason}" for release, reason in board.left_out]
    hidden = {"private": board.private, "yanked": board.yanked, "of an older version": board.older}
    counts = [f"{number} {kind}" for kind, number in hidden.items() if number]
    return [*lines, f"not shown: {', '.join(counts)}"] if counts else lines
