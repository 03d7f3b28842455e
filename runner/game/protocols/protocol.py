"""A protocol: the rules of a protocol file with a spec's parameters.

A protocol file has a cycle of steps, and parameters change it. `verifier_first` starts the cycle at another step, if
the file declares it. `sequential` and `prover0_first` split a step with several speakers into one step for each.
`draw: one` lets the rollout's seed choose one of a step's speakers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Final

from runner.base.hashing import derived_seed
from runner.game.protocols.schema import AgentSpec, Parameters, ProtocolFile, ProtocolStep


class Decision(IntEnum):
    """The verifier's verdict."""

    REJECT = 0
    ACCEPT = 1
    NONE = 2


ACCEPT: Final = "accept"
REJECT: Final = "reject"


def stance_word(stance: int) -> str:
    """Return a stance as templates and protocol files spell it."""
    return ACCEPT if stance else REJECT


def label_word(label: int | None) -> str:
    """Return a label as text for display: `accept`, `reject` or `not known`."""
    return "not known" if label is None else stance_word(label)


def verdict_word(decision: int) -> str:
    """Return a word for a decision; `none` if there is no verdict."""
    return "none" if decision == Decision.NONE else stance_word(decision)


def label_player(agent: str, stance: int | None, chat_name: str | None = None, remark: str | None = None) -> str:
    """Return an agent's name, its name in the chats and its stance: `prover0 (Expert_1; argues for accept)`."""
    stance_remark = None if stance is None else f"argues for {stance_word(stance)}"
    remarks = [text for text in (chat_name, stance_remark, remark) if text is not None]
    return f"{agent} ({'; '.join(remarks)})" if remarks else agent


def correct_word(correct: bool | None, decision: int) -> str:
    """Return `right`, `wrong`, or `-` if there is no verdict or no label."""
    if decision == Decision.NONE or correct is None:
        return "-"
    return "right" if correct else "wrong"


