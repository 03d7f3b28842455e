"""The reasons why a spec cannot be an environment for `verifiers`."""

from __future__ import annotations

import keyword
from collections.abc import Iterator

from runner.base.batches import group_pairs
from runner.base.problems import Place, Problem
from runner.base.text import comma_join
from runner.game.protocols.protocol import Protocol
from runner.rollouts.plan import Plan
from runner.spec.loader import Spec

RESERVED_NAMES = ("id", "taskset", "timeout", "retries", "max_concurrent_agents", "interception")
"""The fields of an environment's configuration in verifiers 0.4, which no agent can have as its name."""

RESERVED_ATTRIBUTES = (
    "agent_harnesses", "construct", "copy", "dict", "env_id", "from_orm", "json", "parse_file", "parse_obj",
    "parse_raw", "schema", "schema_json", "update_forward_refs", "validate",
)  # fmt: skip
"""The attributes of this configuration that a field would replace. Pydantic's other attributes begin with `model_`."""


def find_problems(plan: Plan) -> list[Problem]:
    """Return every reason why the games of a plan cannot be exported."""
    place = Place(str(plan.spec.path or plan.spec.experiment.name))
    problems = [*_design_problems(plan), *_protocol_problems(plan.spec), *_model_problems(plan.spec)]
    return [Problem(place, key, message) for key, message in problems]


def _design_problems(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the problems of the kind of games, by key."""
    experiment, points = plan.spec.experiment, plan.points
    if experiment.kind == "tournament":
        yield "kind", "a tournament has many pairings; export a spec of kind benchmark or training"
    if plan.tree_shape is not None:
        yield (
            "rollouts.num_responses_per_timestep",
            "an environment plays games without branches; remove this key, and let the trainer repeat each game",
        )
    for key in ("rejudge", "analysis"):
        if getattr(experiment, key) is not None:
            yield key, "the transcripts of another run are judged, not games played; export a spec that plays games"
    unlabelled = sum(not point.is_labelled for point in points)
    if unlabelled and not plan.spec.protocol.has_statements:
        yield "dataset", f"{unlabelled} of {len(points)} datapoints have no label, so no reward; remove them"


def _protocol_problems(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the problems of the protocol, by key."""
    protocol, checker = spec.protocol, spec.experiment.dataset.checker
    if protocol.selections:
        message = "answers are selected from candidates, and a trainer would reward the others, too; use no best_of"
        yield "protocol.use", f"{protocol.name}: {message}"
    if checker is not None and checker.by == "function":
        yield "dataset.checker", "a Python function labels answers, which needs nip-run's sandbox; use by: column"
    if reserved := [name for name in protocol.agent_names if _is_reserved(name)]:
        yield "protocol.use", f"{comma_join(reserved)} cannot be the name of an agent in verifiers; rename it"


def _is_reserved(agent: str) -> bool:
    """Return whether an agent's name cannot be a field of an environment's configuration."""
    return agent in (*RESERVED_NAMES, *RESERVED_ATTRIBUTES) or agent.startswith("model_") or keyword.iskeyword(agent)


def _model_problems(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the problems of model groups, by key."""
    agents_by_group = group_pairs((agent.model, name) for name, agent in spec.experiment.agents.items())
    for group, agents in agents_by_group.items():
        settings, key = spec.experiment.models[group], f"models.{group}"
        if settings.traits.export_problem is not None:
            yield f"{key}.provider", settings.traits.export_problem
        has_names = settings.resolved_chat_format != "alternating" and settings.send_name
        if has_names and (hearers := [name for name in agents if _hears_names(spec.protocol, name)]):
            message = f"the chats of {comma_join(hearers)} have the field `name` for senders, which training would lose"
            yield f"{key}.chat_format", f"{message}; set {key}.chat_format=alternating"
        if settings.system_role == "developer":
            yield f"{key}.system_role", "verifiers records the role developer as user; set system or user"
        if settings.constrain_decisions:
            yield (
                f"{key}.constrain_decisions",
                "a package has no JSON schemas for decisions; remove constrain_decisions",
            )
        if settings.request_parameters.get("n", 1) != 1:
            yield f"{key}.n", "verifiers records only the first answer of a call; remove n"


def _hears_names(protocol: Protocol, agent: str) -> bool:
    """Return whether an agent gets messages of other agents that are not anonymous."""
    visible = set(protocol.visible_channels(agent))
    return any(
        speaker != agent and not protocol.agent_spec(speaker).anonymous and visible.intersection(channels)
        for step in protocol.steps
        for speaker, channels in step.speak.items()
    )
