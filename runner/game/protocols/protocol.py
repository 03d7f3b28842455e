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
from runner.base.problems import Place
from runner.game.protocols.ballot import (
    CORRECT,
    INCORRECT,
    Ballot,
    CandidateAnswers,
    answer_position,
    deal_answers,
    draws_correct,
    exchange_stances,
    is_exchangeable,
    letter_of,
)
from runner.game.protocols.schema import AgentSpec, BestOf, Parameters, ProtocolFile, ProtocolStep


class Decision(IntEnum):
    """The verifier's verdict. The codes of verdicts on listed answers follow; see `runner.game.protocols.ballot`."""

    REJECT = 0
    ACCEPT = 1
    NONE = 2


ACCEPT: Final = "accept"
REJECT: Final = "reject"


def stance_word(stance: int) -> str:
    """Return a stance as templates and protocol files spell it."""
    return ACCEPT if stance else REJECT


def label_word(label: int | str | None) -> str:
    """Return a label as text for display: `accept`, `reject` or `not known`; letters of listed answers as they are."""
    if isinstance(label, str):
        return label
    return "not known" if label is None else stance_word(label)


def verdict_word(decision: int | str) -> str:
    """Return a word for a decision, or the letter of the chosen answer; `none` if there is no verdict."""
    if isinstance(decision, str):
        return decision
    position = answer_position(decision)
    if position is not None:
        return letter_of(position)
    return "none" if decision == Decision.NONE else stance_word(decision)


def label_player(agent: str, stance: int | str | None, chat_name: str | None = None, remark: str | None = None) -> str:
    """Return an agent's name, its name in the chats and its stance: `prover0 (Expert_1; argues for accept)`.

    A stance as text is the letter of a listed answer.
    """
    word = stance if isinstance(stance, str) or stance is None else stance_word(stance)
    stance_remark = None if word is None else f"argues for {word}"
    remarks = [text for text in (chat_name, stance_remark, remark) if text is not None]
    return f"{agent} ({'; '.join(remarks)})" if remarks else agent