@dataclass(frozen=True)
class Protocol:
    """A protocol with its parameters. Its methods return who speaks, who hears and who may decide in a round."""

    file: ProtocolFile
    parameters: Parameters
    declares_verifier_first: bool = True
    """Whether the file declares `verifier_first`, which then rotates the cycle. Otherwise it follows from the cycle."""
    exchanges_stances: bool = False
    """Whether opposed provers exchange their stances in some games, since each game sets the first prover's stance."""
    paths: tuple[Path, ...] = field(default=(), compare=False, repr=False)
    """The files that the protocol was read from: its own, then the files that it extends."""

    def with_verifier_first(self, *, verifier_first: bool) -> Protocol:
        """Return the protocol as if its file declared this `verifier_first`."""
        file = replace(self.file, parameters=replace(self.file.parameters, verifier_first=verifier_first))
        return replace(
            self,
            file=file,
            parameters=replace(self.parameters, verifier_first=verifier_first),
            declares_verifier_first=True,
        )

    def with_given_stance(self) -> Protocol:
        """Return the protocol for games that set the stance of all provers, or of the first one if they are opposed.

        Opposed provers exchange their stances in games that give the first prover the other's stance.
        """
        if self.are_opposed:
            return replace(self, exchanges_stances=True)
        return replace(self, parameters=replace(self.parameters, randomize_prover_stance=True))

    def with_rounds(self, rounds: int) -> Protocol:
        """Return the protocol with another number of rounds."""
        return replace(self, parameters=replace(self.parameters, max_message_rounds=rounds))

    @property
    def name(self) -> str:
        return self.file.name

    @cached_property
    def agent_names(self) -> tuple[str, ...]:
        return tuple(self.file.agents)

    @cached_property
    def channel_names(self) -> tuple[str, ...]:
        return tuple(self.file.channels)

    @cached_property
    def prover_names(self) -> tuple[str, ...]:
        return tuple(name for name, spec in self.file.agents.items() if spec.role == "prover")

    def chat_name(self, agent: str) -> str | None:
        """Return the name that chats use for an agent, or None if it is the agent's own name, with any case."""
        name = self.agent_spec(agent).human_name
        return None if name.lower() == agent.lower() else name

    def prover_stances(self, prover_stance: int) -> dict[str, int]:
        """Return the stance of each prover in a game with this `prover_stance`."""
        return {name: self.stance(name, prover_stance) for name in self.prover_names}

    @cached_property
    def verifier_name(self) -> str:
        return next(name for name, spec in self.file.agents.items() if spec.role == "verifier")

    @property
    def max_message_rounds(self) -> int:
        return self.parameters.max_message_rounds

    @property
    def min_message_rounds(self) -> int:
        return self.parameters.min_message_rounds

    @cached_property
    def last_speaking_round(self) -> int:
        """The last round with a speaker, in which an undecided game ends, even if silent rounds follow."""
        return max(i for i in range(self.max_message_rounds) if self.can_be_active(i))

    def agent_spec(self, agent: str) -> AgentSpec:
        return self.file.agents[agent]

    @cached_property
    def steps(self) -> tuple[ProtocolStep, ...]:
        """The steps of the cycle in the order of play: rotated by `verifier_first`, and split by `sequential`."""
        cycle = self.file.cycle
        first = next(
            (i for i, step in enumerate(cycle) if (self.verifier_name in step.speak) == self.parameters.verifier_first),
            0,
        )
        rotated = cycle[first:] + cycle[:first]
        if not self.parameters.sequential:
            return rotated
        return tuple(part for step in rotated for part in self._split(step))

    def _split(self, step: ProtocolStep) -> Sequence[ProtocolStep]:
        if step.draw == "one" or len(step.speak) < 2:
            return (step,)
        speakers = list(step.speak) if self.parameters.prover0_first else list(step.speak)[::-1]
        return [replace(step, speak={name: step.speak[name]}) for name in speakers]

    def step(self, round_: int) -> ProtocolStep:
        """Return the step that is played in a round.

        Raises:
            ValueError: the round is negative.
        """
        if round_ < 0:
            raise ValueError(f"there is no round {round_}; rounds count from 0")
        return self.steps[round_ % len(self.steps)]

    def can_be_active(self, round_: int) -> Mapping[str, tuple[str, ...]]:
        """Return the agents that speak in this round for at least one seed, each with its channels."""
        return self.step(round_).speak

    def speakers(self, round_: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """Return the agents that speak in this round of a rollout with this seed, with their channels."""
        step = self.step(round_)
        if step.draw == "all" or not step.speak:
            return step.speak
        name = list(step.speak)[seed % len(step.speak)]
        return {name: step.speak[name]}

    def may_decide(self, round_: int, seed: int = 0) -> bool:
        """Return whether the verifier speaks and may decide in this round. An early decision may not count."""
        step = self.step(round_)
        if not step.may_decide or self.verifier_name not in step.speak:
            return False
        return step.draw == "all" or self.verifier_name in self.speakers(round_, seed)

    def can_ever_decide(self, round_: int) -> bool:
        """Return whether a decision in this round counts for at least one seed."""
        can_speak = self.verifier_name in self.can_be_active(round_)
        return round_ >= self.min_message_rounds - 1 and can_speak and self.step(round_).may_decide

    @cached_property
    def max_verifier_questions(self) -> int:
        """The number of rounds in which the verifier speaks."""
        return self.questions_left(0)

    def questions_left(self, round_: int) -> int:
        """Return the number of rounds, from this one on, in which the verifier speaks."""
        return sum(self.verifier_name in self.can_be_active(i) for i in range(round_, self.max_message_rounds))

    def first_active_round(self, agent: str) -> int | None:
        return next((i for i in range(self.max_message_rounds) if agent in self.can_be_active(i)), None)

    @cached_property
    def _channels_by_agent(self) -> Mapping[str, tuple[str, ...]]:
        return {
            agent: tuple(name for name, channel in self.file.channels.items() if agent in channel.members)
            for agent in self.file.agents
        }

    def visible_channels(self, agent: str) -> tuple[str, ...]:
        return self._channels_by_agent[agent]

    def channel_order(self, agent: str, seed: int = 0) -> tuple[str, ...]:
        """Return the order of a round's channels in this agent's prompt."""
        order: list[str] = []
        for index, entry in enumerate(self.agent_spec(agent).channel_order or ()):
            names = [entry] if isinstance(entry, str) else list(entry)
            if self.parameters.randomize_channel_order and len(names) > 1:
                random.Random(derived_seed("channel_order", agent, index, seed)).shuffle(names)
            order.extend(names)
        return (*order, *(name for name in self.channel_names if name not in order))

    def default_stance(self, agent: str) -> int:
        return int(self.agent_spec(agent).stance == ACCEPT)

    @cached_property
    def are_opposed(self) -> bool:
        """Whether provers keep their stances from the file and these differ."""
        stances = {self.default_stance(prover) for prover in self.prover_names}
        return len(stances) > 1 and not self.parameters.randomize_prover_stance

    @cached_property
    def samples_stance(self) -> bool:
        """Whether the seed chooses which of the opposed provers speaks, and so which stance the verifier hears."""
        sampled_speakers = (step.speak for step in self.file.cycle if step.draw == "one")
        return self.are_opposed and any(
            len({self.default_stance(name) for name in speakers if name in self.prover_names}) > 1
            for speakers in sampled_speakers
        )

    def stances_exchanged(self, prover_stance: int | None) -> bool | None:
        """Return whether opposed provers have exchanged their stances; None if they never do in this protocol."""
        if not self.exchanges_stances or prover_stance is None:
            return None
        return prover_stance != self.default_stance(self.prover_names[0])

    def stance(self, agent: str, prover_stance: int) -> int:
        """Return the stance of an agent in a game with this `prover_stance`.

        The verifier has a stance too, which its prompt may mention as the provers' stance. It does not change if the
        provers exchange their stances.
        """
        if self.parameters.randomize_prover_stance:
            return prover_stance
        default = self.default_stance(agent)
        return 1 - default if agent in self.prover_names and self.stances_exchanged(prover_stance) else default

    def shared_stance(self, prover_stance: int) -> int | None:
        """Return the stance that all provers argue for, or None if they differ or there are no provers."""
        stances = {self.stance(prover, prover_stance) for prover in self.prover_names}
        return stances.pop() if len(stances) == 1 else None

    def reward_mid_point(self, agent: str) -> float:
        """Return the mean of an agent's best and worst reward, which separates good from bad answers."""
        p = self.parameters
        if agent == self.verifier_name:
            return (p.verifier_reward + p.verifier_incorrect_penalty) / 2
        return p.prover_reward / 2
