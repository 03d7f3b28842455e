"""Converts arrays to an agent's observations, and the agent's replies to arrays.

`runner.rollouts.agents.arrays` describes the layout of these arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from runner.game.prompts.chat import ChatMessage
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rounds import Reply, Round
from runner.game.protocols.schema import FORBIDDEN
from runner.rollouts.agents.agent import Observation
from runner.rollouts.agents.arrays import HISTORIES, rounds_from_arrays
from runner.rollouts.agents.nested_arrays import Array, NestedArrayDict

PROMPT_FIELDS = ("role", "name", "content")
"""The fields of a message in `prompt`, in order."""

_NOT_COLUMNS = frozenset(("round", "seed", "prover_stance", "y", *HISTORIES, *FORBIDDEN))


def check_round(protocol: Protocol, round_: int) -> None:
    """Check that a game of the protocol has this round.

    Raises:
        ValueError: the game has no such round.
    """
    last = protocol.max_message_rounds - 1
    if not 0 <= round_ <= last:
        raise ValueError(f"there is no round {round_}; rounds count from 0 to {last} in {protocol.name!r}")


def observation_of(
    protocol: Protocol,
    flat: NestedArrayDict,
    index: int,
    *,
    round_: int | None = None,
    histories: NestedArrayDict | None = None,
) -> Observation:
    """Return the observation of one game of a batch, with all rounds of its histories.

    Keys that are not part of a timestep count as the datapoint's columns. The label does not: templates must never see
    the label.
    """
    columns = {
        name: scalar(flat[name][index])
        for name in flat
        if name not in _NOT_COLUMNS and not isinstance(flat[name], NestedArrayDict)
    }
    source = flat if histories is None else histories
    return Observation(
        round=int(flat["round"][index]) if round_ is None else round_,
        rounds=rounds_from_arrays(protocol, *(source[name][index] for name in HISTORIES)),
        columns=columns,
        seed=int(flat["seed"][index]) if "seed" in flat else 0,
        prover_stance=int(flat["prover_stance"][index]) if "prover_stance" in flat else 1,
        datapoint=f"array-{index}",
    )


def turn_of(protocol: Protocol, flat: NestedArrayDict, index: int) -> Observation | None:
    """Return the observation for a game's next turn, with the rounds before this turn; None if the game is over.

    Raises:
        ValueError: the game has no such round.
    """
    if is_padding(flat, index):
        return None
    observation = observation_of(protocol, flat, index)
    check_round(protocol, observation.round)
    return replace(observation, rounds=observation.rounds[: observation.round])


def is_padding(flat: NestedArrayDict, index: int) -> bool:
    """Return whether a game was over before this step."""
    return "padding" in flat and flat["padding"].dtype == bool and bool(flat["padding"][index])


def example_of(protocol: Protocol, flat: NestedArrayDict, index: int) -> Observation:
    """Return the observation for the training example of a step, with all messages up to the end of the step.

    The rounds are read from the histories under `next` or, without `next`, from the histories at the top level. In that
    case, the game must be finished. The observation's `round` is the round after the step, or the game's last round.

    Raises:
        ValueError: the game has no such round.
    """
    next_arrays = flat["next"] if ("next", HISTORIES[0]) in flat else None
    if next_arrays is None or "round" not in flat:
        observation = observation_of(protocol, flat, index, round_=0, histories=next_arrays)
        round_count = _rounds_played(observation.rounds)
    else:
        observation = observation_of(protocol, flat, index, histories=next_arrays)
        check_round(protocol, observation.round)
        round_count = _rounds_after(protocol, flat, index, observation)
    round_ = min(round_count, protocol.max_message_rounds - 1)
    return replace(observation, rounds=observation.rounds[:round_count], round=round_)


def _rounds_after(protocol: Protocol, flat: NestedArrayDict, index: int, observation: Observation) -> int:
    """Return the number of rounds played before the end of a step.

    Without the keys `next`/`round` and `padding`, a step counts as padding if an agent had to speak and none did.
    """
    round_ = observation.round
    if ("next", "round") in flat:
        return min(int(flat["next", "round"][index]), round_ + 1)
    if "padding" in flat:
        return round_ + (not is_padding(flat, index))
    has_message = not _is_empty(observation.rounds[round_ : round_ + 1])
    return round_ + (has_message or not protocol.speakers(round_, observation.seed))


def _rounds_played(rounds: Sequence[Round]) -> int:
    """Return the number of rounds of a finished game. Its last round is the last one with a message."""
    count = len(rounds)
    while count and _is_empty(rounds[count - 1 : count]):
        count -= 1
    return count


def _is_empty(rounds: Sequence[Round]) -> bool:
    return not any(played.raw or played.messages for played in rounds)


def actions(
    protocol: Protocol,
    chats: Sequence[Sequence[ChatMessage]],
    replies: Sequence[Reply | None],
    width: int | None = None,
) -> NestedArrayDict:
    """Return the arrays that `forward` returns for one agent's replies to a batch of games.

    A reply is None if the agent does not speak. Its `retry_count` and `token_limit` are repeated in every channel, as
    in the original code. `prompt` is padded to `width` messages; if `width` is None, to the longest chat.
    """
    size, names = len(replies), protocol.channel_names
    longest = max((len(chat) for chat in chats), default=0)
    prompt = prompt_array(chats, longest if width is None else width)
    message = np.full((size, len(names)), None, dtype=object)
    raw = np.full((size,), None, dtype=object)
    decision = np.full((size,), int(Decision.NONE), dtype=np.int64)
    retries = np.zeros((size, len(names)), dtype=np.int64)
    limits = np.zeros((size, len(names)), dtype=bool)
    for index, reply in enumerate(replies):
        if reply is None:
            continue
        raw[index], decision[index] = reply.raw, reply.decision
        retries[index], limits[index] = reply.retry_count, reply.token_limit
        for channel, text in (reply.messages or {}).items():
            message[index, names.index(channel)] = text
    arrays: Mapping[str, Any] = {
        "message": message, "raw_message": raw, "prompt": prompt, "decision": decision,
        "retry_count": retries, "token_limit": limits,
    }  # fmt: skip
    return NestedArrayDict(arrays, (size,))


def prompt_array(chats: Sequence[Sequence[ChatMessage]], width: int) -> Array:
    """Return chats of at most `width` messages as an array (chat message field)."""
    prompt = np.full((len(chats), width, len(PROMPT_FIELDS)), None, dtype=object)
    for index, chat in enumerate(chats):
        for row, message in enumerate(chat):
            prompt[index, row] = [message.get(name) for name in PROMPT_FIELDS]
    return prompt


def max_prompt_messages(protocol: Protocol) -> int:
    """Return an upper bound on the messages of a chat in a protocol's games, the same as in the original code."""
    return 2 * (protocol.max_message_rounds * len(protocol.channel_names) + 10)


def scalar(value: Any) -> Any:
    """Convert a NumPy number to a Python number; return any other value unchanged."""
    return value.item() if isinstance(value, np.generic) else value
