"""Arrays to an agent's observations, and its replies to arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from runner.game.prompts.chat import ChatMessage
from runner.game.prompts.templates import FORBIDDEN
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rounds import Reply, Round
from runner.rollouts.agents.agent import Observation
from runner.rollouts.agents.arrays import HISTORIES, rounds_from_arrays
from runner.rollouts.agents.nested_arrays import Array, NestedArrayDict

PROMPT_FIELDS = ("role", "name", "content")
"""The fields of a message in `prompt`, in their order."""

_NOT_COLUMNS = frozenset(("round", "seed", "prover_stance", "y", *HISTORIES, *FORBIDDEN))


def check_round(protocol: Protocol, round_: int) -> None:
    """Refuse a round that a game does not have.

    Raises:
        ValueError: naming the round and those there are.
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
    """One game of a batch as its agents may know it; `rounds` is all that the histories hold.

    Columns are whatever else is there; a label among them never reaches a template.
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
    """The observation of a turn that is to be played: what was said before its round; None where the game is over.

    Raises:
        ValueError: the game has no such round.
    """
    if is_padding(flat, index):
        return None
    observation = observation_of(protocol, flat, index)
    check_round(protocol, observation.round)
    return replace(observation, rounds=observation.rounds[: observation.round])


def is_padding(flat: NestedArrayDict, index: int) -> bool:
    """Whether a game was over before this step."""
    return "padding" in flat and flat["padding"].dtype == bool and bool(flat["padding"][index])


def example_of(protocol: Protocol, flat: NestedArrayDict, index: int) -> Observation:
    """The observation that a step of a batch is learnt as: all that was said up to the end of it.

    Its `rounds` are those of the histories under `next`, without which the histories are those of a finished game; its
    `round` is the one that follows them, or the game's last.

    Raises:
        ValueError: the game has no such round.
    """
    after = flat["next"] if ("next", HISTORIES[0]) in flat else None
    if after is None or "round" not in flat:
        observation = observation_of(protocol, flat, index, round_=0, histories=after)
        behind = _rounds_played(observation.rounds)
    else:
        observation = observation_of(protocol, flat, index, histories=after)
        check_round(protocol, observation.round)
        behind = _rounds_behind(protocol, flat, index, observation)
    round_ = min(behind, protocol.max_message_rounds - 1)
    return replace(observation, rounds=observation.rounds[:behind], round=round_)


def _rounds_behind(protocol: Protocol, flat: NestedArrayDict, index: int, observation: Observation) -> int:
    """How many rounds there were after a step.

    A step that says no more of itself was padding where somebody had to speak in its round and nobody did.
    """
    round_ = observation.round
    if ("next", "round") in flat:
        return min(int(flat["next", "round"][index]), round_ + 1)
    if "padding" in flat:
        return round_ + (not is_padding(flat, index))
    spoken = not _is_empty(observation.rounds[round_ : round_ + 1])
    return round_ + (spoken or not protocol.speakers(round_, observation.seed))


def _rounds_played(rounds: Sequence[Round]) -> int:
    """The rounds of a finished game: it ended with the last in which anything was said."""
    played = len(rounds)
    while played and _is_empty(rounds[played - 1 : played]):
        played -= 1
    return played


def _is_empty(rounds: Sequence[Round]) -> bool:
    return not any(one.raw or one.messages for one in rounds)


def actions(
    protocol: Protocol,
    chats: Sequence[Sequence[ChatMessage]],
    replies: Sequence[Reply | None],
    width: int | None = None,
) -> NestedArrayDict:
    """One agent's replies to a batch (None: it does not speak) and their chats, as `forward` gives them.

    A reply's `retry_count` and `token_limit` stand in every channel, as in the original. `prompt` holds `width`
    messages, or else as many as the longest chat.
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
    out: Mapping[str, Any] = {
        "message": message, "raw_message": raw, "prompt": prompt, "decision": decision,
        "retry_count": retries, "token_limit": limits,
    }  # fmt: skip
    return NestedArrayDict(out, (size,))


def prompt_array(chats: Sequence[Sequence[ChatMessage]], width: int) -> Array:
    """Chats of at most `width` messages as (chat message field)."""
    prompt = np.full((len(chats), width, len(PROMPT_FIELDS)), None, dtype=object)
    for index, chat in enumerate(chats):
        for row, said in enumerate(chat):
            prompt[index, row] = [said.get(name) for name in PROMPT_FIELDS]
    return prompt


def max_prompt_messages(protocol: Protocol) -> int:
    """No chat of a protocol's games has more messages: the original's bound, which is generous."""
    return 2 * (protocol.max_message_rounds * len(protocol.channel_names) + 10)


def scalar(value: Any) -> Any:
    """A NumPy number as Python's own; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value
