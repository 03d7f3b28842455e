"""Builds request bodies of the Chat Completions API, without importing the client, which takes long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from runner.game.prompts.chat import ChatMessage
from runner.models.settings import ModelSettings


def chat_completions_body(
    settings: ModelSettings,
    messages: Sequence[ChatMessage],
    schema: Mapping[str, object] | None = None,
    *,
    n: int | None = None,
) -> bytes:
    """Return the exact bytes of a request's body: the model, the parameters of the spec, and the messages.

    `schema` is the JSON schema of the answer, if any. `n` is the number of answers, if one call is for several samples.
    """
    more: dict[str, Any] = {**settings.delivery_parameters, **({} if n is None else {"n": n})}
    if schema is not None:
        more |= response_schema(schema)
    chat = settings.sent_messages(messages)
    return orjson.dumps({"model": settings.model, **settings.request_parameters, **more, "messages": chat})


def response_schema(schema: Mapping[str, object]) -> dict[str, object]:
    """Return the parameters for an answer in JSON that follows a schema."""
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    }
