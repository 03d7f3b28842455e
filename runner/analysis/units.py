"""The parts of a finished run's games that an analyzer asks about, in the order of the run.

A unit's id is readable and stable: the rollout's id, then the agent, the channel and the round, as far as its kind has
them. Two units of one group of datapoints are not independent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from runner.analysis.analyzer import UnitKind


class UnitMessage(NamedTuple):
    """A message of a game, as the members of its channel saw it."""

    agent: str
    """The agent's name in the protocol."""
    name: str
    """The agent's name in the conversation, such as `Expert_1`."""
    channel: str
    round: int
    text: str


@dataclass(frozen=True)
class Unit:
    """A part of a game."""

    id: str
    kind: UnitKind
    rollout_id: str
    datapoint_id: str
    group: str
    """The group of the datapoint."""
    agent: str | None
    agent_name: str | None
    """The agent's name in the conversation."""
    role: str | None
    """`prover` or `verifier`."""
    stance: str | None
    """The verdict or the letter of the answer that the agent argues for."""
    channel: str | None
    round: int | None
    """The round of the message, for messages and pairs."""
    messages: tuple[UnitMessage, ...]
    """What the question is about: the messages of the game, of the agent, or of the channel, or one or two messages."""
    context: tuple[UnitMessage, ...]
    """The messages before, in the channels of the unit, for messages and pairs."""
    columns: Mapping[str, Any]
    """The columns of the datapoint; listed answers are a mapping of the game's letters to texts."""
    verdict: str | None
    """The verdict of the game. Neither the model nor people see it."""
    label: int | str | None
    """The label of the game, or the letters of the right answers. Neither the model nor people see it."""
