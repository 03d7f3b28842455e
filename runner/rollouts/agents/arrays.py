"""Games to arrays and back: histories, timesteps.

A timestep is one step of a game with all that it takes to play it and to learn from it: the histories before it at the
top, the actions and what they paid under `agents`, and the state after it, histories included, under `next`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from runner.base.errors import AgentNotActiveInChannelError
from runner.base.text import comma_join
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rounds import Message, Round
from runner.rollouts.agents.nested_arrays import Array, NestedArrayDict, stacked
from runner.spec.datasets.loader import Datapoint

__all__ = [
    "HISTORIES",
    "NestedArrayDict",
    "arrays_from_rounds",
    "check_columns",
    "is_missing",
    "rounds_from_arrays",
    "stacked",
    "timesteps",
    "write_round",
]

HISTORIES = ("message_history", "message_agent_id", "raw_message_history")

STEP_KEYS = frozenset(
    ("round", "seed", "prover_stance", "y", "datapoint_id", "done", "terminated", "padding", "agents", "next")
).union(HISTORIES)
"""The keys of a step besides the datapoint's columns."""


def check_columns(names: Iterable[str]) -> None:
    """Refuse columns that arrays have no place for.

    Raises:
        ValueError: a column has the name of a key of a step.
    """
    taken = sorted(STEP_KEYS.intersection(names))
    if taken:
        raise ValueError(
            f"columns with the name of a key of a timestep: {comma_join(taken)}; rename them with dataset.columns"
        )


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
    histories = empty_histories(protocol)
    for index, played in enumerate(rounds):
        write_round(protocol, histories, index, played)
    return histories


def empty_histories(protocol: Protocol, shape: tuple[int, ...] = ()) -> dict[str, Array]:
    """The histories of games in which nothing was said yet."""
    length, channels, agents = protocol.max_message_rounds, len(protocol.channel_names), len(protocol.agent_names)
    return {
        "message_history": np.full((*shape, length, channels), None, dtype=object),
        "message_agent_id": np.full((*shape, length, channels), -1, dtype=np.int64),
        "raw_message_history": np.full((*shape, length, agents), None, dtype=object),
    }


def write_round(protocol: Protocol, histories: Mapping[str, Array], index: int, played: Round) -> None:
    """Put a round into one game's histories.

    Raises:
        AgentNotActiveInChannelError: see `arrays_from_rounds`.
    """
    channels, agents = protocol.channel_names, protocol.agent_names
    history, senders, raws = (histories[name] for name in HISTORIES)
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


def timesteps(
    protocol: Protocol,
    rounds: Sequence[Round],
    datapoint: Datapoint | None = None,
    *,
    seed: int = 0,
    prover_stance: int | None = None,
) -> NestedArrayDict:
    """A game as timesteps, one a round up to `max_message_rounds`: what `build_fine_tune_dataset` takes any one of.

    With the datapoint that was played come its columns, `y`, `prover_stance` (its own, unless another is given),
    `datapoint_id` and the rollout's `seed`.
    `agents` has what each agent did in the step and was paid for it: `reward`, `decision`, `raw_message`,
    `retry_count` and `token_limit` (timestep agent), `message` (timestep agent channel).

    After the end come padding rows: decision 0, rewards 0, retries 0, no messages, the round stays at last + 1, and
    `next` carries the final histories.

    Raises:
        AgentNotActiveInChannelError: see `arrays_from_rounds`.
        ValueError: a column has the name of a key of a step.
    """
    length, played = protocol.max_message_rounds, len(rounds)
    full = arrays_from_rounds(protocol, rounds)
    stance = datapoint.prover_stance if datapoint is not None and prover_stance is None else prover_stance
    fixed = {} if datapoint is None else _of_datapoint(datapoint, seed, stance, length)
    agents = _actions(protocol, rounds, full["raw_message_history"])
    index = np.arange(length)
    decided = bool(rounds) and rounds[-1].decision != Decision.NONE and played >= protocol.min_message_rounds
    before, after = (_states(full, at, played, decided=decided) for at in (index, index + 1))
    done = {"done": of_each_agent(protocol, after["done"]), "reward": agents["reward"]}
    return NestedArrayDict(
        {
            **fixed,
            **before,
            "agents": {**agents, "done": of_each_agent(protocol, before["done"])},
            "next": {**fixed, **after, "agents": done},
        },
        (length,),
    )


def _states(full: Mapping[str, Array], at: Array, played: int, *, decided: bool) -> dict[str, Array]:
    """Where a game stands before each of its rounds: its histories until then, and its end."""
    round_, over = np.minimum(at, played), at >= played
    histories = {name: _until(array, round_) for name, array in full.items()}
    return {
        **histories, "round": round_, "padding": over, "done": over & decided, "terminated": over & (not decided),
    }  # fmt: skip


def of_each_agent(protocol: Protocol, done: Array) -> Array:
    """What holds of a game (game) as it holds of each of its agents (game agent)."""
    return np.repeat(done[:, None], len(protocol.agent_names), axis=1)


def _of_datapoint(datapoint: Datapoint, seed: int, stance: int | None, length: int) -> dict[str, Array]:
    """What stays the same in all steps of a game; columns keep their values as they are."""
    check_columns(datapoint.columns)
    values = {**datapoint.columns, "datapoint_id": datapoint.id}
    fixed = {name: objects([value] * length) for name, value in values.items()}
    numbers = {"y": -1 if datapoint.label is None else datapoint.label, "prover_stance": stance, "seed": seed}
    return fixed | {name: np.full(length, number, dtype=np.int64) for name, number in numbers.items()}


def objects(values: Sequence[Any]) -> Array:
    """Values as they are in an array of one dimension, lists too."""
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def _until(history: Array, round_: Array) -> Array:
    """A game's history (round ...) as it was before each of these rounds (timestep round ...)."""
    said = np.arange(len(history)) < round_[:, None]
    missing: Any = -1 if history.dtype == np.int64 else None
    return np.where(said[:, :, None], history, missing)


def _actions(protocol: Protocol, rounds: Sequence[Round], raw_message: Array) -> dict[str, Array]:
    """What each agent did in each round, and was paid for it; decision 0 in padding rows."""
    length, agents, channels = protocol.max_message_rounds, protocol.agent_names, protocol.channel_names
    shape = (length, len(agents))
    decision = np.zeros(shape, dtype=np.int64)
    rewards = np.zeros(shape, dtype=np.float64)
    retries = np.zeros(shape, dtype=np.int64)
    limits = np.zeros(shape, dtype=bool)
    message = np.full((*shape, len(channels)), None, dtype=object)
    decision[: len(rounds)] = Decision.NONE
    verifier = agents.index(protocol.verifier_name)
    for index, one in enumerate(rounds):
        decision[index, verifier] = one.decision
        for column, agent in enumerate(agents):
            rewards[index, column] = one.rewards.get(agent, 0.0)
            retries[index, column] = one.retry_counts.get(agent, 0)
            limits[index, column] = one.token_limits.get(agent, False)
        for sent in one.messages:
            message[index, agents.index(sent.agent), channels.index(sent.channel)] = sent.text
    return {
        "message": message, "raw_message": raw_message, "decision": decision, "reward": rewards,
        "retry_count": retries, "token_limit": limits,
    }  # fmt: skip
