"""Convert the chat of a game to the chat that a model receives, in the same way for games and for training files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from runner.game.prompts.chat import ChatMessage

ChatFormat = Literal["openai", "alternating"]
"""`openai`: `name` has the sender of a message, and system messages may be anywhere. `alternating`, as the chat
templates of open models require: the text begins with the sender, adjacent messages with the same role are merged, and
the first turn after the system message is the user's."""


NOTHING_NEW = "(no new messages)"
"""The user's turn that an alternating chat has between two turns of an agent that heard nothing in between."""

ANONYMOUS = "Anonymous: "
"""Prefix of a message without a sender that is merged into a turn with other messages."""

INSTRUCTIONS = "Instructions: "
"""Prefix of a system message that is not the chat's first message and becomes part of a user's turn."""


def format_chat(
    chat: list[ChatMessage], chat_format: ChatFormat, *, instructions: str = "system", asks: bool = False
) -> list[ChatMessage]:
    """Return the chat as its model receives it.

    `instructions` is the role of system messages in an alternating chat; with `user` they join the user's turns. If
    `asks` is true, the model will answer the chat, so its last turn becomes the user's. An agent's own turns are never
    merged: each chat of a game is then the beginning of the agent's next chat.
    """
    if chat_format != "alternating":
        return chat
    with_pauses: list[ChatMessage] = []
    for message in chat:
        if message["role"] == "assistant" and with_pauses and with_pauses[-1]["role"] == "assistant":
            with_pauses.append({"role": "user", "content": NOTHING_NEW})
        with_pauses.append(message)
    if asks and with_pauses and with_pauses[-1]["role"] == "assistant":
        with_pauses.append({"role": "user", "content": NOTHING_NEW})
    return with_alternating_roles(with_pauses, instructions=instructions)


def with_alternating_roles(messages: Sequence[ChatMessage], *, instructions: str = "system") -> list[ChatMessage]:
    """Return a chat with alternating roles, as chat templates require: system (optional), user, assistant, user, ...

    The text of a message with a sender begins with the sender's name. A system message that is not the chat's first
    message becomes part of a user's turn, with the prefix `INSTRUCTIONS`. Adjacent messages with the same role are
    merged. If the assistant's turn follows the first system message directly, or with `instructions="user"`, this
    system message becomes a user's turn, too.
    """
    chat: list[ChatMessage] = []
    for index, message in enumerate(messages):
        is_first = index == 0
        role = _role(message, may_be_system=is_first and instructions != "user")
        is_merged = bool(chat) and chat[-1]["role"] == role
        content = _with_sender(message, is_first=is_first, is_merged=is_merged)
        if is_merged:
            chat[-1]["content"] += "\n\n" + content
        else:
            chat.append({"role": role, "content": content})
    if chat and chat[0]["role"] == "system" and (len(chat) == 1 or chat[1]["role"] == "assistant"):
        chat[0]["role"] = "user"
    return chat


def _role(message: ChatMessage, *, may_be_system: bool) -> str:
    if _is_instruction(message):
        return "system" if may_be_system else "user"
    return message["role"]


def _is_instruction(message: ChatMessage) -> bool:
    return message["role"] in ("system", "developer")


def _with_sender(message: ChatMessage, *, is_first: bool, is_merged: bool) -> str:
    """Return a message's text with its sender or the kind of message as a prefix, where the reader needs one."""
    name, content = message.get("name"), message["content"]
    if name:
        # Prompts may ask an agent to begin with its name.
        return content if content.lstrip().startswith(f"{name}:") else f"{name}: {content}"
    if _is_instruction(message):
        return content if is_first else INSTRUCTIONS + content
    return ANONYMOUS + content if is_merged and message["role"] == "user" else content
