"""Reported usage compared with the text of a call: an estimate replaces each count that cannot be true."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from runner.models.base import (
    Choice,
    Completion,
    Request,
    Usage,
    byte_length,
    estimated_prompt_tokens,
    estimated_tokens,
)

MAX_BYTES_PER_TOKEN = 64
"""Fixes the lower bound of a count: no tokenizer in use has a longer token, apart from runs of blanks and runs of one
character, which `dense_bytes` leaves out. English prose and code have 3 to 5 bytes per token."""

TYPICAL_BYTES_PER_TOKEN = 4
"""Fixes the number of tokens that a budget counts at least: what a text typically has."""

_RUNS = re.compile(r"\s+|(.)\1+")


def dense_bytes(text: str) -> int:
    """Return the length of a text in UTF-8 without blanks, with one character for each run of the same character."""
    return byte_length(_RUNS.sub(r"\1", text))


def checked_usage(reported: Usage | None, request: Request, choices: Sequence[Choice]) -> Usage:
    """Return the usage to record: the reported one, with an estimate in place of each count that cannot be true.

    A prompt of 0 tokens cannot be true, nor an answer of 0 tokens that has a text. If the parts of a count exceed it,
    the server does not include them, so they are added: some servers count cached or reasoning tokens apart.
    """
    usage = reported or Usage(estimated=True)
    parts_in = usage.cached_tokens + usage.cache_write_tokens + usage.audio_input_tokens
    parts_out = usage.reasoning_tokens + usage.audio_output_tokens
    prompt = usage.prompt_tokens + (parts_in if parts_in > usage.prompt_tokens else 0)
    answer = usage.completion_tokens + (parts_out if parts_out > usage.completion_tokens else 0)
    is_estimated = usage.estimated
    if not (prompt and _is_enough(prompt, _prompt_texts(request))):
        prompt, is_estimated = max(prompt, estimated_prompt_tokens(request.messages)), True
    texts = _answer_texts(choices)
    if usage.estimated or not _is_enough(answer, texts):
        answer, is_estimated = max(answer, sum(map(estimated_tokens, texts))), True
    return replace(usage, prompt_tokens=prompt, completion_tokens=answer, estimated=is_estimated)


def at_least_typical(request: Request, completion: Completion) -> Usage:
    """Return an answer's usage, with no count below what its text typically has."""
    prompt = sum(map(byte_length, _prompt_texts(request))) // TYPICAL_BYTES_PER_TOKEN
    answer = sum(map(byte_length, _answer_texts(completion.choices))) // TYPICAL_BYTES_PER_TOKEN
    usage = completion.usage
    if prompt <= usage.prompt_tokens and answer <= usage.completion_tokens:
        return usage
    return replace(
        usage,
        prompt_tokens=max(prompt, usage.prompt_tokens),
        completion_tokens=max(answer, usage.completion_tokens),
    )


def _is_enough(tokens: int, texts: Sequence[str]) -> bool:
    """Whether some tokenizer makes no more tokens of these texts."""
    most = tokens * MAX_BYTES_PER_TOKEN
    return sum(map(byte_length, texts)) <= most or sum(map(dense_bytes, texts)) <= most


def _prompt_texts(request: Request) -> list[str]:
    return [message["content"] for message in request.messages]


def _answer_texts(choices: Iterable[Choice]) -> list[str]:
    texts = (text for choice in choices for text in (choice.text, choice.refusal, choice.reasoning))
    return [text for text in texts if text]
