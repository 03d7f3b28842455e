"""Check that the agents and fine-tuned agents of a spec exist in the protocol, and their model groups in the spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.base.problems import Problem
from runner.base.text import comma_join, did_you_mean
from runner.documents.merged_data import LayeredData
from runner.game.protocols.protocol import Protocol
from runner.spec.sound_spec import SoundSpec


def agent_problems(layered: LayeredData, protocol: Protocol, sound: SoundSpec) -> Iterator[Problem]:
    """Yield a problem for each agent that the protocol lacks or the spec lacks, in `agents` and `fine_tune`."""
    agents = layered.data.get("agents")
    if isinstance(agents, dict):
        yield from _name_problems(agents, layered, protocol)
    yield from _fine_tune_problems(sound.section("fine_tune"), layered, protocol)


def _name_problems(agents: Mapping[str, object], layered: LayeredData, protocol: Protocol) -> Iterator[Problem]:
    missing = [name for name in protocol.agent_names if name not in agents]
    if missing:
        message = f"missing agents of {protocol.name}: {comma_join(missing)}; add agents.{missing[0]}"
        yield layered.problem_at(("agents",), message)
    for name in agents:
        if name not in protocol.agent_names:
            hint = did_you_mean(name, protocol.agent_names) or f"; its agents are {comma_join(protocol.agent_names)}"
            yield layered.problem_at(("agents", name), f"{protocol.name} has no such agent{hint}")


def _fine_tune_problems(fine_tune: Mapping[str, Any], layered: LayeredData, protocol: Protocol) -> Iterator[Problem]:
    for index, name in enumerate(fine_tune.get("agents") or ()):
        if name not in protocol.agent_names:
            hint = did_you_mean(name, protocol.agent_names) or f"; choose from {comma_join(protocol.agent_names)}"
            message = f"{protocol.name} has no agent {name!r}{hint}"
            yield Problem(layered.place(("fine_tune", "agents", index)), "fine_tune.agents", message)
    key = "replace_verifier_guess_with_true_label"
    if fine_tune.get(key) and not fine_tune.get("ensure_last_message_is_assistant", True):
        message = "replacing a guess needs ensure_last_message_is_assistant; set it to true"
        yield Problem(layered.place(("fine_tune", key)), "fine_tune", message)


def group_problems(layered: LayeredData, sound: SoundSpec) -> Iterator[Problem]:
    """Yield a problem for each agent whose model group does not exist."""
    models = layered.data.get("models")
    for name, settings in sound.mappings("agents"):
        for key in ("model", "selector"):
            group = settings.get(key)
            if isinstance(models, dict) and group is not None and group not in models:
                hint = did_you_mean(group, models) or f"; choose one of {comma_join(models)}"
                yield layered.problem_at(("agents", name, key), f"no model group {group!r}{hint}")
