"""Games on arrays, played step by step: `step` takes the agents' replies and returns the arrays of the next turn.

It plays with `runner.game.protocols.rounds.play`, so that a game has the same result as in the runner.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from runner.base.errors import AgentNotActiveInChannelError
from runner.base.hashing import derived_seed
from runner.base.text import comma_join, did_you_mean
from runner.game.prompts.chat import ChatMessage
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rounds import FinishedGame, Reply, Round, play
from runner.rollouts.agents.arguments import checked_protocol
from runner.rollouts.agents.arrays import (
    HISTORIES,
    NestedArrayDict,
    check_columns,
    empty_histories,
    is_missing,
    object_array,
    repeat_for_agents,
    rounds_from_arrays,
    write_round,
)
from runner.rollouts.agents.nested_arrays import Array
from runner.rollouts.agents.observations import PROMPT_FIELDS, check_round, is_padding, max_prompt_messages
from runner.spec.datasets.loader import Datapoint, Dataset
from runner.spec.loader import Spec

_LABELS = ("y", "label")
_IDS = ("datapoint_id", "id")
_END_FLAGS = ("padding", "done", "terminated")
_ACTION_KEYS = ("message", "raw_message", "decision", "retry_count", "token_limit")


class EnvironmentStep(NamedTuple):
    """The result of one step of a batch of games.

    The original code calls `over` `done`; in the arrays, `done` means that the game was decided.
    """

    arrays: NestedArrayDict
    """The arrays of the next turn. `done`: the game was decided. `terminated`: it ran out of rounds."""
    over: Array
    """(...): whether the game has ended, by a decision or because it ran out of rounds."""
    rewards: Array
    """(... agent): the rewards of the step, in the order of `protocol_handler.agent_names`."""


class _PlayedRound(NamedTuple):
    """One round of one game, and the finished game if the round ended it."""

    round: Round
    finished: FinishedGame | None


class Environment:
    """The games of one protocol. `seed` is the spec's seed; the games' seeds are derived from it as in a run.

    Raises:
        TypeError: `protocol_handler` is not a `Protocol`.
    """

    def __init__(self, protocol_handler: Protocol, *, seed: int = 0) -> None:
        self.protocol_handler = checked_protocol(protocol_handler)
        self.seed = seed

    @property
    def max_prompt_messages(self) -> int:
        """The upper bound on the messages of a chat; `forward(data, environment)` pads prompts to this number."""
        return max_prompt_messages(self.protocol_handler)

    def reset(
        self,
        datapoints: Dataset | Sequence[Datapoint] | Mapping[str, Any],
        *,
        seed: Any = None,
        prover_stance: Any = None,
        repeat: int = 0,
    ) -> NestedArrayDict:
        """Return the arrays of a first turn, of batch shape (n,).

        `datapoints` is a spec's dataset, `load_spec(...).dataset`, or a mapping of columns that include the label `y`.
        Seeds and stances are the same as in the run's rollouts of this `repeat`, unless they are passed as arguments
        (one for all, or one for each datapoint) or as columns.

        Raises:
            ValueError: there are no datapoints or no labels. Or columns differ in length, have more than one dimension,
                or have the name of a key of a timestep. Or the number of seeds or stances is wrong, or a stance is
                neither 0 nor 1.
        """
        points, numbers = _points_of(datapoints)
        if not points:
            raise ValueError("there are no datapoints to play; pass at least one")
        columns, size = list(points[0].columns), len(points)
        check_columns(columns)
        arguments = {"seed": seed, "prover_stance": prover_stance}
        numbers = {**numbers, **{name: value for name, value in arguments.items() if value is not None}}
        return NestedArrayDict(
            {
                **{name: object_array([point.columns[name] for point in points]) for name in columns},
                **self._numbers(points, numbers, repeat),
                "datapoint_id": object_array([point.id for point in points]),
                **empty_histories(self.protocol_handler, (size,)),
                **{name: np.zeros(size, dtype=bool) for name in _END_FLAGS},
                "agents": {"done": repeat_for_agents(self.protocol_handler, np.zeros(size, dtype=bool))},
            },
            (size,),
        )

    def _numbers(self, points: Sequence[Datapoint], overrides: Mapping[str, Any], repeat: int) -> dict[str, Array]:
        """Return the seeds, stances and labels of first turns, each (game); the default is the same as in the run."""
        numbers = {
            "seed": [derived_seed("rollout", self.seed, point.id, repeat) for point in points],
            "prover_stance": [point.prover_stance for point in points],
            **overrides,
            "y": [point.label for point in points],
            "round": 0,
        }
        arrays = {name: _integers(name, values, len(points)) for name, values in numbers.items()}
        if not np.isin(arrays["prover_stance"], (0, 1)).all():
            raise ValueError(f"prover_stance must be 0 or 1, not {arrays['prover_stance'].tolist()}")
        return arrays

    def add_replies(self, arrays: NestedArrayDict, replies: Mapping[str, NestedArrayDict]) -> NestedArrayDict:
        """Return the timestep for `step`: the arrays with the result of each agent's `forward` under `agents`.

        Raises:
            ValueError: an agent's reply is missing, or the protocol has no agent of that name.
        """
        names = self.protocol_handler.agent_names
        missing = [name for name in names if name not in replies]
        unknown = [f"{name!r}{did_you_mean(name, missing or names)}" for name in replies if name not in names]
        if missing or unknown:
            problems = [f"no reply of {comma_join(missing)}"] * bool(missing) + [f"no agent {name}" for name in unknown]
            raise ValueError(f"{'; '.join(problems)}; pass the result of each agent's forward, by agent name")
        timestep = NestedArrayDict(dict(arrays.items()), arrays.batch_size)
        axis = len(arrays.batch_size)
        for key in replies[names[0]]:
            timestep["agents", key] = np.stack([replies[name][key] for name in names], axis=axis)
        return timestep

    def step(self, arrays: NestedArrayDict) -> EnvironmentStep:
        """Play one round of each game that is not over.

        `arrays` are those of the turn, with the agents' actions under `agents`: `raw_message` and `decision`
        (... agent), `message`, `retry_count` and `token_limit` (... agent channel); see `add_replies`. The method
        completes them to a timestep in place: `agents`/`decision` becomes the decision that counts, which the protocol
        may force, or 0 if the game was over; `next` becomes the state after the step.

        Raises:
            ValueError: there are no actions, an agent that must speak has no message, or a game has no such round.
            AgentNotActiveInChannelError: an agent speaks that is not active in this round or channel, or two agents
                speak in the same channel, but arrays hold one message for each.
        """
        missing = [key for key in _ACTION_KEYS if ("agents", key) not in arrays]
        if missing:
            raise ValueError(
                f"no {comma_join(missing)} under 'agents'; add the result of each agent's forward with add_replies"
            )
        shape, size = arrays.batch_size, math.prod(arrays.batch_size)
        flat = arrays.reshape(size)
        played = [None if is_padding(flat, index) else self._play_round(flat, index) for index in range(size)]
        following = self._following(flat, played).reshape(*shape)
        decision, rewards = (
            array.reshape(*shape, array.shape[-1]) for array in self._decision_and_rewards(flat, played)
        )
        arrays["agents", "decision"] = decision
        arrays["agents", "reward"] = rewards
        arrays["next"] = following
        arrays["next", "agents", "reward"] = rewards
        return EnvironmentStep(following, following["padding"], rewards)

    def _following(self, flat: NestedArrayDict, played: Sequence[_PlayedRound | None]) -> NestedArrayDict:
        """Return the arrays of the next turn (game), given the round played in each game, or None if it was over."""
        after = {name: flat[name].copy() for name in (*HISTORIES, "round", *_END_FLAGS)}
        for index, result in enumerate(played):
            if result is None:
                continue
            round_, finished = int(flat["round"][index]), result.finished
            write_round(self.protocol_handler, {name: after[name][index] for name in HISTORIES}, round_, result.round)
            after["round"][index] = round_ + 1
            if finished is not None:
                after["padding"][index] = True
                after["done"][index], after["terminated"][index] = finished.decided, finished.terminated
        unchanged = {name: flat[name] for name in flat if name not in ("agents", "next", *after)}
        done = repeat_for_agents(self.protocol_handler, after["done"])
        return NestedArrayDict({**unchanged, **after, "agents": {"done": done}}, flat.batch_size)

    def _decision_and_rewards(
        self, flat: NestedArrayDict, played: Sequence[_PlayedRound | None]
    ) -> tuple[Array, Array]:
        """Return the decisions that count and the rewards of this step, each (game agent); 0 if the game was over."""
        agents = self.protocol_handler.agent_names
        decision = flat["agents", "decision"].copy()
        rewards = np.zeros((len(played), len(agents)), dtype=np.float64)
        for index, result in enumerate(played):
            if result is None:
                decision[index] = 0
                continue
            decision[index, agents.index(self.protocol_handler.verifier_name)] = result.round.decision
            rewards[index] = [result.round.rewards.get(agent, 0.0) for agent in agents]
        return decision, rewards

    def _play_round(self, flat: NestedArrayDict, index: int) -> _PlayedRound:
        protocol, round_, seed = self.protocol_handler, int(flat["round"][index]), int(flat["seed"][index])
        check_round(protocol, round_)
        rounds = rounds_from_arrays(protocol, *(flat[name][index][:round_] for name in HISTORIES))
        replies = self._replies(flat["agents"], index, round_, seed)
        game = play(
            protocol,
            seed=seed,
            label=int(flat["y"][index]),
            prover_stance=int(flat["prover_stance"][index]),
            rounds=rounds,
        )
        # `play` skips silent rounds, but here each of them is a step.
        turn = next(game)
        finished = None
        if turn.round == round_:
            try:
                turn = game.send(replies)
            except StopIteration as end:
                finished = end.value
        game.close()
        return _PlayedRound((turn if finished is None else finished).rounds[round_], finished)

    def _replies(self, actions: NestedArrayDict, index: int, round_: int, seed: int) -> dict[str, Reply]:
        """Return the agents' replies in one game's turn."""
        protocol, replies = self.protocol_handler, {}
        speakers = protocol.speakers(round_, seed)
        for column, agent in enumerate(protocol.agent_names):
            raw = actions["raw_message"][index, column]
            messages = {
                channel: text
                for channel, text in zip(protocol.channel_names, actions["message"][index, column], strict=True)
                if not is_missing(text)
            }
            wrong_channels = messages.keys() - set(speakers.get(agent, ()))
            if wrong_channels or (agent not in speakers and not is_missing(raw)):
                where = f" in {min(wrong_channels)!r}" if wrong_channels else ""
                raise AgentNotActiveInChannelError(f"game {index}: {agent} does not speak{where} in round {round_}")
            if agent not in speakers:
                continue
            if is_missing(raw):
                raise ValueError(f"game {index}: {agent} speaks in round {round_}, and agents/raw_message has no text")
            decision = int(actions["decision"][index, column])
            replies[agent] = Reply(
                raw,
                messages if messages or decision == Decision.NONE else None,
                decision,
                int(np.max(actions["retry_count"][index, column])),
                bool(np.any(actions["token_limit"][index, column])),
            )
        return replies

    def prompt_array_to_list(self, prompt: Array) -> list[ChatMessage]:
        """Convert one chat of `forward`'s result, (message field), to a list of messages."""
        messages: list[Any] = []
        for row in prompt:
            message = {name: text for name, text in zip(PROMPT_FIELDS, row, strict=True) if text is not None}
            if message:
                messages.append(message)
        return messages