def correct_word(correct: bool | None, decision: int | str) -> str:
    """Return `right`, `wrong`, or `-` if there is no verdict or no label."""
    if decision in (Decision.NONE, "none") or correct is None:
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
    places: Mapping[str, Place] = field(default_factory=dict, compare=False, repr=False)
    """The place of each agent, channel and step in these files, such as `agents.prover` and `cycle.0`."""

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

    def place(self, key: str) -> Place:
        """Return the place of an agent, channel or step, such as `cycle.0`, in the protocol's files, for a message."""
        return self.places.get(key) or Place(f"{self.name}.yaml")

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
    def verifier_names(self) -> tuple[str, ...]:
        """The agents that decide: one, or the judges of a panel."""
        return tuple(name for name, spec in self.file.agents.items() if spec.role == "verifier")

    @cached_property
    def verifier_name(self) -> str:
        """The only verifier.

        Raises:
            ValueError: the protocol has a panel.
        """
        if self.file.panel is not None:
            raise ValueError(f"{self.name} has a panel of judges; use verifier_names instead of verifier_name")
        return self.verifier_names[0]

    @cached_property
    def max_message_rounds(self) -> int:
        return self.parameters.max_message_rounds

    @cached_property
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
        return tuple(step for _, step in self._numbered_steps)

    @cached_property
    def step_numbers(self) -> tuple[int, ...]:
        """The number of each of these steps in the cycle of the file."""
        return tuple(number for number, _ in self._numbered_steps)

    @cached_property
    def _numbered_steps(self) -> tuple[tuple[int, ProtocolStep], ...]:
        cycle = self._repeat_splits(tuple(enumerate(self.file.cycle)))
        first = next(
            (
                i
                for i, (_, step) in enumerate(cycle)
                if self._has_verifier(step.speak) == self.parameters.verifier_first
            ),
            0,
        )
        rotated = cycle[first:] + cycle[:first]
        return tuple((number, part) for number, step in rotated for part in self._split(step))

    def _repeat_splits(self, cycle: tuple[tuple[int, ProtocolStep], ...]) -> tuple[tuple[int, ProtocolStep], ...]:
        """Return the numbered steps with `max_depth` copies of those that split a claim and pick a sub-claim."""
        picks = [i for i, step in cycle if step.pick_claim]
        first = next((i for i, step in cycle if step.states == "claims"), None)
        if first is None or not picks:
            return cycle
        end = picks[-1] + 1
        return cycle[:first] + cycle[first:end] * self.parameters.max_depth + cycle[end:]

    @cached_property
    def has_statements(self) -> bool:
        """Whether messages state answers or sub-claims, so that a game may judge something else than its datapoint."""
        return any(step.states is not None for step in self.file.cycle)

    @cached_property
    def stating_provers(self) -> tuple[str, ...]:
        """The provers that state an answer or sub-claims."""
        steps = [step for step in self.file.cycle if step.states in ("answer", "claims")]
        return tuple(name for name in self.prover_names if any(name in step.speak for step in steps))

    def _split(self, step: ProtocolStep) -> Sequence[ProtocolStep]:
        judges_in_turn = self.file.panel is not None and self.file.panel.rule == "sequential"
        is_split = self.parameters.sequential or (judges_in_turn and self._has_verifier(step.speak))
        if not is_split or step.draw == "one" or len(step.speak) < 2:
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

    def may_decide(self, round_: int, seed: int = 0, agent: str | None = None) -> bool:
        """Return whether `agent` (by default, any verifier) speaks and may decide in this round.

        An early decision may not count.
        """
        return self.step(round_).may_decide and self._has_verifier(self.speakers(round_, seed), agent)

    def can_ever_decide(self, round_: int, agent: str | None = None) -> bool:
        """Return whether a decision of `agent` (by default, any verifier) in this round counts for some seed."""
        can_speak = self._has_verifier(self.can_be_active(round_), agent)
        return round_ >= self.min_message_rounds - 1 and can_speak and self.step(round_).may_decide

    def _has_verifier(self, speakers: Mapping[str, object], agent: str | None = None) -> bool:
        """Return whether `agent` (by default, any verifier) is a verifier and among the speakers."""
        if agent is not None:
            return agent in speakers and agent in self.verifier_names
        return not speakers.keys().isdisjoint(self.verifier_names)

    @cached_property
    def max_verifier_questions(self) -> int:
        """The number of rounds in which a verifier speaks."""
        return self.questions_left(0)

    def questions_left(self, round_: int, agent: str | None = None) -> int:
        """Return the number of rounds from `round_` on where `agent` (by default, any verifier) speaks."""
        questions = self._questions_left.get((round_, agent))
        if questions is None:
            rounds = range(round_, self.max_message_rounds)
            questions = sum(self._has_verifier(self.can_be_active(i), agent) for i in rounds)
            self._questions_left[round_, agent] = questions
        return questions

    @cached_property
    def _questions_left(self) -> dict[tuple[int, str | None], int]:
        return {}

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

    @cached_property
    def selections(self) -> Mapping[tuple[str, str], BestOf]:
        """The selections from candidates by the speaker and the kind of the selector, each with the largest `n`."""
        rules = [(step.best_of, step.speak) for step in self.file.cycle if step.best_of is not None]
        rules.sort(key=lambda rule: rule[0].n)
        return {(name, best_of.by): best_of for best_of, speak in rules for name in speak}

    def hidden_columns(self, agent: str) -> frozenset[str]:
        """Return the columns of the dataset that an agent must not see."""
        return frozenset(column for column, agents in self.file.private.items() if agent not in agents)

    def default_stance(self, agent: str) -> int:
        return int(self.agent_spec(agent).stance in (ACCEPT, CORRECT))

    @cached_property
    def lists_answers(self) -> bool:
        """Whether the verifier chooses from listed answers, instead of accepting or rejecting."""
        return self.file.answers == "listed"

    @property
    def may_exchange_answers(self) -> bool:
        """Whether games can exchange right and wrong answers between the stances of provers."""
        return is_exchangeable([self.agent_spec(name).stance for name in self.prover_names])

    def ballot(self, candidates: CandidateAnswers, seed: int, given_stance: int | None = None) -> Ballot:
        """Return the answers of a game with this seed in its order, and the answer of each prover.

        `given_stance` is 1 if the first prover must argue for a right answer, 0 for a wrong one, None for its own.
        """
        stances = {name: self.agent_spec(name).stance for name in self.prover_names}
        if given_stance is None and self.parameters.randomize_prover_stance:
            given_stance = int(draws_correct(seed))
        if given_stance is not None and self.may_exchange_answers:
            stances = exchange_stances(stances, CORRECT if given_stance else INCORRECT)
        return deal_answers(candidates, stances, seed, shuffle=self.parameters.shuffle_answers)

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
        if agent in self.verifier_names:
            return (p.verifier_reward + p.verifier_incorrect_penalty) / 2
        return p.prover_reward / 2
