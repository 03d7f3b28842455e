"""What is trained on, before any file format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from runner.game.prompts.chat import ChatMessage


@dataclass(frozen=True)
class Supervised:
    """A chat to learn the assistant's messages of, but for those whose indices are in `unlearnable`.

    `rounds` are those of the turns to learn, by their indices.
    """

    messages: Sequence[ChatMessage]
    unlearnable: frozenset[int] = frozenset()
    rounds: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def learnt(self) -> list[int]:
        """The indices of the messages to learn."""
        own = (index for index, message in enumerate(self.messages) if message["role"] == "assistant")
        return [index for index in own if index not in self.unlearnable]

    @property
    def round(self) -> int:
        """That of its last turn."""
        return max(self.rounds.values(), default=0)

    def single_turns(self) -> Iterator[Supervised]:
        """Each turn to learn by itself, as the last message of a chat."""
        own = {index for index, message in enumerate(self.messages) if message["role"] == "assistant"}
        for end in self.learnt:
            rounds = {end: self.rounds[end]} if end in self.rounds else {}
            yield Supervised(self.messages[: end + 1], frozenset(own - {end}), rounds)


@dataclass(frozen=True)
class Preference:
    """Two answers to one prompt, and which is better."""

    prompt: Sequence[ChatMessage]
    preferred: str
    non_preferred: str


@dataclass(frozen=True)
class RlTurn:
    """One turn of one agent: what it was asked with, what it said, what it earned.

    `reward` is the agent's of the whole game, `ground_truth` the datapoint's label, `index` the row's place in its
    file. `data_source` and `ability` are verl's: by them a trainer chooses how to score its own new answers.
    """

    prompt: Sequence[ChatMessage]
    response: str
    reward: float
    ground_truth: int
    datapoint_id: str
    run_id: str = ""
    rollout_id: str = ""
    agent: str = ""
    round: int = 0
    data_source: str = "nip-run"
    ability: str = ""
    split: str = "train"
    index: int = 0


Learnt = Supervised | RlTurn
"""What one agent's part of a game gives."""

Example = Learnt | Preference


@dataclass(frozen=True)
class ExampleSource:
    """Where an example comes from.

    `round` is that of the turn, of a chat of several the last of them; `other` is what only some have: of a preference
    the other side's `rejected_rollout_id` and `rejected_reward`. `group` is the datapoint's, its id where it has none.
    """

    run_id: str
    rollout_id: str
    agent: str
    round: int
    reward: float
    datapoint_id: str = ""
    other: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
