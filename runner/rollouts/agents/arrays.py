"""Converts games to arrays and back, for agents and environments of users who train their own models.

A timestep is one step of a game, with everything needed to play it and to learn from it. The histories before the step
are at the top level, actions and rewards under `agents`, and the state after the step with its histories under `next`.
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
    "HISTORIES", "NestedArrayDict", "arrays_from_rounds", "check_columns", "is_missing", "rounds_from_arrays",
    "stacked", "timesteps", "write_round",
]  # fmt: skip

HISTORIES = ("message_history", "message_agent_id", "raw_message_history")

STEP_KEYS = frozenset(
    ("round", "seed", "prover_stance", "y", "datapoint_id", "done", "terminated", "padding", "agents", "next")
).union(HISTORIES)
"""The keys of a step other than the datapoint's columns."""


def check_columns(names: Iterable[str]) -> None:
    """Check that no column has the name of a key of a timestep.

    Raises:
        ValueError: a column has such a name.
    """
    clashing = sorted(STEP_KEYS.intersection(names))
    if clashing:
        raise ValueError(
            f"these columns have the name of a key of a timestep: {comma_join(clashing)}; rename them with "
            "dataset.columns"
        )


def rounds_from_arrays(
    protocol: Protocol, message_history: Any, message_agent_id: Any, raw_message_history: Any
) -> list[Round]:
    """Convert one game's histories, of shapes (round channel), (round channel) and (round agent), to rounds.

    Raises:
        ValueError: a message has no sender.
    """
    rounds = []
    for texts, senders, raws in zip(message_history, message_agent_id, raw_message_history, strict=True):
        messages = []
        for channel, text, sender in zip(protocol.channel_names, texts, senders, strict=True):
            if is_missing(text):
                continue
            if sender is None or int(sender) < 0:
                raise ValueError(
                    f"the message {str(text)[:40]!r} in {channel!r} has no sender; set its message_agent_id to the "
                    "sender's index in protocol_handler.agent_names"
                )
            messages.append(Message(channel, protocol.agent_names[int(sender)], text))
        raw = {agent: text for agent, text in zip(protocol.agent_names, raws, strict=True) if not is_missing(text)}
        rounds.append(Round(raw=raw, messages=messages))
    return rounds


def is_missing(text: Any) -> bool:
    return text is None or (isinstance(text, float) and np.isnan(text))


def arrays_from_rounds(protocol: Protocol, rounds: Sequence[Round]) -> dict[str, Array]:
    """Return one game's histories as arrays, padded to `max_message_rounds`.

    Raises:
        AgentNotActiveInChannelError: two agents spoke in the same channel and round, but an array holds one
            message for each channel and round.
    """
    histories = empty_histories(protocol)
    for index, played in enumerate(rounds):
        write_round(protocol, histories, index, played)
    return histories


def empty_histories(protocol: Protocol, shape: tuple[int, ...] = ()) -> dict[str, Array]:
    """Return the histories of games that have no messages yet."""
    length, channels, agents = protocol.max_message_rounds, len(protocol.channel_names), len(protocol.agent_names)
    return {
        "message_history": np.full((*shape, length, channels), None, dtype=object),
        "message_agent_id": np.full((*shape, length, channels), -1, dtype=np.int64),
        "raw_message_history": np.full((*shape, length, agents), None, dtype=object),
    }


