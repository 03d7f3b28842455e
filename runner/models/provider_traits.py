"""The providers, and what each can do. Their clients are imported where one is connected, and not here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runner.game.prompts.chat_format import ChatFormat

ProviderName = Literal["openai", "anthropic", "dummy", "replay"]
"""As a spec has them."""

DEFAULT_PROVIDER: ProviderName = "openai"


@dataclass(frozen=True, kw_only=True)
class ProviderTraits:
    """What sets a provider apart."""

    remote: bool = False
    """It is asked over a network: its calls are retried, limited, and may be lost on the way."""
    metered: bool = False
    """Its calls cost money: they have a price, count in a budget, and their answers must not be lost."""
    needs_model: bool = False
    """Its groups name a model."""
    needs_run: bool = False
    """Its groups name a run, whose answers they give again."""
    gives_many: bool = False
    """It can give the answers of several samples to one call."""
    takes_batches: bool = False
    """It can be asked by batch."""
    drawn: bool = False
    """Its answers are drawn here, from the rollout's seed."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Keys of a model group that its API does not have, each with what to do instead."""
    needs_limit: bool = False
    """Each call states the limit of its answer."""
    chat_format: ChatFormat = "openai"
    """The form of chats at its own server, if a spec gives none."""
    lacks_formats: tuple[ChatFormat, ...] = ()
    """Forms of chats that its API cannot express."""
    has_system_prompt: bool = False
    """Every model takes a system prompt; elsewhere that depends on the model's chat template."""
    has_sync_client: bool = False
    """Its package has a synchronous client that agents show as `client`."""
    base_url: str = ""
    """Its own server's URL, if a spec gives none."""
    key_variable: str | None = None
    """The environment variable with the key for its own server."""
    trains: bool = False
    """Its models can be fine-tuned where they are served."""


PROVIDERS: Mapping[ProviderName, ProviderTraits] = {
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
        lacks={
            "temperature": "leave it out; models sample at their own temperature",
            "top_p": "leave it out; models sample at their own temperature",
            "n": "leave it out; an answer that cannot be used is asked for again (retry.invalid_response)",
            "seed": "leave it out; repeated runs differ",
            "logprobs": "leave it out; for verdicts as probabilities, set verdict.confidence=stated",
            "top_logprobs": "leave it out; for verdicts as probabilities, set verdict.confidence=stated",
            "share_prompts": "leave it out; the server caches the prompt that calls share",
            "batch": "leave it out; calls go out one by one",
        },
    ),
    "dummy": ProviderTraits(drawn=True),
    "replay": ProviderTraits(needs_run=True),
}


def traits_of(provider: Any) -> ProviderTraits:
    """Return what a provider can do; one that is not known, as files from elsewhere may name it, can do nothing."""
    return next((traits for name, traits in PROVIDERS.items() if name == provider), ProviderTraits())
