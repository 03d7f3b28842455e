"""The schedule of a protocol: who speaks in each round and channel, who hears it, and who may decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm

from runner.game.protocols.protocol import Protocol

MAX_TRIED = 16
"""The maximum distance between a protocol's number of rounds and the numbers that `rounds_without_waste` tries."""


MAX_SEEDS = 1_000
"""The maximum number of seeds whose drawn speakers `verifiers_without_decision` tries."""


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
    decides = tuple(name for name in protocol.verifier_names if protocol.can_ever_decide(number, name))
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
            if (agent in protocol.verifier_names and protocol.can_ever_decide(number, agent))
            or any(influencing_later.intersection(protocol.file.channels[name].members) for name in channels)
        }
        without_influence = tuple(agent for agent in speakers if agent not in influential)
        if without_influence:
            unheard_speakers[number] = without_influence
        influencing_later |= influential
    return dict(sorted(unheard_speakers.items()))


@dataclass(frozen=True)
class Fault:
    """A part of a protocol that has no effect, or that leaves games without a decision."""

    key: str
    """The key of the part in the protocol's file, such as `cycle.0.speak.prover`."""
    message: str


def find_faults(protocol: Protocol) -> list[Fault]:
    """Return the agents that never speak, the steps that are never played, and the messages that nobody can use.

    Also return the agents with the same name, and the verifiers that cannot decide in some games, since another speaker
    is drawn.
    """
    undecided = [
        Fault(
            f"agents.{name}",
            f"{name} cannot decide in games in which another speaker is drawn; let {name} speak in a step of its own",
        )
        for name, in_all_games in verifiers_without_decision(protocol).items()
        if not in_all_games
    ]
    return [
        *_silent_agents(protocol),
        *_agents_with_the_same_name(protocol),
        *_unreachable_steps(protocol),
        *_unheard_messages(protocol),
        *undecided,
    ]


def _agents_with_the_same_name(protocol: Protocol) -> Iterator[Fault]:
    # If one of several agents is drawn, they may have the same name, so that the verifier cannot tell who was drawn.
    drawn = [step.speak.keys() for step in protocol.file.cycle if step.draw == "one"]
    first_with_name: dict[str, str] = {}
    for agent in protocol.agent_names:
        name = protocol.agent_spec(agent).human_name
        first = first_with_name.setdefault(name, agent)
        if first != agent and not any({first, agent} <= speakers for speakers in drawn):
            message = f"{first} and {agent} have the same human_name {name!r}; give {agent} a name of its own"
            yield Fault(f"agents.{agent}", message)


def _silent_agents(protocol: Protocol) -> Iterator[Fault]:
    for agent in protocol.agent_names:
        if protocol.first_active_round(agent) is None:
            in_cycle = any(agent in step.speak for step in protocol.file.cycle)
            reason = f"in the {_round_count(protocol)} of a game" if in_cycle else "in any step of the cycle"
            yield Fault(f"agents.{agent}", f"{agent} does not speak {reason}; add a step for {agent}, or remove it")


def _unreachable_steps(protocol: Protocol) -> Iterator[Fault]:
    numbers, rounds = protocol.step_numbers, protocol.max_message_rounds
    for number, step in enumerate(protocol.file.cycle):
        # An agent that never speaks is reported once, not again for each of its steps.
        speakers = [name for name in step.speak if protocol.first_active_round(name) is not None]
        if number not in numbers[:rounds] and speakers:
            message = (
                f"step {number + 1} of the cycle, in which {' and '.join(speakers)} would speak, is never played; "
                f"raise max_message_rounds ({rounds}), or remove the step"
            )
            yield Fault(f"cycle.{number}", message)


def _unheard_messages(protocol: Protocol) -> Iterator[Fault]:
    """Yield the channels in which an agent speaks, but no member can use its messages for a decision in any round."""
    used: dict[tuple[int, str, str], bool] = {}
    influencing_later: set[str] = set()
    for number in reversed(range(protocol.max_message_rounds)):
        speakers = protocol.can_be_active(number)
        influential = set()
        for agent, name in ((agent, name) for agent, channels in speakers.items() for name in channels):
            may_decide = agent in protocol.verifier_names and protocol.can_ever_decide(number, agent)
            is_heard = not influencing_later.isdisjoint(protocol.file.channels[name].members)
            key = (protocol.step_numbers[number % len(protocol.steps)], agent, name)
            used[key] = used.get(key, False) or is_heard or may_decide
            if is_heard or may_decide:
                influential.add(agent)
        influencing_later |= influential
    for (number, agent, name), is_used in sorted(used.items()):
        others = [used[key] for key in used if key[:2] == (number, agent) and key[2] != name]
        if not is_used and any(others):  # `messages_without_influence` has speakers without any influence
            message = (
                f"what {agent} says in {name} cannot influence a decision, since no member of {name} passes it on or "
                f"decides; add a member to channels.{name}, or remove {name} here"
            )
            yield Fault(f"cycle.{number}.speak.{agent}", message)


def _round_count(protocol: Protocol) -> str:
    rounds = protocol.max_message_rounds
    return f"{rounds} round{'' if rounds == 1 else 's'}"


def verifiers_without_decision(protocol: Protocol) -> dict[str, bool]:
    """Return the verifiers that cannot decide in some games, with whether they cannot in any game."""
    seeds = min(MAX_SEEDS, lcm(*(len(step.speak) for step in protocol.steps if step.draw == "one" and step.speak)))
    first = protocol.min_message_rounds - 1
    rounds = range(first, min(protocol.max_message_rounds, first + len(protocol.steps)))
    result = {}
    for name in protocol.verifier_names:
        decides = [any(protocol.may_decide(round_, seed, name) for round_ in rounds) for seed in range(seeds)]
        if not all(decides):
            result[name] = not any(decides)
    return result


def rounds_without_waste(protocol: Protocol) -> list[int]:
    """Return maximum numbers of rounds, near the protocol's, with which every message can influence a decision.

    The list has the nearest smaller and the nearest larger number, if there are any.
    """
    current, period = protocol.max_message_rounds, min(len(protocol.steps), MAX_TRIED)
    below = (n for n in range(current - 1, max(0, current - period), -1) if _has_no_waste(protocol, n))
    above = (n for n in range(current + 1, current + period) if _has_no_waste(protocol, n))
    return [n for n in (next(below, None), next(above, None)) if n is not None]


def _has_no_waste(protocol: Protocol, rounds: int) -> bool:
    variant = replace(protocol, parameters=replace(protocol.parameters, max_message_rounds=rounds))
    return any(map(variant.can_ever_decide, range(rounds))) and not messages_without_influence(variant)
