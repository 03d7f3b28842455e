"""Check that prompts do not depend on what their agents should not know, before a model is called.

Each prompt is rendered for real datapoints twice: as in the run, and with one fact changed. Earlier messages are the
same in both cases, so a difference means that the fact reaches the agent in another way than through messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from runner.base.errors import TemplateFailedError
from runner.base.problems import Problem
from runner.base.text import list_some
from runner.game.protocols.ballot import CORRECT, INCORRECT
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import Message, Round
from runner.game.protocols.schema import FORBIDDEN
from runner.game.protocols.statements import MIN_CLAIMS, StatedParts, Statement
from runner.rollouts.agents.agent import Agent
from runner.rollouts.agents.function_checkers import FunctionChecker
from runner.rollouts.agents.selectors import Selector
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.datasets.selection import spread_evenly

MAX_POINTS = 8
"""Maximum number of datapoints of each label whose prompts are compared."""
MAX_ROUNDS = 6
"""Maximum number of rounds in which an agent's prompts are compared: the first ones and the last one."""


def flow_problems(plan: Plan) -> Iterator[Problem]:
    """Yield a problem for each agent or selector whose prompts change with a fact that it must not know.

    These facts are the label, or which of the listed answers are right, and the columns that the protocol hides from
    the agent. A selector may know what its agent or, as a judge, the verifier knows. A prover may know the answer that
    it argues for, even if the protocol defines it as right or wrong.
    """
    labels = dict.fromkeys(point.label for point in plan.points)
    groups = [[point for point in plan.points if point.label == label] for label in labels]
    points = [point for group in groups for point in spread_evenly(group, MAX_POINTS)]
    for name, agent in plan.game_agents().items():
        if isinstance(agent, FunctionChecker) or (plan.debates is not None and not agent.is_verifier):
            continue
        changes: dict[str, Callable[[Datapoint], Datapoint]] = {
            f"the column {column!r}": partial(_with_other_value, column=column)
            for column in sorted(agent.hidden_columns)
        }
        if agent.is_verifier or agent.agent_spec.stance not in (CORRECT, INCORRECT):
            changes["the label"] = _with_other_label
        for fact, change in changes.items():
            leaking = [point.id for point in points if _depends_on(agent, point, change(point))]
            if leaking:
                message = (
                    f"{name}'s prompt changes if only {fact} of a datapoint changes: {list_some(leaking, 5)}; "
                    f"{name} must not learn {fact} from its prompt"
                )
                template = f"{agent.agent_name}.{agent.best_of.by}" if isinstance(agent, Selector) else agent.agent_name
                place = plan.spec.prompts.place(template, 1)
                yield Problem(
                    place, f"agents.{_speaker(agent)}", message, f"a prompt that depends on {fact.partition(' ')[2]}"
                )


def _speaker(agent: Agent) -> str:
    """Return the agent, or the agent whose candidates a selector judges."""
    return agent.speaker if isinstance(agent, Selector) else agent.agent_name


def _with_other_value(point: Datapoint, column: str) -> Datapoint:
    value = point.columns.get(column)
    return replace(point, columns={**point.columns, column: value * 2 if isinstance(value, str) and value else "other"})


def _with_other_label(point: Datapoint) -> Datapoint:
    """Return the datapoint with the other label or another right answer; unchanged if its owner hides this."""
    if point.answers is not None and point.answers.right is not None:
        right = {(index + 1) % len(point.answers.texts) for index in point.answers.right}
        return replace(point, answers=replace(point.answers, right=tuple(sorted(right))))
    if point.label is None:
        return point
    label = 1 - point.label
    columns = {name: label if name in FORBIDDEN else value for name, value in point.columns.items()}
    return replace(point, label=label, columns=columns)


def _depends_on(agent: Agent, point: Datapoint, changed: Datapoint) -> bool:
    stance = point.prover_stance  # the stance of a game does not depend on the changed fact
    return any(
        _prompt(agent, point, round_, stance) != _prompt(agent, changed, round_, stance)
        for round_ in _rounds_to_compare(agent.protocol_handler, _speaker(agent))
    )


def _rounds_to_compare(protocol: Protocol, agent: str) -> Sequence[int]:
    first = protocol.first_active_round(agent)
    if first is None:
        return ()
    last = next(i for i in reversed(range(protocol.max_message_rounds)) if agent in protocol.can_be_active(i))
    rounds = [
        i
        for i in range(first, min(last, first + MAX_ROUNDS * len(protocol.steps)))
        if agent in protocol.can_be_active(i)
    ]
    return [*rounds[: MAX_ROUNDS - 1], last]


def _prompt(agent: Agent, point: Datapoint, round_: int, stance: int) -> object:
    """Return an agent's prompt in a round, after the same messages in each game; None if its template fails."""
    job = Job(0, "", point, 0, 0, stance)
    try:
        observation = job.observation(round_, _earlier_rounds(agent.protocol_handler, round_))
        return agent.prompt(agent.example_observation(observation))
    except TemplateFailedError:  # `check_templates` reports it
        return None


def _earlier_rounds(protocol: Protocol, end: int) -> list[Round]:
    """Return the last rounds before a round, in which each speaker has said the same in each game."""
    first = max(0, end - MAX_ROUNDS)
    return [Round()] * first + [_sample_round(protocol, i) for i in range(first, end)]


def _sample_round(protocol: Protocol, round_: int) -> Round:
    speakers, step = protocol.speakers(round_, 0), protocol.step(round_)
    raw: dict[str, Any] = {name: f"the answer of {name}" for name in speakers}
    messages = [Message(channel, name, raw[name]) for name, channels in speakers.items() for channel in channels]
    statement = None if step.states in (None, "estimates") else Statement((f"text of round {round_}",) * MIN_CLAIMS)
    return Round(raw, messages, stated=StatedParts(statement, picked=0 if step.pick_claim else None))
