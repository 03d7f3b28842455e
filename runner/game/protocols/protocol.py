"""A protocol file and a spec's parameters into the table that games are played by.

Three operations on the cycle give every variant of every protocol: start it at another step (`verifier_first`,
where the file declares it), split a step of several speakers into one each (`sequential`, `prover0_first`), and draw
one of a step's speakers by the rollout's seed (`draw: one`).
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
    """A stance as templates and protocol files say it."""
    return ACCEPT if stance else REJECT


def label_word(label: int | None) -> str:
    """What is right of a datapoint, for people; its owner may keep it."""
    return "not known" if label is None else stance_word(label)


@dataclass(frozen=True)
class Protocol:
    """A protocol with its parameters: answers who speaks, who sees, who may decide, in any round."""

    file: ProtocolFile
    parameters: Parameters
    is_turned: bool = True
    """Whether the file declares `verifier_first`, which turns its cycle; else the parameter says how it is written."""
    exchanges_stances: bool = False
    """Whether games say what the first prover argues, and the others argue with it or against it as in the file."""
    paths: tuple[Path, ...] = field(default=(), compare=False, repr=False)
    """Where it was read: its file, then those that it extends."""

    def turned(self, *, verifier_first: bool) -> Protocol:
        """The protocol as if its file declared this."""
        file = replace(self.file, parameters=replace(self.file.parameters, verifier_first=verifier_first))
        return replace(
            self, file=file, parameters=replace(self.parameters, verifier_first=verifier_first), is_turned=True
        )

    def with_given_stance(self) -> Protocol:
        """The protocol whose games say what provers argue: all of them, or of opposed ones the first.

        Opposed provers exchange their stances in games that give the first one the other's.
        """
        if self.are_opposed:
            return replace(self, exchanges_stances=True)
        return replace(self, parameters=replace(self.parameters, randomize_prover_stance=True))

    def lasting(self, rounds: int) -> Protocol:
        """The protocol with another number of rounds."""
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
        """The last round in which somebody can speak: an undecided game ends there, whatever rounds are left."""
        return max(i for i in range(self.max_message_rounds) if self.can_be_active(i))

    def agent_spec(self, agent: str) -> AgentSpec:
        return self.file.agents[agent]

    @cached_property
    def steps(self) -> tuple[ProtocolStep, ...]:
        """The cycle as it is played: rotated to its first step and split where speakers take turns."""
        cycle = self.file.cycle
        first = next(
            (i for i, step in enumerate(cycle) if (self.verifier_name in step.speak) == self.parameters.verifier_first),
            0,
        )
        rotated = cycle[first:] + cycle[:first]
        if not self.parameters.sequential:
            return rotated
        return tuple(one for step in rotated for one in self._split(step))

    def _split(self, step: ProtocolStep) -> Sequence[ProtocolStep]:
        if step.draw == "one" or len(step.speak) < 2:
            return (step,)
        speakers = list(step.speak) if self.parameters.prover0_first else list(step.speak)[::-1]
        return [replace(step, speak={name: step.speak[name]}) for name in speakers]

    def step(self, round_: int) -> ProtocolStep:
        """The step that is played in a round.

        Raises:
            ValueError: the round is negative.
        """
        if round_ < 0:
            raise ValueError(f"there is no round {round_}; rounds count from 0")
        return self.steps[round_ % len(self.steps)]

    def can_be_active(self, round_: int) -> Mapping[str, tuple[str, ...]]:
        """Every agent that speaks in this round under some seed, and its channels."""
        return self.step(round_).speak

    def speakers(self, round_: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """Who speaks in this round, and in which channels, in a rollout with this seed."""
        step = self.step(round_)
        if step.draw == "all" or not step.speak:
            return step.speak
        name = list(step.speak)[seed % len(step.speak)]
        return {name: step.speak[name]}

    def may_decide(self, round_: int, seed: int = 0) -> bool:
        """Whether the verifier speaks in this round and may decide; whether that counts is `min_message_rounds`."""
        return self.step(round_).may_decide and self.verifier_name in self.speakers(round_, seed)

    def can_ever_decide(self, round_: int) -> bool:
        """Whether a decision in this round counts under some seed."""
        active = self.verifier_name in self.can_be_active(round_)
        return round_ >= self.min_message_rounds - 1 and active and self.step(round_).may_decide

    @cached_property
    def max_verifier_questions(self) -> int:
        """The number of rounds in which the verifier speaks."""
        return self.questions_left(0)

    def questions_left(self, round_: int) -> int:
        """In how many rounds, from this one on, the verifier speaks."""
        return sum(self.verifier_name in self.can_be_active(i) for i in range(round_, self.max_message_rounds))

    def first_active_round(self, agent: str) -> int | None:
        return next((i for i in range(self.max_message_rounds) if agent in self.can_be_active(i)), None)

    @cached_property
    def _visible(self) -> Mapping[str, tuple[str, ...]]:
        return {
            agent: tuple(name for name, channel in self.file.channels.items() if agent in channel.members)
            for agent in self.file.agents
        }

    def visible_channels(self, agent: str) -> tuple[str, ...]:
        return self._visible[agent]

    def channel_order(self, agent: str, seed: int = 0) -> tuple[str, ...]:
        """In which order one round's channels stand in this agent's prompt."""
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
        """Whether each prover argues what the file says, and not all argue the same."""
        own = {self.default_stance(prover) for prover in self.prover_names}
        return len(own) > 1 and not self.parameters.randomize_prover_stance

    @cached_property
    def draws_stance(self) -> bool:
        """Whether a lot draws one of opposed provers to speak, and so the stance that is heard."""
        drawn = (step.speak for step in self.file.cycle if step.draw == "one")
        return self.are_opposed and any(
            len({self.default_stance(name) for name in speakers if name in self.prover_names}) > 1 for speakers in drawn
        )

    def stances_exchanged(self, prover_stance: int | None) -> bool | None:
        """Whether opposed provers argue what the file gives the other side; None where no game exchanges stances."""
        if not self.exchanges_stances or prover_stance is None:
            return None
        return prover_stance != self.default_stance(self.prover_names[0])

    def stance(self, agent: str, prover_stance: int) -> int:
        """The stance of an agent in a game that is given `prover_stance`, which may be its datapoint's own.

        The verifier has one too: it is the stance its prompt may tell it that the provers argue. It stays as it is
        where they exchange theirs.
        """
        if self.parameters.randomize_prover_stance:
            return prover_stance
        own = self.default_stance(agent)
        return 1 - own if agent in self.prover_names and self.stances_exchanged(prover_stance) else own

    def shared_stance(self, prover_stance: int) -> int | None:
        """The stance that all provers argue for a datapoint; None where they differ, or there are none."""
        stances = {self.stance(prover, prover_stance) for prover in self.prover_names}
        return stances.pop() if len(stances) == 1 else None

    def reward_mid_point(self, agent: str) -> float:
        """Halfway between an agent's best and worst reward for a decision: the threshold between good and bad."""
        p = self.parameters
        if agent == self.verifier_name:
            return (p.verifier_reward + p.verifier_incorrect_penalty) / 2
        return p.prover_reward / 2
