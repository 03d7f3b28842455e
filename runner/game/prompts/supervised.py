"""One agent's chat of a finished game into a supervised example."""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.errors import AgentNotActiveInChannelError
from runner.game.prompts.chat import ChatMessage, ending_with_assistant


def check_replacement(*, ensure_last_message_is_assistant: bool, replaces: bool) -> None:
    """See that a guess that is to be replaced is the last message: a property of the call, whatever the games are.

    Raises:
        ValueError: it need not be.
    """
    if replaces and not ensure_last_message_is_assistant:
        raise ValueError(
            "a verifier's guess can be replaced only where its message is ensured to be the last: "
            "give ensure_last_message_is_assistant=True"
        )


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
    check_replacement(
        ensure_last_message_is_assistant=ensure_last_message_is_assistant, replaces=true_verdict is not None
    )
    if not ensure_last_message_is_assistant:
        return list(chat)
    try:
        own = ending_with_assistant(chat, agent)
    except AgentNotActiveInChannelError:
        return None
    if true_verdict is not None:
        own[-1] = {"role": "assistant", "content": true_verdict}
    return own
