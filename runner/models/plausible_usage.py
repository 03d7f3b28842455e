"""Reported usage compared with the text of a call: an estimate replaces each count that cannot be true."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from runner.models.answers import usage_as_sent
from runner.models.interface import (
    Choice,
    Completion,
    Request,
    Usage,
    byte_length,
    estimated_prompt_tokens,
    estimated_tokens,
)

MAX_BYTES_PER_TOKEN = 12
"""Fixes the lower bound of a count: no tokenizer has longer tokens on average, apart from runs of blanks and of one
character, which `dense_bytes` leaves out. English prose and code have 3 to 5 bytes per token, German up to 5, Chinese
and Japanese with the largest vocabularies up to 6."""

LONGEST_TOKEN = 64
"""A text of no more bytes may be a single token."""

TYPICAL_BYTES_PER_TOKEN = 4
"""Fixes the number of tokens that a budget counts at least: what ASCII text typically has, and twice as many of others,
since the vocabularies of many models have few words of other scripts."""

_RUNS = re.compile(r"\s+|(.)\1+")


def dense_bytes(text: str) -> int:
    """Return the length of a text in UTF-8 without blanks, with one character for each run of the same character."""
    return byte_length(_RUNS.sub(r"\1", text))


def checked_usage(reported: Usage | None, request: Request, choices: Sequence[Choice]) -> Usage:
    """Return the usage to record: the reported one, with an estimate in place of each count that cannot be true.

    A prompt of 0 tokens cannot be true, nor an answer of 0 tokens that has a text. If a part of a count exceeds it, the
    server does not include such parts, so they are added: some servers count cached or reasoning tokens apart. A token
    may be of two classes, so the sum of the parts proves nothing.
    """
    usage = reported or Usage(estimated=True)
    prompt = _with_parts(usage.prompt_tokens, usage.cached_tokens, usage.cache_write_tokens)
    prompt = _with_parts(prompt, usage.audio_input_tokens)
    answer = _with_parts(usage.completion_tokens, usage.reasoning_tokens)
    answer = _with_parts(answer, usage.audio_output_tokens)
    is_estimated = usage.estimated
    if not (prompt and _is_enough(prompt, _prompt_texts(request))):
        prompt, is_estimated = max(prompt, estimated_prompt_tokens(request.messages)), True
    texts = _answer_texts(choices)
    if usage.estimated or not _is_enough(answer, texts):
        answer, is_estimated = max(answer, sum(map(estimated_tokens, texts))), True
    return replace(usage, prompt_tokens=prompt, completion_tokens=answer, estimated=is_estimated)


def at_least_typical(request: Request, completion: Completion) -> Usage:
    """Return an answer's usage, with no count below what its text typically has."""
    prompt, answer = _typical_tokens(_prompt_texts(request)), _typical_tokens(_answer_texts(completion.choices))
    usage = completion.usage
    if prompt <= usage.prompt_tokens and answer <= usage.completion_tokens:
        return usage
    return replace(
        usage,
        prompt_tokens=max(prompt, usage.prompt_tokens),
        completion_tokens=max(answer, usage.completion_tokens),
    )


def _with_parts(count: int, *parts: int) -> int:
    return count + sum(parts) if max(parts) > count else count


def _typical_tokens(texts: Sequence[str]) -> int:
    other = sum(byte_length(text) - len(text.encode("ascii", "ignore")) for text in texts if not text.isascii())
    return (sum(map(byte_length, texts)) + other) // TYPICAL_BYTES_PER_TOKEN


def _is_enough(tokens: int, texts: Sequence[str]) -> bool:
    """Whether some tokenizer makes no more tokens of these texts."""
    most = max(tokens * MAX_BYTES_PER_TOKEN, LONGEST_TOKEN if tokens else 0)
    return sum(map(byte_length, texts)) <= most or sum(map(dense_bytes, texts)) <= most


def _prompt_texts(request: Request) -> list[str]:
    return [message["content"] for message in request.messages]


def _answer_texts(choices: Iterable[Choice]) -> list[str]:
    texts = (text for choice in choices for text in (choice.text, choice.refusal, choice.reasoning))
    return [text for text in texts if text]


WATCHED = 8
"""The number of first answers of a group that are checked: a template drops the same messages in every game."""

MIN_BYTES = 400
"""Shorter prompts are not checked: a few rare words are no sample of a language."""


class LostMessages:
    """Checks the first answers of some groups for messages that a server dropped on the way to its model.

    Some chat templates drop what they do not expect: a chat whose lone system message Gemma 3's template drops has 10
    prompt tokens, whatever its length.
    """

    def __init__(self, groups: Iterable[str]) -> None:
        self._left = dict.fromkeys(groups, WATCHED)

    def counted(self, request: Request, completion: Completion) -> int | None:
        """Return the server's count of prompt tokens if its model cannot have had all messages; once for a group."""
        if request.group not in self._left:
            return None
        usage = None if completion.from_cache else usage_as_sent(completion)
        if usage is None or usage.estimated or not usage.prompt_tokens:
            return None
        self._left[request.group] -= 1
        # Some servers leave out what they had cached.
        counted, size = (
            usage.prompt_tokens + usage.cached_tokens,
            sum(dense_bytes(message["content"]) for message in request.messages),
        )
        is_lost = size >= MIN_BYTES and counted * MAX_BYTES_PER_TOKEN < size
        if is_lost or not self._left[request.group]:
            del self._left[request.group]
        return counted if is_lost else None