def write_round(protocol: Protocol, histories: Mapping[str, Array], index: int, played: Round) -> None:
    """Write a round into one game's histories.

    Raises:
        AgentNotActiveInChannelError: see `arrays_from_rounds`.
    """
    channels, agents = protocol.channel_names, protocol.agent_names
    history, senders, raws = (histories[name] for name in HISTORIES)
    for message in played.messages:
        column = channels.index(message.channel)
        if senders[index, column] != -1:
            raise AgentNotActiveInChannelError(
                f"round {index} has two messages in {message.channel!r}, but arrays hold one for each channel; use a "
                "protocol where one agent speaks in each channel"
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
    """Return the timesteps of a game, one for each round up to `max_message_rounds`.

    `build_fine_tune_dataset` accepts any of the timesteps. With a `datapoint`, they also have its columns, `y`,
    `prover_stance` (the datapoint's, unless the argument sets it), `datapoint_id` and the rollout's `seed`.
    `agents` has each agent's actions and rewards in the step: `reward`, `decision`, `raw_message`, `retry_count` and
    `token_limit` (timestep agent), and `message` (timestep agent channel).

    The rows after the end of the game are padding: decision, rewards and retries are 0, there are no messages, `round`
    stays at the last round + 1, and `next` has the final histories.

    Raises:
        AgentNotActiveInChannelError: see `arrays_from_rounds`.
        ValueError: a column has the name of a key of a timestep.
    """
    length, round_count = protocol.max_message_rounds, len(rounds)
    histories = arrays_from_rounds(protocol, rounds)
    stance = datapoint.prover_stance if datapoint is not None and prover_stance is None else prover_stance
    constants = {} if datapoint is None else _constants(datapoint, seed, stance, length)
    agents = _actions(protocol, rounds, histories["raw_message_history"])
    steps = np.arange(length)
    decided = bool(rounds) and rounds[-1].decision != Decision.NONE and round_count >= protocol.min_message_rounds
    before, after = (_states(histories, step, round_count, decided=decided) for step in (steps, steps + 1))
    done = {"done": repeat_for_agents(protocol, after["done"]), "reward": agents["reward"]}
    return NestedArrayDict(
        {
            **constants,
            **before,
            "agents": {**agents, "done": repeat_for_agents(protocol, before["done"])},
            "next": {**constants, **after, "agents": done},
        },
        (length,),
    )


def _states(full_histories: Mapping[str, Array], step: Array, round_count: int, *, decided: bool) -> dict[str, Array]:
    """Return a game's state before each step in `step`: its histories until then, and whether it has ended."""
    round_, over = np.minimum(step, round_count), step >= round_count
    histories = {name: _history_before(array, round_) for name, array in full_histories.items()}
    return {
        **histories, "round": round_, "padding": over, "done": over & decided, "terminated": over & (not decided),
    }  # fmt: skip


def repeat_for_agents(protocol: Protocol, done: Array) -> Array:
    """Return an array (game agent) that repeats each game's value in `done` (game) for each agent."""
    return np.repeat(done[:, None], len(protocol.agent_names), axis=1)


def _constants(datapoint: Datapoint, seed: int, stance: int | None, length: int) -> dict[str, Array]:
    """Return the arrays that are constant over the steps of a game, with column values as in the datapoint."""
    check_columns(datapoint.columns)
    values = {**datapoint.columns, "datapoint_id": datapoint.id}
    constants = {name: object_array([value] * length) for name, value in values.items()}
    numbers = {"y": -1 if datapoint.label is None else datapoint.label, "prover_stance": stance, "seed": seed}
    return constants | {name: np.full(length, number, dtype=np.int64) for name, number in numbers.items()}


def object_array(values: Sequence[Any]) -> Array:
    """Return a one-dimensional object array of values. A value that is a list is not divided."""
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def _history_before(history: Array, round_: Array) -> Array:
    """Return a game's history (round ...) as it was before each of the given rounds: (timestep round ...)."""
    is_past = np.arange(len(history)) < round_[:, None]
    missing: Any = -1 if history.dtype == np.int64 else None
    return np.where(is_past[:, :, None], history, missing)


def _actions(protocol: Protocol, rounds: Sequence[Round], raw_message: Array) -> dict[str, Array]:
    """Return each agent's actions and rewards in each round; padding rows have decision 0."""
    length, agents, channels = protocol.max_message_rounds, protocol.agent_names, protocol.channel_names
    shape = (length, len(agents))
    decision = np.zeros(shape, dtype=np.int64)
    rewards = np.zeros(shape, dtype=np.float64)
    retries = np.zeros(shape, dtype=np.int64)
    limits = np.zeros(shape, dtype=bool)
    message = np.full((*shape, len(channels)), None, dtype=object)
    decision[: len(rounds)] = Decision.NONE
    for index, played in enumerate(rounds):
        if protocol.file.panel is None:
            decision[index, agents.index(protocol.verifier_name)] = played.decision
        for judge, vote in played.panel.items():
            decision[index, agents.index(judge)] = vote.decision
        for column, agent in enumerate(agents):
            rewards[index, column] = played.rewards.get(agent, 0.0)
            retries[index, column] = played.retry_counts.get(agent, 0)
            limits[index, column] = played.token_limits.get(agent, False)
        for sent in played.messages:
            message[index, agents.index(sent.agent), channels.index(sent.channel)] = sent.text
    return {
        "message": message, "raw_message": raw_message, "decision": decision, "reward": rewards,
        "retry_count": retries, "token_limit": limits,
    }  # fmt: skip
