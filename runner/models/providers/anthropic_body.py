"""Builds request bodies of Anthropic's Messages API, without importing the client, which takes long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from runner.game.prompts.chat import ChatMessage
from runner.models.settings import ModelSettings

CACHED: Final = {"type": "ephemeral"}
"""Marks the end of a prefix that the server caches for five minutes."""


def messages_body(
    settings: ModelSettings, messages: Sequence[ChatMessage], schema: Mapping[str, object] | None = None
) -> bytes:
    """Return the exact bytes of a request's body. `schema` is the JSON schema of the answer, if any.

    System messages become the system prompt, which is marked for the server's cache, because all games of an agent
    share it. From an agent's second turn on, the whole chat is marked, too, as the next turn's chat starts with it.
    """
    chat = settings.sent_messages(messages)
    system = [message["content"] for message in chat if message["role"] in ("system", "developer")]
    turns = [
        {"role": message["role"], "content": message["content"]}
        for message in chat
        if message["role"] not in ("system", "developer")
    ]
    body: dict[str, Any] = {"model": settings.model, **_parameters(settings, schema)}
    if system:
        body["system"] = [{"type": "text", "text": "\n\n".join(system), "cache_control": CACHED}]
    if any(turn["role"] == "assistant" for turn in turns):
        body.setdefault("cache_control", CACHED)
    return orjson.dumps({**body, "messages": turns})


def output_schema(schema: Mapping[str, object]) -> dict[str, object]:
    """Return the parameters for an answer in JSON that follows a schema."""
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def _parameters(settings: ModelSettings, schema: Mapping[str, object] | None) -> dict[str, object]:
    """Return the parameters other than the model and the messages, by their names in the Messages API."""
    parameters: dict[str, Any] = {}
    limit = settings.max_completion_tokens or settings.max_tokens
    if limit is not None:
        parameters["max_tokens"] = limit
    if settings.stop is not None:
        parameters["stop_sequences"] = list(settings.stop)
    parameters.update(settings.extra_body or {})
    parameters.update(settings.delivery_parameters)
    if schema is not None:
        parameters.update(output_schema(schema))
    if settings.reasoning_effort is not None:
        parameters["output_config"] = {**parameters.get("output_config", {}), "effort": settings.reasoning_effort}
    return parameters
