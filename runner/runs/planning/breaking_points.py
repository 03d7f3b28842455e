"""What ends a run that is larger than planned, from how many games on, and what to do then."""

from __future__ import annotations

from dataclasses import dataclass

DAY = 86400.0


@dataclass(frozen=True)
class BreakingPoints:
    """One thing that a run comes to the end of."""

    what: str
    games: int
    """From so many games on."""
    do: str


@dataclass(frozen=True)
class Room:
    """What there is, and what a game takes of it."""

    games_a_day: int
    """As many as a run plays in a day, with its start and its end."""
    disk_bytes: float
    free_bytes: int
    usd: float | None
    budget_usd: float | None
    calls: float
    budget_calls: int | None
    tokens: float
    budget_tokens: int | None


def breaks_of(room: Room) -> tuple[BreakingPoints, ...]:
    """The first first."""
    found = [
        BreakingPoints(
            "it takes more than a day", room.games_a_day,
            "more of what bounds it (above); shards on more machines, where that is cores or the writer",
        ),
        BreakingPoints(
            "the disk is full of journal, tables and fine-tune files", int(room.free_bytes / room.disk_bytes),
            "--results on a larger disk; shards, each on its own; fine_tune=null, and `nip-run export` afterwards",
        ),
    ]  # fmt: skip
    for what, most, each in (
        ("budget.usd", room.budget_usd, room.usd),
        ("budget.completions", room.budget_calls, room.calls),
        ("budget.tokens", room.budget_tokens, room.tokens),
    ):
        if most is not None and each:
            found.append(BreakingPoints(f"{what} is used up", int(most / each), f"raise {what}, or play fewer games"))
    return tuple(sorted(found, key=lambda one: one.games))
