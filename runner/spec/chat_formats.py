"""In which chat format each model group of a spec is asked, where the spec does not say it.

What is decided here stands in the resolved spec: a later change of the address does not change it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, get_args
from urllib.parse import urlsplit

from runner.base import package_data
from runner.base.errors import PlaceOf, Problem
from runner.documents.layer_merge import load_layers
from runner.game.prompts.chat_format import ChatFormat
from runner.models.settings import ModelSettings, SystemRole
from runner.spec.experiment import RENAMED_KEYS, Experiment

_KEYS_OF_0_1_0 = frozenset(
    {
        "provider", "model", "base_model", "lineage", "base_url", "api_key_env", "system_role", "send_name",
        "temperature", "top_p", "max_completion_tokens", "max_tokens", "n", "seed", "stop", "reasoning_effort",
        "extra_body", "requests_per_minute", "tokens_per_minute", "share_prompts", "batch", "batch_wait", "batch_poll",
        "timeout", "run", "price",
    }
)  # fmt: skip
"""A model group that says all of these and no chat format was resolved by 0.1.0, which knew `openai` alone."""


@dataclass(frozen=True)
class AskedIn:
    """How a model group of a run was asked, as far as its chats depend on it."""

    chat_format: ChatFormat = "openai"
    system_role: SystemRole = "system"
    send_name: bool = True

    @classmethod
    def of(cls, settings: ModelSettings) -> Self:
        """How a group of a loaded spec is asked."""
        return cls(settings.resolved_chat_format, settings.system_role, settings.send_name)

    @property
    def in_first_turn(self) -> bool:
        """Whether its instructions are a part of the user's first turn."""
        return self.chat_format == "alternating" and self.system_role == "user"

    def in_chats(self) -> AskedIn:
        """The same as far as chats go, without what is put in on the way to the wire."""
        return AskedIn(self.chat_format, "user" if self.in_first_turn else "system")


def default_chat_format(settings: ModelSettings) -> ChatFormat:
    """Return the chat format of a group whose spec gives none: the provider's at its own address."""
    if not settings.traits.remote:
        return "openai"
    own = urlsplit(settings.traits.base_url).hostname or ""
    hosts = [urlsplit(url).hostname or "" for url in settings.server_urls]
    is_own = all(host == own or host.endswith("." + own) for host in hosts)  # us. and eu. are OpenAI's too
    return settings.traits.chat_format if is_own else "alternating"


def default_role(chat_format: ChatFormat) -> SystemRole:
    """The role of instructions where the spec gives none.

    In an alternating chat the user's: every chat template takes that, while some refuse a system message or drop it.
    """
    return "user" if chat_format == "alternating" else "system"


def by_default(models: Mapping[str, ModelSettings], said: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """The groups over a network whose format follows from their address; `said` is what the spec says of each."""
    return frozenset(
        group
        for group, settings in models.items()
        if settings.traits.remote and settings.chat_format is None and not said[group].keys() >= _KEYS_OF_0_1_0
    )


def resolved(
    models: Mapping[str, ModelSettings], said: Mapping[str, Mapping[str, Any]], replayed: Mapping[str, AskedIn]
) -> dict[str, ModelSettings]:
    """The groups with the format of each; `replayed` is how those were asked whose answers a group gives again."""
    by_address = by_default(models, said)
    found = {}
    for group, settings in models.items():
        format_ = default_chat_format(settings) if group in by_address else settings.resolved_chat_format
        asked = AskedIn(format_, "system" if settings.traits.has_system_prompt else default_role(format_))
        if settings.traits.needs_run and group in replayed:
            asked = replayed[group]
        found[group] = _asked_in(settings, asked, said[group])
    return found


def _asked_in(settings: ModelSettings, asked: AskedIn, said: Mapping[str, Any]) -> ModelSettings:
    return replace(
        settings,
        chat_format=settings.chat_format or asked.chat_format,
        system_role=settings.system_role if "system_role" in said else asked.system_role,
        send_name=settings.send_name if "send_name" in said else asked.send_name,
    )


def replayed_formats(
    experiment: Experiment, specs: Mapping[str, Path]
) -> tuple[dict[str, AskedIn], dict[str, tuple[str, ...]]]:
    """How the agents of each group were asked in the run that it replays; and the groups whose agents differ in it.

    `specs` are the files that those runs' specs were saved in.
    """
    found: dict[str, AskedIn] = {}
    mixed: dict[str, tuple[str, ...]] = {}
    for group, spec in specs.items():
        of_run = saved_formats(spec)
        agents = [name for name, agent in experiment.agents.items() if agent.model == group and name in of_run]
        ways = {of_run[name] for name in agents}
        if len(ways) == 1:
            found[group] = ways.pop()
        elif any(way.chat_format == "alternating" for way in ways):  # a replay checks what else differs
            mixed[group] = tuple(agents)
    return found, mixed


def mixed_problems(
    models: Mapping[str, ModelSettings], mixed: Mapping[str, tuple[str, ...]], where: PlaceOf
) -> Iterator[Problem]:
    """Groups that would have to ask in two formats at once."""
    for group, agents in mixed.items():
        if models[group].chat_format is None:
            key = f"models.{group}"
            message = f"the run that it replays asked {', '.join(agents)} in different chat formats; give each a group"
            yield Problem(where(key), key, message)


def saved_formats(path: Path) -> dict[str, AskedIn]:
    """How each agent of a run was asked, by the file that its spec was saved in; nothing where there is none."""
    if not package_data.is_file(path):
        return {}
    data = load_layers(path, str(path), (), package_data.find_file, RENAMED_KEYS).data
    agents, models = data.get("agents"), data.get("models")
    if not isinstance(agents, dict) or not isinstance(models, dict):
        return {}
    found = {}
    for name, agent in agents.items():
        group = models.get(agent.get("model")) if isinstance(agent, dict) else None
        if isinstance(group, dict):
            role: Any = group.get("system_role")
            found[name] = AskedIn(
                "alternating" if group.get("chat_format") == "alternating" else "openai",
                role if role in get_args(SystemRole) else "system",
                group.get("send_name") is not False,
            )
    return found
