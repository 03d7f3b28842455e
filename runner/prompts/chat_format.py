"""A chat as the protocol makes it into the chat that a model gets: one function for play and for what is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from runner.prompts.chat import ChatMessage

ChatFormat = Literal["openai", "alternating"]
"""`openai`: senders in `name`, system messages wherever they stand. `alternating`: what open models' chat templates
take: senders in the text, neighbours of one role as one message, the first turn a user's."""


NOTHING_NEW = "(no new messages)"
"""The user's turn of an alternating chat between two turns of an agent that was told nothing in between."""

ANONYMOUS = "Anonymous: "
"""What a message without a sender begins with where it joins what others have said in one turn."""


def in_format(
    chat: list[ChatMessage], chat_format: ChatFormat | None, *, instructions: str = "system", asks: bool = False
) -> list[ChatMessage]:
    """A chat as its model gets it, None being `openai`.

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
    return alternating(paused, instructions=instructions)


def alternating(messages: Sequence[ChatMessage], *, instructions: str = "system") -> list[ChatMessage]:
    """A chat in which roles alternate as chat templates demand: perhaps a system message, then user and assistant.

    Senders stand in the text. A system message in the middle is part of the user's; neighbours of one role are
    merged; a system message that the assistant answers at once is the user's, as all are where `instructions` are.
    """
    chat: list[ChatMessage] = []
    for index, message in enumerate(messages):
        role = _role(message, leads=index == 0 and instructions != "user")
        if chat and chat[-1]["role"] == role:
            chat[-1]["content"] += "\n\n" + _with_sender(message, joins=True)
        else:
            chat.append({"role": role, "content": _with_sender(message)})
    if chat and chat[0]["role"] == "system" and (len(chat) == 1 or chat[1]["role"] == "assistant"):
        chat[0]["role"] = "user"
    return chat


def _role(message: ChatMessage, *, leads: bool) -> str:
    if message["role"] in ("system", "developer"):
        return "system" if leads else "user"
    return message["role"]


def _with_sender(message: ChatMessage, *, joins: bool = False) -> str:
    name = message.get("name")
    if name:
        return f"{name}: {message['content']}"
    # Else it would read on from the instructions, or from what another sender said.
    return ANONYMOUS + message["content"] if joins and message["role"] == "user" else message["content"]
