"""The rounds of a game, as one agent may see them, into chat messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from runner.base.errors import AgentNotActiveInChannelError
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import Round


class _Named(TypedDict, total=False):
    name: str


class ChatMessage(_Named):
    """One message of a chat request. `name` is the sender's, where the protocol lets it be known."""

    role: str
    content: str


def chat_messages(
    protocol: Protocol,
    agent: str,
    rounds: Sequence[Round],
    *,
    round_: int,
    system: str,
    last_round: str | None = None,
    seed: int = 0,
) -> list[ChatMessage]:
    """The chat of an agent that speaks in `round_`.

    Its own past turns are its raw text, first in their round; the others' messages follow in channel order as
    `user`. `last_round` is the system message that stands before the last round's messages, where the
    protocol gives the agent one and `round_` is that round.
    """
    chat: list[ChatMessage] = [{"role": "system", "content": system}]
    last = protocol.max_message_rounds - 1
    warned = last_round is None or round_ != last or not protocol.agent_spec(agent).last_round_message
    order = {name: i for i, name in enumerate(protocol.channel_order(agent, seed))}
    visible = protocol.visible_channels(agent)
    for index, played in enumerate(rounds):
        if index == last and not warned:
            chat.append({"role": "system", "content": last_round or ""})
            warned = True
        if agent in played.raw:
            chat.append({"role": "assistant", "content": played.raw[agent]})
        others = [m for m in played.messages if m.agent != agent and m.channel in visible]
        if len(others) > 1:
            others.sort(key=lambda message: order[message.channel])
        for message in others:
            sender = protocol.agent_spec(message.agent)
            if sender.anonymous:
                chat.append({"role": "user", "content": message.text})
            else:
                chat.append({"role": "user", "name": sender.human_name, "content": message.text})
    if not warned:
        chat.append({"role": "system", "content": last_round or ""})
    return chat


def ending_with_assistant(chat: Sequence[ChatMessage], agent: str) -> list[ChatMessage]:
    """The chat up to the agent's own last turn.

    Raises:
        AgentNotActiveInChannelError: the agent has said nothing.
    """
    end = next((i for i in range(len(chat), 0, -1) if chat[i - 1]["role"] == "assistant"), 0)
    if not end:
        raise AgentNotActiveInChannelError(f"{agent} has said nothing in this game")
    return list(chat[:end])
