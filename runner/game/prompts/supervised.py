"""Convert one agent's chat in a finished game to a supervised training example."""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.errors import AgentNotActiveInChannelError
from runner.game.prompts.chat import ChatMessage, ending_with_assistant


def check_replacement(*, ensure_last_message_is_assistant: bool, replaces: bool) -> None:
    """Check that a guess that will be replaced is the last message. This depends on the arguments only, not on games.

    Raises:
        ValueError: the last message may be another one.
    """
    if replaces and not ensure_last_message_is_assistant:
        raise ValueError(
            "a verifier's guess can only be replaced if its message is the last one: "
            "set ensure_last_message_is_assistant=True"
        )


def supervised_example(
    chat: Sequence[ChatMessage],
    agent: str,
    *,
    true_verdict: str | None,
    ensure_last_message_is_assistant: bool,
) -> list[ChatMessage] | None:
    """Return the messages of an example, or None if the agent has not spoken.

    `true_verdict` is a text that replaces the agent's last message.

    Raises:
        ValueError: `true_verdict` is set, but the last message may not be the agent's own.
    """
    check_replacement(
        ensure_last_message_is_assistant=ensure_last_message_is_assistant, replaces=true_verdict is not None
    )
    if not ensure_last_message_is_assistant:
        return list(chat)
    try:
        example = ending_with_assistant(chat, agent)
    except AgentNotActiveInChannelError:
        return None
    if true_verdict is not None:
        example[-1] = {"role": "assistant", "content": true_verdict}
    return example
