"""Print the chats that an agent's model got in a rollout, exactly as they were sent."""

from __future__ import annotations

import json

from runner.base.text import in_one_line
from runner.cli.terminal.output import say
from runner.game.prompts.chat import ChatMessage
from runner.runs.finished.sent_prompts import SentPrompt


def print_prompts(prompts: list[SentPrompt], agent: str) -> None:
    """Print chats without wrapping or changing anything in them."""
    for prompt in prompts:
        times = "" if prompt.attempts == 1 else f", sent {prompt.attempts} times"
        say(f"=== round {prompt.round}: {agent}{times} ===", "1")
        for name, value in prompt.body.items():
            if name != "messages" and value is not None:
                say(f"{name}: {json.dumps(value)}")
        messages: list[ChatMessage] = prompt.body["messages"]
        for message in messages:
            sender = f" ({in_one_line(message['name'])})" if "name" in message else ""
            say(f"--- {message['role']}{sender} ---", "1")
            say(message["content"])
        say()
