"""Check that prompts do not depend on what their agents should not know, before a model is called.

Each prompt is rendered for real datapoints twice: as in the run, and with one fact changed. Earlier messages are the
same in both cases, so a difference means that the fact reaches the agent in another way than through messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.base.errors import TemplateFailedError
from runner.base.problems import Problem
from runner.base.text import list_some
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import Message, Round
from runner.game.protocols.schema import FORBIDDEN
from runner.rollouts.agents.agent import Agent
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.datasets.selection import spread_evenly

MAX_POINTS = 8
"""Maximum number of datapoints of each label whose prompts are compared."""
MAX_ROUNDS = 6
"""Maximum number of rounds in which an agent's prompts are compared: the first ones and the last one."""


def flow_problems(plan: Plan) -> Iterator[Problem]:
    """Yield a problem for each agent whose prompts change if only the datapoint's label changes."""
    points = [
        point
        for label in (0, 1)
        for point in spread_evenly([point for point in plan.points if point.label == label], MAX_POINTS)
    ]
    for name, agent in plan.agents().items():
        if plan.debates is not None and not agent.is_verifier:
            continue
        leaking = [point.id for point in points if _reveals_label(plan, agent, point)]
        if leaking:
            message = (
                f"{name}'s prompt changes if only the label of a datapoint changes: {list_some(leaking, 5)}; "
                f"{name} must not learn the label from its prompt"
            )
            place = plan.spec.prompts.place(name, 1)
            yield Problem(place, f"agents.{name}", message, "a prompt that depends on the label")


def _reveals_label(plan: Plan, agent: Agent, point: Datapoint) -> bool:
    assert point.label is not None
    flipped_label = 1 - point.label
    columns = {name: flipped_label if name in FORBIDDEN else value for name, value in point.columns.items()}
    flipped = replace(point, label=flipped_label, columns=columns)
    stance = point.prover_stance  # the stance of a game does not depend on its label
    return any(
        _prompt(agent, point, round_, stance) != _prompt(agent, flipped, round_, stance)
        for round_ in _rounds_to_compare(plan.spec.protocol, agent.agent_name)
    )


def _rounds_to_compare(protocol: Protocol, agent: str) -> Sequence[int]:
    first = protocol.first_active_round(agent)
    if first is None:
        return ()
    last = next(i for i in reversed(range(protocol.max_message_rounds)) if agent in protocol.can_be_active(i))
    rounds = [
        i for i in range(first, min(last, first + MAX_ROUNDS * len(protocol.steps))) if _speaks(protocol, agent, i)
    ]
    return [*rounds[: MAX_ROUNDS - 1], last]


def _speaks(protocol: Protocol, agent: str, round_: int) -> bool:
    return agent in protocol.can_be_active(round_)


def _prompt(agent: Agent, point: Datapoint, round_: int, stance: int) -> object:
    """Return an agent's prompt in a round, after the same messages in each game; None if its template fails."""
    job = Job(0, "", point, 0, 0, stance)
    try:
        return agent.prompt(job.observation(round_, _earlier_rounds(agent.protocol_handler, round_)))
    except TemplateFailedError:  # `check_templates` reports it
        return None


def _earlier_rounds(protocol: Protocol, end: int) -> list[Round]:
    """Return the last rounds before a round, in which each speaker has said the same in each game."""
    return [_said(protocol.speakers(i, 0)) for i in range(max(0, end - MAX_ROUNDS), end)]


def _said(speakers: Mapping[str, Sequence[str]]) -> Round:
    raw: dict[str, Any] = {name: f"the answer of {name}" for name in speakers}
    messages = [Message(channel, name, raw[name]) for name, channels in speakers.items() for channel in channels]
    return Round(raw, messages)
