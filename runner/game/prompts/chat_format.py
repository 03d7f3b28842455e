"""A chat as the protocol makes it into the chat that a model gets: one function for play and for what is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from runner.game.prompts.chat import ChatMessage

ChatFormat = Literal["openai", "alternating"]
"""`openai`: senders in `name`, system messages wherever they stand. `alternating`: what open models' chat templates
take: senders in the text, neighbours of one role as one message, the first turn a user's."""


NOTHING_NEW = "(no new messages)"
"""The user's turn of an alternating chat between two turns of an agent that was told nothing in between."""

ANONYMOUS = "Anonymous: "
"""What a message without a sender begins with where it joins what others have said in one turn."""

INSTRUCTIONS = "Instructions: "
"""What a system message begins with that is not the chat's first message: it stands among what others have said."""


def formatted(
    chat: list[ChatMessage], chat_format: ChatFormat, *, instructions: str = "system", asks: bool = False
) -> list[ChatMessage]:
    """A chat as its model gets it.

    `instructions` is the role that system messages are sent with: where that is `user`, an alternating chat has them in
    its first turn. `asks`: an answer is to follow, so that the last turn must be the user's. An agent's own turns stay
    apart, so that a later chat begins with every earlier one.
    """
    if chat_format != "alternating":
        return chat
    paused: list[ChatMessage] = []
    for message in chat:
        if message["role"] == "assistant" and paused and paused[-1]["role"] == "assistant":
            paused.append({"role": "user", "content": NOTHING_NEW})
        paused.append(message)
    if asks and paused and paused[-1]["role"] == "assistant":
        paused.append({"role": "user", "content": NOTHING_NEW})
    return with_alternating_roles(paused, instructions=instructions)


def with_alternating_roles(messages: Sequence[ChatMessage], *, instructions: str = "system") -> list[ChatMessage]:
    """A chat in which roles alternate as chat templates demand: perhaps a system message, then user and assistant.

    Senders stand in the text, unless it begins with them by itself. A system message that is not the first is part of
    the user's, after `INSTRUCTIONS`; neighbours of one role are merged; a system message that the assistant answers at
    once is the user's, as all are where `instructions` are.
    """
    chat: list[ChatMessage] = []
    for index, message in enumerate(messages):
        is_first = index == 0
        role = _role(message, leads=is_first and instructions != "user")
        joins = bool(chat) and chat[-1]["role"] == role
        content = _marked(message, is_first=is_first, joins=joins)
        if joins:
            chat[-1]["content"] += "\n\n" + content
        else:
            chat.append({"role": role, "content": content})
    if chat and chat[0]["role"] == "system" and (len(chat) == 1 or chat[1]["role"] == "assistant"):
        chat[0]["role"] = "user"
    return chat


def _role(message: ChatMessage, *, leads: bool) -> str:
    if _instructs(message):
        return "system" if leads else "user"
    return message["role"]


def _instructs(message: ChatMessage) -> bool:
    return message["role"] in ("system", "developer")


def _marked(message: ChatMessage, *, is_first: bool, joins: bool) -> str:
    """A message's text, which says whose it is wherever it would read on from somebody else's."""
    name, content = message.get("name"), message["content"]
    if name:
        # Prompts may ask an agent to begin with its name.
        return content if content.lstrip().startswith(f"{name}:") else f"{name}: {content}"
    if _instructs(message):
        return content if is_first else INSTRUCTIONS + content
    return ANONYMOUS + content if joins and message["role"] == "user" else content
