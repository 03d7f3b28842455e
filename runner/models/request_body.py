"""Builds the body of a request as its provider sends it, for display, hashes and comparisons.

`nip-run render`, the cache and `nip-run show --prompt` use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.base.plugins import ExtensibleTable
from runner.game.prompts.chat import ChatMessage
from runner.models.providers.anthropic_body import messages_body, output_schema
from runner.models.providers.openai_body import chat_completions_body, response_schema
from runner.models.settings import ModelSettings

BODIES = ExtensibleTable[Callable[[ModelSettings, Sequence[ChatMessage], Mapping[str, Any] | None], bytes]](
    {"anthropic": messages_body}, lambda _: chat_completions_body
)
"""The function that builds a body for each provider. Offline providers and plugins have OpenAI's, for cache keys."""


def request_body(
    settings: ModelSettings, messages: Sequence[ChatMessage], schema: Mapping[str, object] | None = None
) -> bytes:
    """Return the exact bytes that a model group sends, or would send, for these messages.

    `schema` is the JSON schema of the answer, if any.
    """
    return BODIES[settings.provider](settings, messages, schema)


SCHEMA_PARAMETERS = ExtensibleTable[Callable[[Mapping[str, Any]], dict[str, Any]]](
    {"anthropic": output_schema}, lambda _: response_schema
)
"""The function that returns, for each provider, the parameters that force an answer into a JSON schema."""


def schema_parameters(settings: ModelSettings, schema: Mapping[str, object]) -> dict[str, object]:
    """Return the parameters that make a model group's server answer in JSON that follows a schema."""
    return SCHEMA_PARAMETERS[settings.provider](schema)