def first_turn(
    spec: Spec, datapoints: Dataset | Sequence[Datapoint] | Mapping[str, Any] | None = None, *, repeat: int = 0
) -> NestedArrayDict:
    """Return the arrays of the first turn of a spec's games, of batch shape (game), for `OpenAiWholeAgent.forward`.

    `datapoints` is the spec's dataset by default, or a mapping of columns that include the label `y`; see
    `Environment.reset`. Seeds and stances are the same as in the run's rollouts of this `repeat`.

        >>> from runner import first_turn, load_spec
        >>> arrays = first_turn(load_spec("specs/quickstart.yaml", {"dataset.limit": 2}))
        >>> arrays.batch_size, arrays["message_history"].shape
        ((2,), (2, 7, 1))

    Raises:
        ValueError: see `Environment.reset`.
    """
    environment = Environment(spec.protocol, seed=spec.experiment.seed)
    return environment.reset(spec.dataset if datapoints is None else datapoints, repeat=repeat)


def _integers(name: str, values: Any, size: int) -> Array:
    """Return an array with one integer for each datapoint; a single value is repeated."""
    try:
        return np.broadcast_to(np.asarray(values, np.int64), size).copy()
    except (ValueError, TypeError):
        raise ValueError(f"{name} must be one integer, or one for each of the {size} datapoints") from None


