"""Why a text or a chat cannot be trained on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from runner.prompts.chat import ChatMessage

WAY_OUT = "--chat-format alternating (in a spec, fine_tune.chat_format: alternating)"
"""How files are written for chat templates that take no other roles."""

ROLES = ("system", "developer", "user", "assistant")

_MARKED = re.compile(r"<[|｜][^|｜<>\s]+[|｜]>")
"""`<|im_start|>` and its family; DeepSeek's have wide bars."""

TEMPLATE_TOKENS = (
    "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
    "[AVAILABLE_TOOLS]", "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<s>", "</s>",
)  # fmt: skip
"""Control tokens of common chat templates that look like no others: Mistral's, Llama 2's, Gemma's."""


def text_problem(text: str, tokens: Iterable[str] = ()) -> str | None:
    """Why a text cannot stand in a dataset; `tokens` are refused besides the `<|...|>` family."""
    if not text.strip():
        return "empty content"
    if "\ufeff" in text:
        return "byte-order mark"
    if not is_utf8(text):
        return "not UTF-8"
    if _MARKED.search(text):
        return "special token <|...|>"
    found = next((token for token in tokens if token in text), None)
    return f"special token {found}" if found else None


def is_utf8(text: str) -> bool:
    """Whether a text can be written at all."""
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, from an answer's JSON
        return False
    return True


def chat_problem(messages: Sequence[ChatMessage], tokens: Iterable[str] = ()) -> str | None:
    """Why a chat cannot stand in a dataset."""
    for message in messages:
        if message["role"] not in ROLES:
            return f"unknown role {message['role']}"
        problem = text_problem(message["content"], tokens)
        if problem:
            return problem
    return None


def turn_problem(prompt: Sequence[ChatMessage]) -> str | None:
    """Why an open model's answer cannot follow a prompt: its chat template puts turns after each other's."""
    if not prompt:
        return "no prompt"
    if prompt[-1]["role"] == "assistant":
        return f"the prompt ends with the assistant's own message; {WAY_OUT} puts one of the user's after it"
    return None if prompt[0]["role"] != "assistant" else "the chat begins with the assistant"
