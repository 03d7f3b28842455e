"""Checks that the templates of a plan can be rendered for every game, before a model is called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from runner.base.errors import SpecError, TemplateFailedError
from runner.base.problems import Problem
from runner.game.prompts.templates import CONFIDENCE, LAST_ROUND
from runner.game.protocols.protocol import Protocol
from runner.rollouts.agents.agent import Agent, Observation
from runner.rollouts.agents.function_checkers import FunctionChecker
from runner.rollouts.agents.selectors import Selector
from runner.rollouts.information_flow import flow_problems
from runner.rollouts.plan import Plan
from runner.spec.datasets.datapoint import Datapoint


def check_templates(plan: Plan) -> None:
    """Render each agent's templates for each datapoint, stance and round that changes their text.

    Raises:
        SpecError: templates fail, with the file, line and first datapoint of each failure; or a prompt depends on the
            label.
    """
    failures: dict[tuple[str, int, str], dict[str, None]] = {}
    for swapped in plan.swapped_values:
        agents: Mapping[str, Agent] = plan.game_agents(swapped=swapped)
        if plan.debates is not None:
            agents = {name: agent for name, agent in agents.items() if agent.is_verifier}
        for agent in _with_all_rules(agents.values(), plan.spec.protocol):
            for point, error in _failures(plan, agent):
                points = failures.setdefault((error.template, error.line or 1, error.reason), {})
                points[point.id] = None
    prompts = plan.spec.prompts
    problems = []
    for (template, line, reason), points in failures.items():
        more = f" and {len(points) - 1} more" if len(points) > 1 else ""
        message = f"the template {reason}; rendered for datapoint {next(iter(points))!r}{more}"
        problems.append(Problem(prompts.place(template, line), "", message, "a template that fails when rendered"))
    problems.extend(flow_problems(plan))
    if problems:
        raise SpecError(problems)


def _with_all_rules(agents: Iterable[Agent], protocol: Protocol) -> Iterator[Agent]:
    """Yield the agents, and each selector with the rule of each step, whose number of candidates may differ."""
    for agent in agents:
        if not isinstance(agent, Selector):
            yield agent
            continue
        steps = [step for step in protocol.file.cycle if agent.speaker in step.speak]
        rules = dict.fromkeys(step.best_of for step in steps if step.best_of is not None)
        yield from (agent.with_rule(rule) for rule in rules if rule.by == agent.best_of.by)


def _templates_with_rounds(plan: Plan, agent: Agent) -> Iterator[tuple[str, int]]:
    """Yield each template of an agent, as the suffix of its name, with each round that changes the template's text.

    Only the variables `questions_left` and `states` depend on the round.
    """
    protocol, prompts = plan.spec.protocol, plan.spec.prompts
    if isinstance(agent, FunctionChecker):
        return
    if isinstance(agent, Selector):
        if agent.best_of.by != "function":
            yield f".{agent.best_of.by}", protocol.first_active_round(agent.speaker) or 0
        return
    used_variables = {*prompts.variables[agent.agent_name], *prompts.variables.get(agent.agent_name + CONFIDENCE, ())}
    rounds = [i for i in range(protocol.max_message_rounds) if agent.agent_name in protocol.can_be_active(i)]
    judge = agent.agent_name if agent.is_verifier else None
    round_by_values = {
        (
            protocol.questions_left(i, judge) if "questions_left" in used_variables else 0,
            protocol.step(i).states if "states" in used_variables else None,
        ): i
        for i in reversed(rounds)
    }
    yield from (("", round_) for round_ in round_by_values.values())
    if agent.agent_spec.last_round_message:
        yield LAST_ROUND, protocol.max_message_rounds - 1


def _failures(plan: Plan, agent: Agent) -> Iterator[tuple[Datapoint, TemplateFailedError]]:
    """Yield each failure of an agent's templates, with the datapoint that they were rendered for."""
    templates, given_stances = list(_templates_with_rounds(plan, agent)), {stance for stance, _ in plan.variants}
    for point, given_stance in product(plan.points, given_stances):
        stance = point.prover_stance if given_stance is None else given_stance
        for suffix, round_ in templates:
            observation = Observation(
                round_, (), point.columns, prover_stance=stance, candidates=point.answers, given_stance=given_stance
            )
            try:
                agent.instructions(suffix, agent.example_observation(observation), round_)
            except TemplateFailedError as error:
                yield point, error
