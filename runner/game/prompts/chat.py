"""Convert the part of a game that one agent may see to chat messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from runner.base.errors import AgentNotActiveInChannelError
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import Message, Round
from runner.game.protocols.speeches import without_notes


class _SenderName(TypedDict, total=False):
    name: str


class ChatMessage(_SenderName):
    """One message of a chat. `name` is the name of its sender; it is missing if the sender is anonymous."""

    role: str
    content: str


def _heard_message(message: Message, protocol: Protocol) -> ChatMessage:
    """Return a message of another agent, with the agent's name unless the agent is anonymous."""
    sender = protocol.agent_spec(message.agent)
    if sender.anonymous:
        return {"role": "user", "content": message.text}
    return {"role": "user", "name": sender.human_name, "content": message.text}


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
    """Return the chat that an agent answers in round `round_`.

    In each past round, the agent's own raw text comes first, with role `assistant` and without private notes; the
    messages of other agents follow, with role `user`, in the agent's order of channels. `last_round` is a system
    message that the chat has before the messages of the last round, if `round_` is the last round and the protocol
    gives the agent such a message.
    """
    chat: list[ChatMessage] = [{"role": "system", "content": system}]
    last = protocol.max_message_rounds - 1
    last_round_added = last_round is None or round_ != last or not protocol.agent_spec(agent).last_round_message
    visible = protocol.visible_channels(agent)
    for index, past_round in enumerate(rounds):
        if index == last and not last_round_added:
            chat.append({"role": "system", "content": last_round or ""})
            last_round_added = True
        if agent in past_round.raw:
            own_answer = without_notes(past_round.raw[agent], protocol.agent_spec(agent).scratchpad)
            chat.append({"role": "assistant", "content": own_answer})
        messages_heard = [m for m in past_round.messages if m.agent != agent and m.channel in visible]
        if len(messages_heard) > 1:
            order = protocol.channel_order(agent, seed)
            messages_heard.sort(key=lambda message: order.index(message.channel))
        chat.extend(_heard_message(message, protocol) for message in messages_heard)
    if not last_round_added:
        chat.append({"role": "system", "content": last_round or ""})
    return chat


def ending_with_assistant(chat: Sequence[ChatMessage], agent: str) -> list[ChatMessage]:
    """Return the part of the chat that ends with the agent's own last turn.

    Raises:
        AgentNotActiveInChannelError: the agent has not spoken.
    """
    end = next((i for i in range(len(chat), 0, -1) if chat[i - 1]["role"] == "assistant"), 0)
    if not end:
        raise AgentNotActiveInChannelError(
            f"agent {agent} has said nothing in this game; choose an agent or a game with a message of the agent"
        )
    return list(chat[:end])
