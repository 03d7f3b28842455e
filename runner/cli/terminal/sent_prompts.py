"""Print the chats that an agent's model gets in a rollout, without wrapping or changing the messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runner.base.text import in_one_line
from runner.cli.terminal.output import print_heading, say

if TYPE_CHECKING:
    from runner.runs.finished.sent_prompts import SentPrompt


def print_prompts(prompts: list[SentPrompt], agent: str) -> None:
    """Print the requests that were sent to an agent's model."""
    for prompt in prompts:
        times = "" if prompt.attempts == 1 else f", sent {prompt.attempts} times"
        print_heading(f"=== round {prompt.round}: {agent}{times} ===")
        print_request(prompt.body)
        say()


def print_request(body: Mapping[str, Any], *, gap: str = "") -> None:
    """Print the parameters of a request, then each message below a heading with its role and sender.

    `gap` is printed before each heading.
    """
    for name, value in body.items():
        if name != "messages" and value is not None:
            say(f"{name}: {json.dumps(value)}")
    for message in body["messages"]:
        sender = f" ({in_one_line(message['name'])})" if "name" in message else ""
        print_heading(f"{gap}--- {message['role']}{sender} ---")
        say(message["content"])
