"""One agent's chat of a finished game into a supervised example."""

from __future__ import annotations

from collections.abc import Sequence

from runner.errors import AgentNotActiveInChannelError
from runner.prompts.chat import ChatMessage, ending_with_assistant


def supervised_example(
    chat: Sequence[ChatMessage],
    agent: str,
    *,
    true_verdict: str | None,
    ensure_last_message_is_assistant: bool,
) -> list[ChatMessage] | None:
    """The messages of an example, or None where the agent said nothing.

    `true_verdict` is the text that replaces the agent's last message, whatever that was.

    Raises:
        ValueError: a last message is to be replaced and need not be the agent's own.
    """
    if true_verdict is not None and not ensure_last_message_is_assistant:
        raise ValueError("a verifier's guess can be replaced only where its message is ensured to be the last")
    if not ensure_last_message_is_assistant:
        return list(chat)
    try:
        own = ending_with_assistant(chat, agent)
    except AgentNotActiveInChannelError:
        return None
    if true_verdict is not None:
        own[-1] = {"role": "assistant", "content": true_verdict}
    return own
