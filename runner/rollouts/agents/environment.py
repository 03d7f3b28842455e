"""Games on arrays, stepped by hand: replies in, the arrays of the next turn out.

It plays by `runner.game.protocols.rounds.play`, so that what comes out of a game is what the runner would make of it.
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
from runner.rollouts.agents.arrays import (
    HISTORIES,
    NestedArrayDict,
    check_columns,
    empty_histories,
    is_missing,
    objects,
    of_each_agent,
    rounds_from_arrays,
    write_round,
)
from runner.rollouts.agents.nested_arrays import Array
from runner.rollouts.agents.observations import PROMPT_FIELDS, check_round, is_padding, max_prompt_messages
from runner.spec.datasets.loader import Datapoint, Dataset
from runner.spec.loader import Spec

_LABELS = ("y", "label")
_IDS = ("datapoint_id", "id")
_OVER = ("padding", "done", "terminated")
_REPLIED = ("message", "raw_message", "decision", "retry_count", "token_limit")


class EnvironmentStep(NamedTuple):
    """What a step of a batch of games comes to. The original calls the second `done`, as the arrays call a decision."""

    arrays: NestedArrayDict
    """Of the next turn. `done` says of a game that it was decided, `terminated` that its rounds ran out."""
    over: Array
    """(...): whether the game has ended, by a decision or with its rounds."""
    rewards: Array
    """(... agent): what the step paid, in the order of `protocol_handler.agent_names`."""


class _Played(NamedTuple):
    """One round of one game; and the game, where the round ended it."""

    round: Round
    ended: FinishedGame | None


class Environment:
    """The games of one protocol. `seed` is the spec's: the games' own seeds follow from it as in a run.

    Raises:
        TypeError: `protocol_handler` is no protocol.
    """

    def __init__(self, protocol_handler: Protocol, *, seed: int = 0) -> None:
        given: object = protocol_handler
        if not isinstance(given, Protocol):
            shown = reprlib.repr(given)
            raise TypeError(f"protocol_handler is {shown}, not a Protocol; give the loaded spec's own, spec.protocol")
        self.protocol_handler = protocol_handler
        self.seed = seed

    @property
    def max_prompt_messages(self) -> int:
        """No chat of these games has more messages: `forward(data, environment)` gives prompts of this many."""
        return max_prompt_messages(self.protocol_handler)

    def reset(
        self,
        datapoints: Dataset | Sequence[Datapoint] | Mapping[str, Any],
        *,
        seed: Any = None,
        prover_stance: Any = None,
        repeat: int = 0,
    ) -> NestedArrayDict:
        """The arrays of a first turn, of batch shape (n,).

        `datapoints` are those of a spec, `load_spec(...).dataset`, or columns by name with a label each, `y`. Their
        seeds are those of the run's rollouts number `repeat`, and their stances the run's, unless they are given here
        (one for all, or one each) or as columns.

        Raises:
            ValueError: there is no datapoint, or no label; columns have several lengths or dimensions, or the name of a
                key of a step; seeds or stances are not one for all or one each, or a stance is neither 0 nor 1.
        """
        points, given = _points_of(datapoints)
        if not points:
            raise ValueError("there is no datapoint to play")
        columns, size = list(points[0].columns), len(points)
        check_columns(columns)
        here = {"seed": seed, "prover_stance": prover_stance}
        given = {**given, **{name: value for name, value in here.items() if value is not None}}
        return NestedArrayDict(
            {
                **{name: objects([point.columns[name] for point in points]) for name in columns},
                **self._numbers(points, given, repeat),
                "datapoint_id": objects([point.id for point in points]),
                **empty_histories(self.protocol_handler, (size,)),
                **{name: np.zeros(size, dtype=bool) for name in _OVER},
                "agents": {"done": of_each_agent(self.protocol_handler, np.zeros(size, dtype=bool))},
            },
            (size,),
        )

    def _numbers(self, points: Sequence[Datapoint], given: Mapping[str, Any], repeat: int) -> dict[str, Array]:
        """The seeds, stances and labels of first turns, (game); the run's own where none are given."""
        numbers = {
            "seed": [derived_seed("rollout", self.seed, point.id, repeat) for point in points],
            "prover_stance": [point.prover_stance for point in points],
            **given,
            "y": [point.label for point in points],
            "round": 0,
        }
        found = {name: _of_each(name, values, len(points)) for name, values in numbers.items()}
        if not np.isin(found["prover_stance"], (0, 1)).all():
            raise ValueError(f"prover_stance is 0 or 1, not {found['prover_stance'].tolist()}")
        return found

    def add_replies(self, arrays: NestedArrayDict, replies: Mapping[str, NestedArrayDict]) -> NestedArrayDict:
        """The timestep that `step` takes: a copy of the arrays, with what each agent's `forward` gave under `agents`.

        Raises:
            ValueError: an agent's reply is missing, or there is one of an agent that the protocol does not have.
        """
        names = self.protocol_handler.agent_names
        missing = [name for name in names if name not in replies]
        wrong = [f"{name!r}{did_you_mean(name, missing or names)}" for name in replies if name not in names]
        if missing or wrong:
            said = [f"no reply of {comma_join(missing)}"] * bool(missing) + [f"no agent {word}" for word in wrong]
            raise ValueError(f"{'; '.join(said)}; give what the forward of each agent gave, by the agent's name")
        timestep = NestedArrayDict(dict(arrays.items()), arrays.batch_size)
        axis = len(arrays.batch_size)
        for key in replies[names[0]]:
            timestep["agents", key] = np.stack([replies[name][key] for name in names], axis=axis)
        return timestep

    def step(self, arrays: NestedArrayDict) -> EnvironmentStep:
        """Play one round of each game that is not over.

        `arrays` are those of the turn, with the agents' actions under `agents`: `raw_message` and `decision`
        (... agent), `message`, `retry_count` and `token_limit` (... agent channel); see `add_replies`. They become a
        whole timestep in place: `agents`/`decision` is the one that counts where the protocol forces one, and 0 where
        the game was over; `next` has the state after the step.

        Raises:
            ValueError: there are no actions, an agent that has to speak says nothing, or a game has no such round.
            AgentNotActiveInChannelError: an agent speaks that does not in this round or channel; or two speak in one
                channel, for which arrays have no place.
        """
        missing = [key for key in _REPLIED if ("agents", key) not in arrays]
        if missing:
            raise ValueError(
                f"no {comma_join(missing)} under 'agents'; add what each agent's forward gave: add_replies"
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

    def _following(self, flat: NestedArrayDict, played: Sequence[_Played | None]) -> NestedArrayDict:
        """The arrays of the next turn (game), after what was played of each game (None: it was over)."""
        after = {name: flat[name].copy() for name in (*HISTORIES, "round", *_OVER)}
        for index, one in enumerate(played):
            if one is None:
                continue
            round_, ended = int(flat["round"][index]), one.ended
            write_round(self.protocol_handler, {name: after[name][index] for name in HISTORIES}, round_, one.round)
            after["round"][index] = round_ + 1
            if ended is not None:
                after["padding"][index] = True
                after["done"][index], after["terminated"][index] = ended.decided, ended.terminated
        same = {name: flat[name] for name in flat if name not in ("agents", "next", *after)}
        done = of_each_agent(self.protocol_handler, after["done"])
        return NestedArrayDict({**same, **after, "agents": {"done": done}}, flat.batch_size)

    def _decision_and_rewards(self, flat: NestedArrayDict, played: Sequence[_Played | None]) -> tuple[Array, Array]:
        """What counted and what was paid in this step, each (game agent); 0 where the game was over."""
        agents = self.protocol_handler.agent_names
        decision = flat["agents", "decision"].copy()
        rewards = np.zeros((len(played), len(agents)), dtype=np.float64)
        for index, one in enumerate(played):
            if one is None:
                decision[index] = 0
                continue
            decision[index, agents.index(self.protocol_handler.verifier_name)] = one.round.decision
            rewards[index] = [one.round.rewards.get(agent, 0.0) for agent in agents]
        return decision, rewards

    def _play_round(self, flat: NestedArrayDict, index: int) -> _Played:
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
        # A game passes silent rounds by itself; here each is a step.
        turn = next(game)
        ended = None
        if turn.round == round_:
            try:
                turn = game.send(replies)
            except StopIteration as end:
                ended = end.value
        game.close()
        return _Played((turn if ended is None else ended).rounds[round_], ended)

    def _replies(self, actions: NestedArrayDict, index: int, round_: int, seed: int) -> dict[str, Reply]:
        """What the agents said to one game's turn."""
        protocol, replies = self.protocol_handler, {}
        speakers = protocol.speakers(round_, seed)
        for column, agent in enumerate(protocol.agent_names):
            raw = actions["raw_message"][index, column]
            said = {
                channel: text
                for channel, text in zip(protocol.channel_names, actions["message"][index, column], strict=True)
                if not is_missing(text)
            }
            silent = said.keys() - set(speakers.get(agent, ()))
            if silent or (agent not in speakers and not is_missing(raw)):
                where = f" in {min(silent)!r}" if silent else ""
                raise AgentNotActiveInChannelError(f"game {index}: {agent} does not speak{where} in round {round_}")
            if agent not in speakers:
                continue
            if is_missing(raw):
                raise ValueError(f"game {index}: {agent} speaks in round {round_}, and agents/raw_message has no text")
            decision = int(actions["decision"][index, column])
            replies[agent] = Reply(
                raw,
                said if said or decision == Decision.NONE else None,
                decision,
                int(np.max(actions["retry_count"][index, column])),
                bool(np.any(actions["token_limit"][index, column])),
            )
        return replies

    def prompt_array_to_list(self, prompt: Array) -> list[ChatMessage]:
        """One chat as `forward` gives it, (message field), as a list of messages."""
        said: list[Any] = []
        for row in prompt:
            message = {name: text for name, text in zip(PROMPT_FIELDS, row, strict=True) if text is not None}
            if message:
                said.append(message)
        return said


def first_turn(
    spec: Spec, datapoints: Dataset | Sequence[Datapoint] | Mapping[str, Any] | None = None, *, repeat: int = 0
) -> NestedArrayDict:
    """The arrays of the first turn of a spec's games, of batch shape (game): what `OpenAiWholeAgent.forward` takes.

    `datapoints` are the spec's own, or columns by name with a label each, `y`; see `Environment.reset`. Seeds and
    stances are those of the run's rollouts number `repeat`.

        >>> from runner import first_turn, load_spec
        >>> arrays = first_turn(load_spec("specs/quickstart.yaml", {"dataset.limit": 2}))
        >>> arrays.batch_size, arrays["message_history"].shape
        ((2,), (2, 7, 1))

    Raises:
        ValueError: see `Environment.reset`.
    """
    environment = Environment(spec.protocol, seed=spec.experiment.seed)
    return environment.reset(spec.dataset if datapoints is None else datapoints, repeat=repeat)


def _of_each(name: str, values: Any, size: int) -> Array:
    """Whole numbers, one for each datapoint; a single one is for all."""
    try:
        return np.broadcast_to(np.asarray(values, np.int64), size).copy()
    except (ValueError, TypeError):
        raise ValueError(f"{name} needs one whole number, or one for each of the {size} datapoints") from None


def width_of(environment: object) -> int | None:
    """How many messages a prompt of an environment's games has; None without one.

    Raises:
        TypeError: it is no Environment.
    """
    if environment is None:
        return None
    if not isinstance(environment, Environment):
        shown = reprlib.repr(environment)
        raise TypeError(f"environment is {shown}, not an Environment; give Environment(spec.protocol), or nothing")
    return environment.max_prompt_messages


def _points_of(
    given: Dataset | Sequence[Datapoint] | Mapping[str, Any],
) -> tuple[list[Datapoint], Mapping[str, Any]]:
    """The datapoints; and the seeds and stances that were given among their columns."""
    if isinstance(given, Dataset):
        return list(given.datapoints), {}
    return _points_of_columns(given) if isinstance(given, Mapping) else (list(given), {})


def _points_of_columns(given: Mapping[str, Any]) -> tuple[list[Datapoint], Mapping[str, Any]]:
    """Columns by name as datapoints, and the seeds and stances among them."""
    if isinstance(given, NestedArrayDict) and len(given.batch_size) != 1:
        raise ValueError(f"datapoints have one dimension, (game), and not the batch shape {given.batch_size}")
    columns = {name: list(values) for name, values in given.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns of several lengths: {lengths}")
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
