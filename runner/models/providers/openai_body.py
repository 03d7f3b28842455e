"""A chat into the exact bytes of a request's body. Apart from the client, which takes long to import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from runner.models.settings import ModelSettings
from runner.prompts.chat import ChatMessage


def request_body(settings: ModelSettings, messages: Sequence[ChatMessage], n: int | None = None) -> bytes:
    """The exact bytes of a request's body: the model, what the spec sets, and the messages.

    `n` is the number of answers, where one call is to give those of several samples.
    """
    more = {} if n is None else {"n": n}
    chat = messages if _is_plain(settings) else [_wire(message, settings) for message in messages]
    return orjson.dumps({"model": settings.model, **settings.sampling(), **more, "messages": chat})


def _is_plain(settings: ModelSettings) -> bool:
    return settings.send_name and settings.system_role == "system"


def _wire(message: ChatMessage, settings: ModelSettings) -> Mapping[str, Any]:
    wire = {"role": settings.system_role if message["role"] == "system" else message["role"]}
    if settings.send_name and "name" in message:
        wire["name"] = message["name"]
    return {**wire, "content": message["content"]}
