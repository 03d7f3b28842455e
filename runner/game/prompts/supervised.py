"""Convert one agent's chat in a finished game to a supervised training example."""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.errors import AgentNotActiveInChannelError
from runner.game.prompts.chat import ChatMessage, ending_with_assistant


def check_replacement(*, ensure_last_message_is_assistant: bool, replaces: bool) -> None:
    """Check that examples end with the agent's own message if that message will be replaced.

    Raises:
        ValueError: examples may end with another message.
    """
    if replaces and not ensure_last_message_is_assistant:
        raise ValueError(
            "the verifier's answer can only be replaced if it is the last message of an example: "
            "set ensure_last_message_is_assistant=True, or do not replace the answer"
        )


def supervised_example(
    chat: Sequence[ChatMessage], agent: str, *, true_verdict: str | None, ensure_last_message_is_assistant: bool
) -> list[ChatMessage] | None:
    """Return the messages of an example, or None if the agent has not spoken.

    If `true_verdict` is a text, it replaces the agent's last message. If `ensure_last_message_is_assistant` is true,
    messages after the agent's last message are left out.

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
