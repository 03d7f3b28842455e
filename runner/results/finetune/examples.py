"""Training examples, independent of file formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from runner.game.prompts.chat import ChatMessage


@dataclass(frozen=True)
class SupervisedExample:
    """A chat whose assistant messages are learned, except those in `unlearnable`."""

    messages: Sequence[ChatMessage]
    unlearnable: frozenset[int] = frozenset()
    """The indices of assistant messages that are not learned."""
    rounds: Mapping[int, int] = field(default_factory=dict)
    """The round in the game of each learned message, by its index."""

    @cached_property
    def learned(self) -> list[int]:
        """The indices of the learned messages."""
        assistant_turns = (index for index, message in enumerate(self.messages) if message["role"] == "assistant")
        return [index for index in assistant_turns if index not in self.unlearnable]

    @property
    def round(self) -> int:
        """The round of the last learned message."""
        return max(self.rounds.values(), default=0)

    def single_turns(self) -> Iterator[SupervisedExample]:
        """Yield an example for each learned message. It ends with this message and learns no other."""
        assistant_turns = {index for index, message in enumerate(self.messages) if message["role"] == "assistant"}
        for end in self.learned:
            rounds = {end: self.rounds[end]} if end in self.rounds else {}
            yield SupervisedExample(self.messages[: end + 1], frozenset(assistant_turns - {end}), rounds)


@dataclass(frozen=True)
class Preference:
    """Two answers to the same prompt, one of them preferred."""

    prompt: Sequence[ChatMessage]
    preferred: str
    non_preferred: str


@dataclass(frozen=True)
class RlTurn:
    """One turn of one agent: its prompt, its answer and the reward."""

    prompt: Sequence[ChatMessage]
    response: str
    reward: float
    """The agent's reward for the whole game."""
    ground_truth: int
    """The datapoint's label."""
    datapoint_id: str
    run_id: str = ""
    rollout_id: str = ""
    agent: str = ""
    round: int = 0
    data_source: str = "nip-run"
    """This field of verl and `ability` tell a trainer how to score new answers."""
    ability: str = ""
    split: str = "train"
    index: int = 0
    """The row's position in its file."""


RolloutExample = SupervisedExample | RlTurn
"""An example from one agent's part of a game, unlike a preference pair."""

Example = RolloutExample | Preference


@dataclass(frozen=True)
class ExampleSource:
    """The rollout, agent and round that an example comes from. For a preference, those of the preferred answer."""

    run_id: str
    rollout_id: str
    agent: str
    round: int
    """The round of the last turn, if the example has several turns."""
    reward: float
    datapoint_id: str = ""
    other: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields: for a preference, `rejected_rollout_id` and `rejected_reward` of the rejected answer."""
    group: str = ""
    """The datapoint's group, or its id."""
