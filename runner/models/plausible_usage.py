"""Checks the token counts that servers report against the texts of the call.

`runner.models.providers.answer_reader` replaces impossible counts by estimates, and a budget raises low counts.
`DroppedMessageCheck` finds servers that count too few tokens for all messages of a prompt.
"""

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
    estimate_prompt_tokens,
    estimate_tokens,
)

MAX_BYTES_PER_TOKEN = 12
"""Maximum average length of a text's tokens. A count that implies longer tokens is impossible.

A run of blanks or of the same character may be a single token, so `dense_bytes` shortens such runs. English prose and
code have 3 to 5 bytes per token, German up to 5, and Chinese and Japanese with the largest vocabularies up to 6.
"""

LONGEST_TOKEN = 64
"""Maximum length in bytes of a text that may be a single token."""

TYPICAL_BYTES_PER_TOKEN = 4
"""Typical number of bytes per token. A budget counts at least this number of tokens.

Bytes of characters outside ASCII count twice, because the vocabularies of many models have few words in other scripts.
"""

_RUNS = re.compile(r"\s+|(.)\1+")


def dense_bytes(text: str) -> int:
    """Return the length of a text in UTF-8, without blanks and with each run of the same character shortened to one."""
    return byte_length(_RUNS.sub(r"\1", text))


def checked_usage(reported: Usage | None, request: Request, choices: Sequence[Choice]) -> Usage:
    """Return the usage to record: the reported usage, with an estimate instead of each impossible count.

    A prompt with 0 tokens is impossible, and so is an answer with text and 0 tokens. Some servers do not include cached
    or reasoning tokens in the total. If the count of one such class exceeds the total, the counts of all classes are
    added to the total. (Their sum may exceed a correct total, because a token may belong to two classes.)
    """
    usage = reported or Usage(estimated=True)
    prompt = _count_at_least(usage.prompt_tokens, usage.cached_tokens, usage.cache_write_tokens)
    prompt = _count_at_least(prompt, usage.audio_input_tokens)
    answer = _count_at_least(usage.completion_tokens, usage.reasoning_tokens)
    answer = _count_at_least(answer, usage.audio_output_tokens)
    is_estimated = usage.estimated
    prompt_texts = (message["content"] for message in request.messages)
    if not (prompt and _is_possible(prompt, request.prompt_bytes, prompt_texts)):
        prompt, is_estimated = max(prompt, estimate_prompt_tokens(request.messages)), True
    texts = _answer_texts(choices)
    if usage.estimated or not _is_possible(answer, sum(map(byte_length, texts)), texts):
        answer, is_estimated = max(answer, sum(map(estimate_tokens, texts))), True
    if (prompt, answer, is_estimated) == (usage.prompt_tokens, usage.completion_tokens, usage.estimated):
        return usage
    return replace(usage, prompt_tokens=prompt, completion_tokens=answer, estimated=is_estimated)


def usage_at_least_typical(request: Request, completion: Completion) -> Usage:
    """Return an answer's usage, with each count raised to the typical number of tokens for its text."""
    usage, texts = completion.usage, _answer_texts(completion.choices)
    prompt = _typical_tokens(request.prompt_bytes, [message["content"] for message in request.messages])
    answer = _typical_tokens(sum(map(byte_length, texts)), texts)
    if prompt <= usage.prompt_tokens and answer <= usage.completion_tokens:
        return usage
    return replace(
        usage, prompt_tokens=max(prompt, usage.prompt_tokens), completion_tokens=max(answer, usage.completion_tokens)
    )


def _count_at_least(total: int, *classes: int) -> int:
    return total + sum(classes) if max(classes) > total else total


def _typical_tokens(size: int, texts: Sequence[str]) -> int:
    outside_ascii = [byte_length(text) - len(text.encode("ascii", "ignore")) for text in texts if not text.isascii()]
    return (size + sum(outside_ascii)) // TYPICAL_BYTES_PER_TOKEN


def _is_possible(tokens: int, size: int, texts: Iterable[str]) -> bool:
    """Return whether some tokenizer could split these texts of `size` bytes into this number of tokens."""
    max_bytes = max(tokens * MAX_BYTES_PER_TOKEN, LONGEST_TOKEN if tokens else 0)
    return size <= max_bytes or sum(map(dense_bytes, texts)) <= max_bytes


def _answer_texts(choices: Iterable[Choice]) -> list[str]:
    texts = (text for choice in choices for text in (choice.text, choice.refusal, choice.reasoning))
    return [text for text in texts if text]


CHECKED_ANSWERS = 8
"""Number of answers to check for each group. Few are enough, because a template drops messages in every game."""

MIN_BYTES = 400
"""Minimum size of a prompt to check. In a shorter prompt, a few unusual words may have very long tokens."""


class DroppedMessageCheck:
    """Finds model groups whose servers drop messages before they reach the model, by the first answers of each group.

    Some chat templates drop messages that they do not expect. For example, if Gemma 3's template drops the only system
    message, the server counts 10 prompt tokens, regardless of the chat's length.
    """

    def __init__(self, groups: Iterable[str]) -> None:
        self._remaining_checks = dict.fromkeys(groups, CHECKED_ANSWERS)

    def check(self, request: Request, completion: Completion) -> int | None:
        """Return the server's count of prompt tokens if it is too low for all messages; None otherwise.

        A count is returned only once per group.
        """
        if request.group not in self._remaining_checks:
            return None
        usage = None if completion.from_cache else usage_as_sent(completion)
        if usage is None or usage.estimated or not usage.prompt_tokens:
            return None
        self._remaining_checks[request.group] -= 1
        token_count = usage.prompt_tokens + usage.cached_tokens  # some servers do not include cached tokens
        size = sum(dense_bytes(message["content"]) for message in request.messages)
        is_too_low = size >= MIN_BYTES and token_count * MAX_BYTES_PER_TOKEN < size
        if is_too_low or not self._remaining_checks[request.group]:
            del self._remaining_checks[request.group]
        return token_count if is_too_low else None
