"""A protocol as a schedule: who speaks in each round, in which channel, who hears it, and whether it can decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.game.protocols.protocol import Protocol

MAX_TRIED = 16
"""How many numbers of rounds are tried in either direction."""


@dataclass(frozen=True)
class Speech:
    """One agent's message in one channel."""

    agent: str
    channel: str
    heard_by: tuple[str, ...]


@dataclass(frozen=True)
class ScheduledRound:
    """What one round can hold. `draw` is `one` where one of the speakers is drawn by the rollout's seed."""

    draw: str
    speech: tuple[Speech, ...]
    may_decide: tuple[str, ...]


@dataclass(frozen=True)
class Stretch:
    """One cycle of rounds, `first` to `last`, which is repeated up to round `until`."""

    first: int
    last: int
    until: int


def schedule(protocol: Protocol) -> list[ScheduledRound]:
    """Every round of the longest game, in order."""
    return [_round(protocol, number) for number in range(protocol.max_message_rounds)]


def _round(protocol: Protocol, number: int) -> ScheduledRound:
    step, channels = protocol.step(number), protocol.file.channels
    speech = tuple(
        Speech(agent, name, tuple(member for member in channels[name].members if member != agent))
        for agent, names in step.speak.items()
        for name in names
    )
    decides = (protocol.verifier_name,) if protocol.can_ever_decide(number) else ()
    return ScheduledRound(step.draw if len(step.speak) > 1 else "all", speech, decides)


def folded(rounds: Sequence[ScheduledRound], period: int) -> list[Stretch]:
    """The rounds as cycles of `period` rounds, each with its repeats."""
    found: list[Stretch] = []
    for first in range(0, len(rounds), period):
        cycle = rounds[first : first + period]
        before = found[-1] if found else None
        if before is not None and cycle == rounds[before.first : before.first + len(cycle)]:
            found[-1] = replace(before, until=first + len(cycle) - 1)
        else:
            last = first + len(cycle) - 1
            found.append(Stretch(first, last, last))
    return found


def unheard(protocol: Protocol) -> dict[int, tuple[str, ...]]:
    """The rounds with speakers whose words reach no decision: not by themselves, and not by anybody who passes them on.

    An agent reaches a decision from a round on, if it is the verifier and may decide in it or later, or if somebody
    who hears it later does.
    """
    reaching: set[str] = set()
    found: dict[int, tuple[str, ...]] = {}
    for number in reversed(range(protocol.max_message_rounds)):
        speakers = protocol.can_be_active(number)
        useful = {
            agent
            for agent, channels in speakers.items()
            if (agent == protocol.verifier_name and protocol.can_ever_decide(number))
            or any(reaching.intersection(protocol.file.channels[name].members) for name in channels)
        }
        lost = tuple(agent for agent in speakers if agent not in useful)
        if lost:
            found[number] = lost
        reaching |= useful
    return dict(sorted(found.items()))


def rounds_without_waste(protocol: Protocol) -> list[int]:
    """The nearest numbers of rounds, below and above the protocol's own, in which every word reaches a decision."""
    own, period = protocol.max_message_rounds, min(len(protocol.steps), MAX_TRIED)
    below = (n for n in range(own - 1, max(0, own - period), -1) if _is_sound(protocol, n))
    above = (n for n in range(own + 1, own + period) if _is_sound(protocol, n))
    return [n for n in (next(below, None), next(above, None)) if n is not None]


def _is_sound(protocol: Protocol, rounds: int) -> bool:
    other = protocol.lasting(rounds)
    return any(map(other.can_ever_decide, range(rounds))) and not unheard(other)
