"""A chat as the protocol makes it into the chat that a model gets: one function for play and for what is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from runner.prompts.chat import ChatMessage

ChatFormat = Literal["openai", "alternating"]
"""`openai`: senders in `name`, system messages wherever they stand. `alternating`: what open models' chat templates
take: senders in the text, neighbours of one role as one message, the first turn a user's."""


def in_format(chat: list[ChatMessage], chat_format: ChatFormat, *, instructions: str = "system") -> list[ChatMessage]:
    """A chat as its model gets it.

    `instructions` is the role that system messages are sent with: where that is `user`, an alternating chat has them in
    its first turn.
    """
    if chat_format == "openai":
        return chat
    if instructions == "user":
        chat = [{**message, "role": "user"} if message["role"] == "system" else message for message in chat]
    return alternating(chat)


def alternating(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """A chat in which roles alternate as chat templates demand: perhaps a system message, then user and assistant.

    Senders stand in the text. A system message in the middle is part of the user's; neighbours of one role are
    merged; a system message that the assistant answers at once is the user's.
    """
    chat: list[ChatMessage] = []
    for index, message in enumerate(messages):
        role, content = _role(message, first=index == 0), _with_sender(message)
        if chat and chat[-1]["role"] == role:
            chat[-1]["content"] += "\n\n" + content
        else:
            chat.append({"role": role, "content": content})
    if chat and chat[0]["role"] == "system" and (len(chat) == 1 or chat[1]["role"] == "assistant"):
        chat[0]["role"] = "user"
    return chat


def _role(message: ChatMessage, *, first: bool) -> str:
    if message["role"] in ("system", "developer"):
        return "system" if first else "user"
    return message["role"]


def _with_sender(message: ChatMessage) -> str:
    name = message.get("name")
    return f"{name}: {message['content']}" if name else message["content"]
