"""`agents._default` into the agents of a protocol: those that the spec does not name, and keys that it leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.base.errors import Problem
from runner.base.text import comma_join, did_you_mean
from runner.documents.layered_data import LayeredData
from runner.documents.plain_values import KeyPath
from runner.game.protocols.protocol import Protocol
from runner.spec.experiment import DEFAULT_AGENT

_AGENTS = "agents"
_DEFAULT = (_AGENTS, DEFAULT_AGENT)


@dataclass(frozen=True)
class Filled:
    """The keys that were filled, each with the one under `_default` that it is from."""

    sources: Mapping[KeyPath, KeyPath]
    unused: Sequence[Problem]
    """Keys of the default that an override sets, and that fill nothing."""

    def as_written(self, problems: Sequence[Problem]) -> list[Problem]:
        """Problems of filled keys as those of `_default`, where the user has written them."""
        names = {".".join(map(str, at)): ".".join(map(str, source)) for at, source in self.sources.items()}
        return [replace(problem, key=_renamed(problem.key, names)) for problem in problems]


def _renamed(key: str, names: Mapping[str, str]) -> str:
    found = max((name for name in names if key == name or key.startswith(f"{name}.")), key=len, default=None)
    return key if found is None else names[found] + key.removeprefix(found)


def fill_seats(layered: LayeredData, protocol: Protocol | None) -> Filled | None:
    """Put the default's settings into the data's agents, and take the default out; None where there is none.

    Without a protocol, which cannot be read, only the agents that the spec names are filled.
    """
    agents = layered.data.get(_AGENTS)
    if not isinstance(agents, dict) or not isinstance(agents.get(DEFAULT_AGENT), dict):
        return None
    default = agents.pop(DEFAULT_AGENT)
    sources: dict[KeyPath, KeyPath] = {}
    for name in dict.fromkeys((*agents, *(protocol.agent_names if protocol else ()))):
        seat = (_AGENTS, name)
        if name not in agents:
            agents[name] = {}
            sources[seat] = _DEFAULT
        if isinstance(agents[name], dict):
            for key in default.keys() - agents[name].keys():
                sources[*seat, key] = (*_DEFAULT, key)
            agents[name] = {**default, **agents[name]}
    unused = [
        Problem(
            layered.place(at),
            ".".join(at),
            f"every agent has its own {at[-1]}; set it for them, as agents.NAME.{at[-1]}",
        )
        for at in ((*_DEFAULT, key) for key in default)
        if at not in sources.values() and not layered.is_set_by_file(at)
    ]
    if not unused:
        unused.extend(_unknown_group(default, sources, layered))
    for at, source in sources.items():
        layered.copy_places(source, at)
    return Filled(sources, unused)


def _unknown_group(
    default: Mapping[str, Any], sources: Mapping[KeyPath, KeyPath], layered: LayeredData
) -> Iterator[Problem]:
    """A model group of the default that is not there, where no agent takes it, so that no other check says so."""
    models, group, at = layered.data.get("models"), default.get("model"), (*_DEFAULT, "model")
    if isinstance(models, dict) and isinstance(group, str) and group not in models and at not in sources.values():
        hint = did_you_mean(group, models) or f"; there are {comma_join(models)}"
        yield Problem(layered.place(at), ".".join(at), f"no model group {group!r}{hint}")
