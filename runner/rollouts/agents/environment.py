"""Games on arrays, played step by step: `step` takes the agents' replies and returns the arrays of the next turn.

Users train their own agents with it. `runner.game.protocols.rounds.play` applies the rules, so a game has the same
result as in a run.
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
from runner.rollouts.agents.arguments import check_binary, checked_protocol
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

    `over` is called `done` in the original code. In the arrays, `done` means that the game was decided.
    """

    arrays: NestedArrayDict
    """The arrays of the next turn. `done`: the game was decided. `terminated`: its last round had no decision."""
    over: Array
    """(...): whether the game has ended, with a decision or after its last round."""
    rewards: Array
    """(... agent): the rewards of the step, in the order of `protocol_handler.agent_names`."""


class _PlayedRound(NamedTuple):
    """One round of one game, and the finished game if the round ended it."""

    round: Round
    finished: FinishedGame | None


class Environment:
    """Plays games of one protocol. The games' seeds are derived from the spec's `seed` as in a run.

    Raises:
        TypeError: `protocol_handler` is not a `Protocol`.
        ValueError: the protocol has a panel, selects answers from candidates, or has messages that state answers.
    """

    def __init__(self, protocol_handler: Protocol, *, seed: int = 0) -> None:
        self.protocol_handler = checked_protocol(protocol_handler)
        check_binary(self.protocol_handler)
        if self.protocol_handler.file.panel is not None:
            raise ValueError(
                f"{self.protocol_handler.name} has a panel of judges, whose games end at different times for different "
                "agents; Environment plays protocols with one verifier, so play this protocol with run(spec)"
            )
        if self.protocol_handler.has_statements:
            raise ValueError(
                f"messages of {self.protocol_handler.name} state answers or sub-claims, which Environment does not "
                "label; play this protocol with run(spec)"
            )
        if self.protocol_handler.selections:
            raise ValueError(
                f"{self.protocol_handler.name} selects answers from candidates (best_of), and Environment plays one "
                "answer for each turn; play this protocol with run(spec)"
            )
        self.seed = seed

    @property
    def max_prompt_messages(self) -> int:
        """An upper bound on the messages in a chat. `forward(data, environment)` pads prompts to this number."""
        return max_prompt_messages(self.protocol_handler)

    def reset(
        self,
        datapoints: Dataset | Sequence[Datapoint] | Mapping[str, object],
        *,
        seed: Any = None,
        prover_stance: Any = None,
        repeat: int = 0,
    ) -> NestedArrayDict:
        """Return the arrays of the first turn of games, of batch shape (game).

        `datapoints` is a spec's dataset, `load_spec(...).dataset`, or a mapping of columns that include the label `y`.
        Seeds and stances are the same as in the run's rollouts of this `repeat`, unless they are passed as arguments
        (one for all, or one for each datapoint) or as columns.

        Raises:
            ValueError: there are no datapoints or no labels. Or columns differ in length, have more than one dimension,
                or have a name that timesteps use. Or the number of seeds or stances is wrong, or a stance is
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
                **self._number_arrays(points, numbers, repeat),
                "datapoint_id": object_array([point.id for point in points]),
                **empty_histories(self.protocol_handler, (size,)),
                **{name: np.zeros(size, dtype=bool) for name in _END_FLAGS},
                "agents": {"done": repeat_for_agents(self.protocol_handler, np.zeros(size, dtype=bool))},
            },
            (size,),
        )

    def _number_arrays(
        self, points: Sequence[Datapoint], overrides: Mapping[str, object], repeat: int
    ) -> dict[str, Array]:
        """Return the arrays of integers of a first turn, each (game). The defaults are the values of the run."""
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
        """Return the timestep to pass to `step`: `arrays`, with the results of the agents' `forward` under `agents`.

        Raises:
            ValueError: an agent's reply is missing, or the protocol has no agent of that name.
        """
        names = self.protocol_handler.agent_names
        missing = [name for name in names if name not in replies]
        unknown = [f"{name!r}{did_you_mean(name, missing or names)}" for name in replies if name not in names]
        if missing or unknown:
            problems = [f"no reply of {comma_join(missing)}"] * bool(missing) + [f"no agent {name}" for name in unknown]
            raise ValueError(
                f"{'; '.join(problems)}; pass a mapping from each agent's name to the result of its forward"
            )
        timestep = NestedArrayDict(dict(arrays.items()), arrays.batch_size)
        axis = len(arrays.batch_size)
        for key in replies[names[0]]:
            timestep["agents", key] = np.stack([replies[name][key] for name in names], axis=axis)
        return timestep

    def step(self, arrays: NestedArrayDict) -> EnvironmentStep:
        """Play one round of each game that is not over.

        `arrays` has the turn, with the agents' actions under `agents`: `raw_message` and `decision` (... agent),
        `message`, `retry_count` and `token_limit` (... agent channel); see `add_replies`. The method also changes
        `arrays` to a timestep: it sets `next` to the state after the step, and `agents`/`decision` to the decision that
        counts. The protocol may force this decision; it is 0 if the game was over.

        Raises:
            ValueError: actions are missing, an agent that must speak has no message, or a game has no such round.
            AgentNotActiveInChannelError: an agent speaks that is not active in this round or channel, or two agents
                speak in the same channel, but arrays have one message for each.
        """
        missing = [key for key in _ACTION_KEYS if ("agents", key) not in arrays]
        if missing:
            raise ValueError(
                f"no {comma_join(missing)} under 'agents'; add the result of each agent's forward with add_replies"
            )
        shape, size = arrays.batch_size, math.prod(arrays.batch_size)
        flat = arrays.reshape(size)
        played = [None if is_padding(flat, index) else self._play_round(flat, index) for index in range(size)]
        next_arrays = self._next_arrays(flat, played).reshape(*shape)
        decision, rewards = (
            array.reshape(*shape, array.shape[-1]) for array in self._decision_and_rewards(flat, played)
        )
        arrays["agents", "decision"] = decision
        arrays["agents", "reward"] = rewards
        arrays["next"] = next_arrays
        arrays["next", "agents", "reward"] = rewards
        return EnvironmentStep(next_arrays, next_arrays["padding"], rewards)

    def _next_arrays(self, flat: NestedArrayDict, played: Sequence[_PlayedRound | None]) -> NestedArrayDict:
        """Return the arrays of the next turn, of batch shape (game). `played` is None for a game that was over."""
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
        """Return the decisions that count and the rewards, each (game agent). Both are 0 for a game that was over."""
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
        """Play the current round of one game, with the agents' actions as replies."""
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
        # `play` skips silent rounds, so its first turn may be later. Here, a silent round is a step without replies.
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
                raise AgentNotActiveInChannelError(
                    f"game {index}: {agent} does not speak{where} in round {round_}; remove its message"
                )
            if agent not in speakers:
                continue
            if is_missing(raw):
                raise ValueError(
                    f"game {index}: {agent} must speak in round {round_}; put its text into agents/raw_message"
                )
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
        """Return one chat as a list of messages. `prompt` is its part (message field) of `forward`'s result."""
        messages: list[Any] = []
        for row in prompt:
            message = {name: text for name, text in zip(PROMPT_FIELDS, row, strict=True) if text is not None}
            if message:
                messages.append(message)
        return messages


def first_turn(
    spec: Spec, datapoints: Dataset | Sequence[Datapoint] | Mapping[str, object] | None = None, *, repeat: int = 0
) -> NestedArrayDict:
    """Return the arrays of the first turn of a spec's games, for `OpenAiWholeAgent.forward`. The batch shape is (game).

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
    """Return an array with one integer for each datapoint. A single value is used for all datapoints."""
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
    datapoints: Dataset | Sequence[Datapoint] | Mapping[str, object],
) -> tuple[list[Datapoint], Mapping[str, Any]]:
    """Return the datapoints, and the seeds and stances among their columns."""
    if isinstance(datapoints, Dataset):
        return list(datapoints.datapoints), {}
    if isinstance(datapoints, Mapping):
        return _points_of_columns(datapoints)
    return list(datapoints), {}


def _points_of_columns(data: Mapping[str, Any]) -> tuple[list[Datapoint], Mapping[str, object]]:
    """Return the datapoints of a mapping of columns, and the seeds and stances among the columns."""
    if isinstance(data, NestedArrayDict) and len(data.batch_size) != 1:
        raise ValueError(
            f"datapoints must have one dimension, (game), but their batch shape is {data.batch_size}; reshape them"
        )
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
