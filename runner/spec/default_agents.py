"""Fill in the agents and keys that a spec leaves out, from `agents._default`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.base.problems import Problem
from runner.base.text import comma_join, did_you_mean
from runner.documents.merged_data import LayeredData
from runner.documents.plain_values import KeyPath, dotted
from runner.game.protocols.protocol import Protocol
from runner.spec.experiment import DEFAULT_AGENT

_AGENTS = "agents"
_DEFAULT = (_AGENTS, DEFAULT_AGENT)


@dataclass(frozen=True)
class FilledAgents:
    """The keys of agents that `_default` has set."""

    sources: Mapping[KeyPath, KeyPath]
    """The key of `_default` for each of these keys."""
    unused: Sequence[Problem]
    """A problem for each key of `_default` that an override sets and no agent uses."""

    def as_written(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return the problems with the keys of `_default` that the user wrote, instead of the keys that it has set."""
        names = {dotted(key_path): dotted(source) for key_path, source in self.sources.items()}
        return [replace(problem, key=_original_key(problem.key, names)) for problem in problems]


def _original_key(key: str, names: Mapping[str, str]) -> str:
    filled_key = max((name for name in names if key == name or key.startswith(f"{name}.")), key=len, default=None)
    return key if filled_key is None else names[filled_key] + key.removeprefix(filled_key)


def fill_default_agents(layered: LayeredData, protocol: Protocol | None) -> FilledAgents | None:
    """Copy the settings of `_default` into the agents, and remove `_default`. Return None if the spec has none.

    If the protocol could not be read, only agents that the spec names get these settings.
    """
    agents = layered.data.get(_AGENTS)
    if not isinstance(agents, dict) or not isinstance(agents.get(DEFAULT_AGENT), dict):
        return None
    default = agents.pop(DEFAULT_AGENT)
    sources: dict[KeyPath, KeyPath] = {}
    for name in dict.fromkeys((*agents, *(protocol.agent_names if protocol else ()))):
        agent_path = (_AGENTS, name)
        if name not in agents:
            agents[name] = {}
            sources[agent_path] = _DEFAULT
        if isinstance(agents[name], dict):
            for key in default.keys() - agents[name].keys():
                sources[*agent_path, key] = (*_DEFAULT, key)
            agents[name] = {**default, **agents[name]}
    unused = [
        layered.problem_at(
            key_path,
            f"every agent has its own {key_path[-1]}, so the default is unused; set agents.NAME.{key_path[-1]} instead",
        )
        for key_path in ((*_DEFAULT, key) for key in default)
        if key_path not in sources.values() and not layered.is_set_by_file(key_path)
    ]
    if not unused:
        unused.extend(_unknown_group(default, sources, layered))
    for key_path, source in sources.items():
        layered.copy_places(source, key_path)
    return FilledAgents(sources, unused)


def _unknown_group(
    default: Mapping[str, object], sources: Mapping[KeyPath, KeyPath], layered: LayeredData
) -> Iterator[Problem]:
    """Yield a problem if the model group of `_default` does not exist and no agent uses the default.

    Another check reports a missing group that an agent uses.
    """
    models, group, key_path = layered.data.get("models"), default.get("model"), (*_DEFAULT, "model")
    if isinstance(models, dict) and isinstance(group, str) and group not in models and key_path not in sources.values():
        hint = did_you_mean(group, models) or f"; choose one of {comma_join(models)}"
        yield layered.problem_at(key_path, f"no model group {group!r}{hint}")
