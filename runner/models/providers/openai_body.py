"""A chat into the exact bytes of a request's body. Apart from the client, which takes long to import."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from runner.game.prompts.chat import ChatMessage
from runner.models.settings import ModelSettings


def request_body(settings: ModelSettings, messages: Sequence[ChatMessage], n: int | None = None) -> bytes:
    """The exact bytes of a request's body: the model, what the spec sets, and the messages.

    `n` is the number of answers, where one call is to give those of several samples.
    """
    more = {} if n is None else {"n": n}
    chat = as_sent(settings, messages)
    return orjson.dumps({"model": settings.model, **settings.sampling(), **more, "messages": chat})


def as_sent(settings: ModelSettings, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """The messages of a request as the server gets them: with the group's role for instructions, perhaps no names."""
    if settings.send_name and settings.system_role == "system":
        return messages
    return [_wire(message, settings) for message in messages]


def _wire(message: ChatMessage, settings: ModelSettings) -> ChatMessage:
    role = settings.system_role if message["role"] == "system" else message["role"]
    if settings.send_name and "name" in message:
        return {"role": role, "name": message["name"], "content": message["content"]}
    return {"role": role, "content": message["content"]}
