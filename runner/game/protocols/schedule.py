"""The schedule of a protocol: who speaks in each round and channel, who hears it, and who may decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.game.protocols.protocol import Protocol

MAX_TRIED = 16
"""The maximum distance between a protocol's number of rounds and the numbers that `rounds_without_waste` tries."""


@dataclass(frozen=True)
class Speech:
    """One agent's message in one channel."""

    agent: str
    channel: str
    heard_by: tuple[str, ...]


@dataclass(frozen=True)
class ScheduledRound:
    """The possible events of a round."""

    draw: str
    """`all` if all agents in `speech` speak, `one` if the rollout's seed selects one of them."""
    speech: tuple[Speech, ...]
    may_decide: tuple[str, ...]
    """The agents that may decide in this round."""


@dataclass(frozen=True)
class Stretch:
    """The rounds `first` to `last`, which are repeated up to and including round `until`."""

    first: int
    last: int
    until: int


def schedule(protocol: Protocol) -> list[ScheduledRound]:
    """Return every round of the longest game, in order."""
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


def fold_rounds(rounds: Sequence[ScheduledRound], period: int) -> list[Stretch]:
    """Group rounds into cycles of `period` rounds, and return one stretch for each cycle and its repeats."""
    stretches: list[Stretch] = []
    for first in range(0, len(rounds), period):
        cycle = rounds[first : first + period]
        previous = stretches[-1] if stretches else None
        if previous is not None and cycle == rounds[previous.first : previous.first + len(cycle)]:
            stretches[-1] = replace(previous, until=first + len(cycle) - 1)
        else:
            last = first + len(cycle) - 1
            stretches.append(Stretch(first, last, last))
    return stretches


def messages_without_influence(protocol: Protocol) -> dict[int, tuple[str, ...]]:
    """Return the speakers whose messages cannot influence a decision, by round. Rounds without any are left out.

    A message can influence a decision if its agent is the verifier and may decide in that round, or if an agent that
    hears it can influence a decision later.
    """
    influencing_later: set[str] = set()
    unheard_speakers: dict[int, tuple[str, ...]] = {}
    for number in reversed(range(protocol.max_message_rounds)):
        speakers = protocol.can_be_active(number)
        influential = {
            agent
            for agent, channels in speakers.items()
            if (agent == protocol.verifier_name and protocol.can_ever_decide(number))
            or any(influencing_later.intersection(protocol.file.channels[name].members) for name in channels)
        }
        without_influence = tuple(agent for agent in speakers if agent not in influential)
        if without_influence:
            unheard_speakers[number] = without_influence
        influencing_later |= influential
    return dict(sorted(unheard_speakers.items()))


def rounds_without_waste(protocol: Protocol) -> list[int]:
    """Return maximum numbers of rounds, near the protocol's, with which every message can influence a decision.

    The list has the nearest smaller and the nearest larger number, if there are any.
    """
    current, period = protocol.max_message_rounds, min(len(protocol.steps), MAX_TRIED)
    below = (n for n in range(current - 1, max(0, current - period), -1) if _has_no_waste(protocol, n))
    above = (n for n in range(current + 1, current + period) if _has_no_waste(protocol, n))
    return [n for n in (next(below, None), next(above, None)) if n is not None]


def _has_no_waste(protocol: Protocol, rounds: int) -> bool:
    variant = protocol.with_rounds(rounds)
    return any(map(variant.can_ever_decide, range(rounds))) and not messages_without_influence(variant)
