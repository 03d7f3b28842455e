"""The body of a request as its provider sends it, for display, hashes and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from runner.game.prompts.chat import ChatMessage
from runner.models.provider_traits import ProviderName
from runner.models.providers.anthropic_body import messages_body
from runner.models.providers.openai_body import chat_completions_body
from runner.models.settings import ModelSettings

BODIES: Mapping[ProviderName, Callable[[ModelSettings, Sequence[ChatMessage]], bytes]] = {
    "openai": chat_completions_body,
    "anthropic": messages_body,
    "dummy": chat_completions_body,
    "replay": chat_completions_body,
}
"""The wire format of each provider. Providers that send nothing use the one that cache keys depend on."""


def request_body(settings: ModelSettings, messages: Sequence[ChatMessage]) -> bytes:
    """Return the exact bytes that a model group sends for these messages, or would send."""
    return BODIES[settings.provider](settings, messages)
