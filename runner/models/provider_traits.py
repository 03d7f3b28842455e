"""The providers and their capabilities. This module does not import the providers' clients, which takes long.

The checks of a spec and the registry read these facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runner.base.plugins import ExtensibleTable, PluginKind
from runner.game.prompts.chat_format import ChatFormat

ProviderName = Literal["openai", "anthropic", "human", "dummy", "replay"]
"""The names of built-in providers in a spec."""

DEFAULT_PROVIDER: ProviderName = "openai"


@dataclass(frozen=True, kw_only=True)
class ProviderTraits:
    """The capabilities of a provider."""

    remote: bool = False
    """Calls go over a network: they are retried, limited, and may fail in transport."""
    metered: bool = False
    """Calls cost money: they have a price, count in a budget, and the run must not lose their answers."""
    needs_model: bool = False
    """Model groups must name a model."""
    needs_run: bool = False
    """Model groups must name a run, whose answers they replay."""
    gives_many: bool = False
    """One call can return several answers (`n`)."""
    takes_batches: bool = False
    """The provider has a Batch API."""
    asks_people: bool = False
    """People answer on a page, in their own time: calls cost nothing, have no limits, and must not be lost."""
    generates_locally: bool = False
    """Answers are generated in this process, from the rollout's seed."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Keys of a model group that the API does not support, each with the alternative."""
    needs_limit: bool = False
    """A call must set the maximum length of its answer."""
    chat_format: ChatFormat = "openai"
    """The chat format at the provider's own server, if a spec sets none."""
    lacks_formats: tuple[ChatFormat, ...] = ()
    """Chat formats that the API does not support."""
    has_system_prompt: bool = False
    """Every model accepts a system prompt. At other providers, this depends on the model's chat template."""
    has_sync_client: bool = False
    """The provider's package has a synchronous client, which agents expose as `client`."""
    base_url: str = ""
    """URL of the provider's own server, used if a spec sets none."""
    key_variable: str | None = None
    """The environment variable with the key for the provider's own server."""
    trains: bool = False
    """The server that serves a model can also fine-tune it."""
    export_problem: str | None = None
    """Why groups of the provider cannot be exported to `verifiers`, and what to do instead; None if they can be."""


PLUGIN_SCHEME = "plugin"
"""The scheme of the URL that stands for the server of a plugin, if the spec sets no address."""


def _traits_of_plugin(name: str) -> ProviderTraits:
    # All plugins have these traits, so that a spec or a run can be read without importing its plugins.
    return ProviderTraits(
        remote=True,
        metered=True,
        chat_format="alternating",
        base_url=f"{PLUGIN_SCHEME}://{name.lower()}",
        export_problem="a plugin determines the requests of the group, and a package cannot include it; "
        "set provider: openai",
    )


_KEYS_OF_SERVERS = (
    "temperature", "top_p", "max_completion_tokens", "max_tokens", "n", "seed", "stop", "reasoning_effort", "logprobs",
    "top_logprobs", "extra_body", "constrain_decisions", "max_reasoning_length", "service_tier", "prompt_cache_key",
    "requests_per_minute", "tokens_per_minute", "share_prompts", "batch", "base_url", "api_key_env", "headers", "price",
)  # fmt: skip
"""Keys of a model group that have no effect if people answer."""

_BUILTIN: Mapping[ProviderName, ProviderTraits] = {
    "openai": ProviderTraits(
        remote=True,
        metered=True,
        needs_model=True,
        gives_many=True,
        takes_batches=True,
        trains=True,
        has_sync_client=True,
        base_url="https://api.openai.com/v1",
        key_variable="OPENAI_API_KEY",
    ),
    "anthropic": ProviderTraits(
        remote=True,
        metered=True,
        needs_model=True,
        needs_limit=True,
        chat_format="alternating",
        lacks_formats=("openai",),
        has_system_prompt=True,
        base_url="https://api.anthropic.com",
        key_variable="ANTHROPIC_API_KEY",
        export_problem="verifiers sends chat completions, which differ from the Messages API; set provider: openai",
        lacks={
            "temperature": "leave it out; models sample at their own temperature",
            "top_p": "leave it out; models sample at their own temperature",
            "n": "leave it out; an unusable answer is requested again (retry.invalid_response)",
            "seed": "leave it out; repeated runs differ",
            "logprobs": "leave it out; for verdicts as probabilities, set verdict.confidence=stated",
            "top_logprobs": "leave it out; for verdicts as probabilities, set verdict.confidence=stated",
            "share_prompts": "leave it out; the server caches the common start of prompts",
            "batch": "leave it out; calls are sent one by one",
            "prompt_cache_key": "leave it out; the server caches the common start of prompts",
        },
    ),
    "human": ProviderTraits(
        asks_people=True,
        export_problem="people play the group, and a trainer cannot ask them; set another provider",
        lacks=dict.fromkeys(
            _KEYS_OF_SERVERS, "leave it out; people answer on a page of this machine, for free and without a time limit"
        ),
    ),
    "dummy": ProviderTraits(generates_locally=True),
    "replay": ProviderTraits(
        needs_run=True,
        export_problem="the answers of an earlier run play the group, and a package cannot include them; "
        "set another provider",
    ),
}

PROVIDERS = ExtensibleTable[ProviderTraits](_BUILTIN, _traits_of_plugin)

PROVIDER_PLUGINS = PluginKind(
    "nip_run.providers",
    "provider",
    "a function that takes a ConnectionTarget and returns a Provider",
    lambda: PROVIDERS,
)


def traits_of(provider: Any) -> ProviderTraits:
    """Return the capabilities of a provider. An unknown name, as in a file of another version, has none."""
    return next((traits for name, traits in PROVIDERS.items() if name == provider), ProviderTraits())
