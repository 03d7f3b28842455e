"""Functions that return the reason why a text or a chat cannot be used for training."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from runner.base.text import encoding_problem
from runner.game.prompts.chat import ChatMessage

ALTERNATING_OPTION = "--chat-format alternating (in a spec, fine_tune.chat_format: alternating)"
"""The option for chat templates that need alternating turns of user and assistant."""

ROLES = ("system", "developer", "user", "assistant")

_SPECIAL_TOKEN = re.compile(r"<[|｜][^|｜<>\s]+[|｜]>")
"""`<|im_start|>` and similar tokens. DeepSeek's tokens have full-width bars."""

TEMPLATE_TOKENS = (
    "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
    "[AVAILABLE_TOOLS]", "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<s>", "</s>",
)  # fmt: skip
"""Control tokens of other common chat templates: Mistral's, Llama 2's and Gemma's."""


_CACHED_LENGTH = 4096
"""Maximum number of characters of texts whose result is cached, since instructions occur in many examples."""


def text_problem(text: str, tokens: tuple[str, ...] = ()) -> str | None:
    """Return why a text cannot be in a dataset, or None. It must contain neither `<|...|>` nor any of `tokens`."""
    return _short_text_problem(text, tokens) if len(text) <= _CACHED_LENGTH else _text_problem(text, tokens)


def _text_problem(text: str, tokens: tuple[str, ...]) -> str | None:
    if not text.strip():
        return "empty content"
    if "\ufeff" in text:
        return "byte-order mark"
    if encoding_problem(text) is not None:  # the JSON of an answer can contain half of a surrogate pair
        return "not UTF-8"
    if _SPECIAL_TOKEN.search(text):
        return "special token <|...|>"
    token = next((token for token in tokens if token in text), None)
    return f"special token {token}" if token else None


_short_text_problem = lru_cache(maxsize=256)(_text_problem)


def chat_problem(messages: Sequence[ChatMessage], tokens: tuple[str, ...] = ()) -> str | None:
    """Return why a chat cannot be in a dataset, or None."""
    for message in messages:
        if message["role"] not in ROLES:
            return f"unknown role {message['role']}"
        problem = text_problem(message["content"], tokens)
        if problem:
            return problem
    return None


def turn_problem(prompt: Sequence[ChatMessage]) -> str | None:
    """Return why an answer cannot follow a prompt if a chat template needs alternating turns; None if it can."""
    if not prompt:
        return "no prompt"
    if prompt[-1]["role"] == "assistant":
        return f"the prompt ends with an assistant message; add a user message after it with {ALTERNATING_OPTION}"
    return None if prompt[0]["role"] != "assistant" else "the chat begins with the assistant"
