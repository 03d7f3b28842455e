"""Choose the chat format of each model group without one in the spec.

The choice depends on the server's address. It is stored in the saved spec of a run, so a later change of the address
does not change it. In this module, `written` has the keys of each model group as the spec sets them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, get_args
from urllib.parse import urlsplit

from runner.base import package_data
from runner.base.problems import PlaceOf, Problem
from runner.documents.layer_loading import load_layers
from runner.documents.merged_data import KeyRules
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
"""A group with all of these keys and no chat format is from a saved spec of 0.1.0, which only knew `openai`."""


@dataclass(frozen=True)
class ChatSettings:
    """The settings of a model group that determine the messages of its chats."""

    chat_format: ChatFormat = "openai"
    system_role: SystemRole = "system"
    send_name: bool = True

    @classmethod
    def from_group(cls, settings: ModelSettings) -> Self:
        """Return the chat settings of a group of a loaded spec."""
        return cls(settings.resolved_chat_format, settings.system_role, settings.send_name)

    @property
    def has_instructions_in_first_turn(self) -> bool:
        """Whether the instructions are part of the user's first turn."""
        return self.chat_format == "alternating" and self.system_role == "user"

    def without_sending_settings(self) -> ChatSettings:
        """Return the settings that affect how agents build a chat. (Other settings only affect how it is sent.)"""
        return ChatSettings(self.chat_format, "user" if self.has_instructions_in_first_turn else "system")


def default_chat_format(settings: ModelSettings) -> ChatFormat:
    """Return the default chat format: at the provider's own address, the provider's; otherwise `alternating`."""
    if not settings.traits.remote:
        return "openai"
    own_host = urlsplit(settings.traits.base_url).hostname or ""
    hosts = [urlsplit(url).hostname or "" for url in settings.server_urls]
    # A provider's regional servers are subdomains, such as eu.api.openai.com.
    is_own = all(f".{host}".endswith(f".{own_host}") for host in hosts)
    return settings.traits.chat_format if is_own else "alternating"


def default_role(chat_format: ChatFormat) -> SystemRole:
    """Return the role of the instructions if the spec sets none.

    In an alternating chat, it is `user`, because some chat templates refuse or drop a system message.
    """
    return "user" if chat_format == "alternating" else "system"


def groups_with_default_format(
    models: Mapping[str, ModelSettings], written: Mapping[str, Mapping[str, object]]
) -> frozenset[str]:
    """Return the groups at servers whose chat format depends on their address, because the spec sets none."""
    return frozenset(
        group
        for group, settings in models.items()
        if settings.traits.remote and settings.chat_format is None and not written[group].keys() >= _KEYS_OF_0_1_0
    )


def resolve_chat_formats(
    models: Mapping[str, ModelSettings],
    written: Mapping[str, Mapping[str, object]],
    replayed: Mapping[str, ChatSettings],
) -> dict[str, ModelSettings]:
    """Return the groups with their chat formats. `replayed` has the chat settings of groups that replay a run."""
    default_groups = groups_with_default_format(models, written)
    models_with_formats = {}
    for group, settings in models.items():
        format_ = default_chat_format(settings) if group in default_groups else settings.resolved_chat_format
        chat_settings = ChatSettings(format_, "system" if settings.traits.has_system_prompt else default_role(format_))
        if settings.traits.needs_run and group in replayed:
            chat_settings = replayed[group]
        models_with_formats[group] = replace(
            settings,
            chat_format=settings.chat_format or chat_settings.chat_format,
            system_role=settings.system_role if "system_role" in written[group] else chat_settings.system_role,
            send_name=settings.send_name if "send_name" in written[group] else chat_settings.send_name,
        )
    return models_with_formats


def find_replayed_formats(
    experiment: Experiment, specs: Mapping[str, Path]
) -> tuple[dict[str, ChatSettings], dict[str, tuple[str, ...]]]:
    """Return the chat settings that each group had in the replayed run, and the agents of groups with several settings.

    `specs` has the path of the replayed run's saved spec for each group that replays a run.
    """
    by_group: dict[str, ChatSettings] = {}
    mixed_agents: dict[str, tuple[str, ...]] = {}
    for group, spec in specs.items():
        by_agent = load_saved_formats(spec)
        agents = [name for name, agent in experiment.agents.items() if agent.model == group and name in by_agent]
        distinct = {by_agent[name] for name in agents}
        if len(distinct) == 1:
            by_group[group] = distinct.pop()
        elif any(settings.chat_format == "alternating" for settings in distinct):  # a replay checks other differences
            mixed_agents[group] = tuple(agents)
    return by_group, mixed_agents


def mixed_problems(
    models: Mapping[str, ModelSettings], mixed_agents: Mapping[str, tuple[str, ...]], place_of: PlaceOf
) -> Iterator[Problem]:
    """Yield a problem for each group whose agents need different chat formats, unless the spec sets one."""
    for group, agents in mixed_agents.items():
        if models[group].chat_format is None:
            key = f"models.{group}"
            message = f"the replayed run used different chat formats for {', '.join(agents)}; give each its own group"
            yield Problem(place_of(key), key, message)


def load_saved_formats(path: Path) -> dict[str, ChatSettings]:
    """Return the chat settings of each agent of a run, from its saved spec; empty if the file does not exist."""
    if not package_data.is_file(path):
        return {}
    data = load_layers(path, str(path), (), package_data.find_file, KeyRules(renamed=RENAMED_KEYS)).data
    agents, models = data.get("agents"), data.get("models")
    if not isinstance(agents, dict) or not isinstance(models, dict):
        return {}
    by_agent = {}
    for name, agent in agents.items():
        group = models.get(agent.get("model")) if isinstance(agent, dict) else None
        if isinstance(group, dict):
            role: Any = group.get("system_role")
            by_agent[name] = ChatSettings(
                "alternating" if group.get("chat_format") == "alternating" else "openai",
                role if role in get_args(SystemRole) else "system",
                group.get("send_name") is not False,
            )
    return by_agent