def prompt_width(environment: object) -> int | None:
    """Return the number of messages that prompts are padded to; None without an environment.

    Raises:
        TypeError: `environment` is not an `Environment`.
    """
    if environment is None:
        return None
    if not isinstance(environment, Environment):
        text = reprlib.repr(environment)
        raise TypeError(f"environment is {text}, not an Environment; pass Environment(spec.protocol), or None")
    return environment.max_prompt_messages


def _points_of(
    datapoints: Dataset | Sequence[Datapoint] | Mapping[str, Any],
) -> tuple[list[Datapoint], Mapping[str, Any]]:
    """Return the datapoints, and the seeds and stances among their columns."""
    if isinstance(datapoints, Dataset):
        return list(datapoints.datapoints), {}
    return _points_of_columns(datapoints) if isinstance(datapoints, Mapping) else (list(datapoints), {})


def _points_of_columns(data: Mapping[str, Any]) -> tuple[list[Datapoint], Mapping[str, Any]]:
    """Convert columns to datapoints, and return them with the seeds and stances among the columns."""
    if isinstance(data, NestedArrayDict) and len(data.batch_size) != 1:
        raise ValueError(f"datapoints must have one dimension, (game), but the batch shape is {data.batch_size}")
    columns = {name: list(values) for name, values in data.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns must have the same length, but have {lengths}")
    numbers: dict[str, Any] = {name: columns.pop(name) for name in ("seed", "prover_stance") if name in columns}
    labels = next((columns.pop(name) for name in _LABELS if name in columns), None)
    if labels is None or any(int(label) not in (0, 1) for label in labels):
        raise ValueError("each datapoint needs a label, 0 or 1, in the column 'y' (or 'label')")
    ids = next((columns.pop(name) for name in _IDS if name in columns), range(len(labels)))
    rows = zip(*columns.values(), strict=True) if columns else [()] * len(labels)
    points = [
        Datapoint(str(id_), int(label), dict(zip(columns, row, strict=True)))
        for id_, label, row in zip(ids, labels, rows, strict=True)
    ]
    return points, numbers
