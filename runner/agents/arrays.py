"""Nested dictionaries of NumPy arrays with a shared batch shape, and games to them and back.

Text is held in object arrays with None for no message; numbers in integer, float and boolean arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.errors import AgentNotActiveInChannelError
from runner.protocols.game import Message, Round
from runner.protocols.protocol import Decision, Protocol

Array = NDArray[Any]
Key = str | tuple[str, ...]


class NestedArrayDict:
    """A nested dictionary of arrays whose leading dimensions are all `batch_size`.

    `data["round"]`, `data["agents", "decision"]` read a leaf; `data[0]`, `data[2:4]` the part of a batch.
    """

    def __init__(self, data: Mapping[Any, Any], batch_size: int | Sequence[int] | None = None) -> None:
        self._data: dict[str, Any] = {}
        shape = (batch_size,) if isinstance(batch_size, int) else batch_size
        if shape is None:
            leaves = list(_leaves(data))
            shape = _shared_prefix([leaf.shape for leaf in leaves])
        self.batch_size: tuple[int, ...] = tuple(shape)
        for key, value in data.items():
            self[key] = value

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._data[key]
        if isinstance(key, tuple) and key and all(isinstance(part, str) for part in key):
            inner: Any = self
            for part in key:
                inner = inner[part]
            return inner
        return self._map(lambda array: array[key])

    def __setitem__(self, key: Key, value: Any) -> None:
        if isinstance(key, tuple):
            head, *rest = key
            if not rest:
                self[head] = value
                return
            inner = self._data.setdefault(head, NestedArrayDict({}, self.batch_size))
            inner[tuple(rest)] = value
            return
        if isinstance(value, (Mapping, NestedArrayDict)):
            self._data[key] = NestedArrayDict(dict(value.items()), self.batch_size)
            return
        array = value if isinstance(value, np.ndarray) else np.asarray(value, dtype=_dtype_of(value))
        if array.shape[: len(self.batch_size)] != self.batch_size:
            raise ValueError(f"{key!r} has shape {array.shape}, which does not start with the batch {self.batch_size}")
        self._data[key] = array

    def __contains__(self, key: object) -> bool:
        try:
            self[key]
        except (KeyError, TypeError, IndexError):
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"NestedArrayDict({{{', '.join(self._data)}}}, batch_size={self.batch_size})"

    def keys(self) -> Iterator[str]:
        return iter(self._data)

    def items(self) -> Iterator[tuple[str, Any]]:
        return iter(self._data.items())

    def update(self, other: Mapping[str, Any] | NestedArrayDict) -> NestedArrayDict:
        """Set every leaf of `other` here."""
        for key, value in other.items():
            self[key] = value
        return self

    def reshape(self, *shape: int) -> NestedArrayDict:
        """The same leaves under another batch shape of the same size."""
        size = len(self.batch_size)
        return self._map(lambda array: array.reshape((*shape, *array.shape[size:])))

    def _map(self, function: Any) -> NestedArrayDict:
        mapped = {
            key: value._map(function)  # noqa: SLF001 - of its own class
            if isinstance(value, NestedArrayDict)
            else function(value)
            for key, value in self._data.items()
        }
        probe = function(np.empty(self.batch_size, dtype=bool))
        return NestedArrayDict(mapped, np.shape(probe))


def stacked(items: Sequence[NestedArrayDict]) -> NestedArrayDict:
    """Dictionaries of one form as one, along a new first dimension of the batch."""
    first = items[0]
    joined = {
        key: stacked([item[key] for item in items])
        if isinstance(value, NestedArrayDict)
        else np.stack([item[key] for item in items])
        for key, value in first.items()
    }
    return NestedArrayDict(joined, (len(items), *first.batch_size))


def _leaves(data: Mapping[Any, Any]) -> Iterator[Array]:
    for value in data.values():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        elif isinstance(value, NestedArrayDict):
            yield from _leaves(dict(value.items()))
        else:
            yield np.asarray(value, dtype=_dtype_of(value)) if not isinstance(value, np.ndarray) else value


def _shared_prefix(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    if not shapes:
        return ()
    first = min(shapes, key=len)
    length = 0
    while length < len(first) and all(shape[length] == first[length] for shape in shapes):
        length += 1
    return first[:length]


def _dtype_of(value: Any) -> Any:
    """Text and missing values need object arrays: NumPy would cut or stringify them."""
    while isinstance(value, (list, tuple)) and value:
        if any(item is None or isinstance(item, str) for item in value):
            return object
        value = next((item for item in value if isinstance(item, (list, tuple))), value[0])
    return object if value is None or isinstance(value, str) else None


def rounds_from_arrays(
    protocol: Protocol, message_history: Any, message_agent_id: Any, raw_message_history: Any
) -> list[Round]:
    """One game's histories (round channel), (round channel), (round agent) into rounds.

    Raises:
        ValueError: a message without a sender.
    """
    rounds = []
    for texts, senders, raws in zip(message_history, message_agent_id, raw_message_history, strict=True):
        messages = []
        for channel, text, sender in zip(protocol.channel_names, texts, senders, strict=True):
            if is_missing(text):
                continue
            if sender is None or int(sender) < 0:
                raise ValueError(f"the message {str(text)[:40]!r} in {channel!r} has no sender")
            messages.append(Message(channel, protocol.agent_names[int(sender)], text))
        raw = {agent: text for agent, text in zip(protocol.agent_names, raws, strict=True) if not is_missing(text)}
        rounds.append(Round(raw=raw, messages=messages))
    return rounds


def is_missing(text: Any) -> bool:
    return text is None or (isinstance(text, float) and np.isnan(text))


def arrays_from_rounds(protocol: Protocol, rounds: Sequence[Round]) -> dict[str, Array]:
    """One game's histories, padded to `max_message_rounds`.

    Raises:
        AgentNotActiveInChannelError: two agents spoke in one channel in one round, for which arrays of one
            message a channel have no place.
    """
    length, channels, agents = protocol.max_message_rounds, protocol.channel_names, protocol.agent_names
    history = np.full((length, len(channels)), None, dtype=object)
    senders = np.full((length, len(channels)), -1, dtype=np.int64)
    raws = np.full((length, len(agents)), None, dtype=object)
    for index, played in enumerate(rounds):
        for message in played.messages:
            column = channels.index(message.channel)
            if senders[index, column] != -1:
                raise AgentNotActiveInChannelError(
                    f"round {index} has two messages in {message.channel!r}; arrays hold one a channel"
                )
            history[index, column] = message.text
            senders[index, column] = agents.index(message.agent)
        for agent, text in played.raw.items():
            raws[index, agents.index(agent)] = text
    return {"message_history": history, "message_agent_id": senders, "raw_message_history": raws}


def timesteps(protocol: Protocol, rounds: Sequence[Round]) -> NestedArrayDict:
    """A game as timesteps, one a round up to `max_message_rounds`.

    After the end come padding rows: decision 0, rewards 0, retries 0, no messages, the round stays at last + 1.
    """
    length, agents, channels = protocol.max_message_rounds, protocol.agent_names, protocol.channel_names
    played = len(rounds)
    decided = (
        bool(rounds)
        and rounds[-1].decision != Decision.NONE
        and played <= length
        and _ended_by_decision(protocol, rounds)
    )
    full = arrays_from_rounds(protocol, rounds)
    padding = np.arange(length) >= played
    shape = (length, len(agents))
    decision = np.where(padding[:, None], 0, Decision.NONE) * np.ones(shape, dtype=np.int64)
    rewards = np.zeros(shape, dtype=np.float32)
    retries = np.zeros(shape, dtype=np.int64)
    limits = np.zeros(shape, dtype=bool)
    message = np.full((length, len(agents), len(channels)), None, dtype=object)
    verifier = agents.index(protocol.verifier_name)
    for index, one in enumerate(rounds):
        decision[index, verifier] = one.decision
        for column, agent in enumerate(agents):
            rewards[index, column] = one.rewards.get(agent, 0.0)
            retries[index, column] = one.retry_counts.get(agent, 0)
            limits[index, column] = one.token_limits.get(agent, False)
        for sent in one.messages:
            message[index, agents.index(sent.agent), channels.index(sent.channel)] = sent.text
    done = padding & decided
    terminated = padding & (not decided)
    next_done = np.arange(length) >= played - 1 if decided else np.zeros(length, dtype=bool)
    next_terminated = np.arange(length) >= played - 1 if not decided else np.zeros(length, dtype=bool)
    return NestedArrayDict(
        {
            "round": np.minimum(np.arange(length), played),
            "padding": padding,
            "done": done,
            "terminated": terminated,
            "agents": {
                "message": message,
                "raw_message": full["raw_message_history"],
                "decision": decision,
                "reward": rewards,
                "retry_count": retries,
                "token_limit": limits,
            },
            "next": {
                "done": next_done,
                "terminated": next_terminated,
                "round": np.minimum(np.arange(length) + 1, played),
            },
        },
        (length,),
    )


def _ended_by_decision(protocol: Protocol, rounds: Sequence[Round]) -> bool:
    return len(rounds) - 1 >= protocol.min_message_rounds - 1
