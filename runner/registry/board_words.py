"""What a registry's board says of itself and of its rows, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runner.registry.board import RegistryBoard
from runner.releases.reference import Kind, Reference
from runner.text import counted
from runner.transports.registry import Registry

SELF_REPORTED = (
    "self-reported: a board replays no journal; that numbers follow from their records does not show that the games "
    "were played. Of one run this shows more"
)


_TIERS = {
    "recomputed": "it has computed the numbers again from the journal",
    "reproduced": "others, too, have published a play of the same game with the same result",
}


def said_by_server(tiers: Iterable[str], where: str) -> str | None:
    """What tiers mean that a server says of its runs, and that it is the server that says so; None of none."""
    found = {tier.partition(" ")[0] for tier in tiers}
    meanings = [f"{tier}: {meaning}" for tier, meaning in _TIERS.items() if tier in found]
    if not meanings:
        return None
    return f"the tier is what {where} says, and nothing that was checked here; {'; '.join(meanings)}"


def tier_in_words(registry: Registry, reference: Reference, sha256: str) -> str | None:
    """How far a server says that it has checked one run; None where it says nothing, or is no server."""
    if reference.kind != Kind.RUN:
        return None
    tier = registry.vouched(f"{str(reference).replace('@', '/')}/").get(sha256)
    return None if tier is None else f"{tier}, says {registry.where}"


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
