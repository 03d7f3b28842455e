"""The log-probabilities of a stretch of an answer, from what the server said of its tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import orjson

from runner.models.answers import counted
from runner.models.base import Completion

_HAS_TOKENS = b'"logprob"'
"""A key of each token."""


def has_logprobs(completion: Completion) -> bool:
    """Whether an answer may have log-probabilities; most have none, and need not be read again to know it."""
    return completion.body is not None and _HAS_TOKENS in completion.body.json


def logprobs_of_span(completion: Completion, index: int, span: tuple[int, int]) -> str | None:
    """The tokens that overlap a span of the characters of a choice's text: a list of token, logprob and top, in JSON.

    None where the server told no tokens, or not those of this text. What it tells besides, as of reasoning before the
    text and of an end after it, is passed over.
    """
    body, text = completion.body, completion.choices[index].text
    if body is None or text is None:
        return None
    choice = counted(orjson.loads(body.json))[index if body.choice is None else body.choice]
    tokens = _tokens(choice.get("logprobs"))
    try:
        spelled = [_bytes_of(token) for token in tokens]
        start = b"".join(spelled).rfind(text.encode())
        if start < 0 or not tokens:
            return None
        first, last = (start + len(text[:at].encode()) for at in span)
        ends = list(accumulate(map(len, spelled)))
        begin = bisect_right(ends, first)
        starts = [0, *ends[:-1]]
        found = [_shown(token) for token, at in zip(tokens[begin:], starts[begin:], strict=True) if at < last]
        return orjson.dumps(found).decode()
    except (AttributeError, KeyError, TypeError, ValueError):  # tokens of another form
        return None


def _tokens(logprobs: object) -> Sequence[Mapping[str, Any]]:
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return content if isinstance(content, list) and all(isinstance(token, dict) for token in content) else ()


def _bytes_of(token: Mapping[str, Any]) -> bytes:
    """A token's bytes: it may be a part of a character, which its text cannot say."""
    raw = token.get("bytes")
    spelled: str = token["token"]
    return bytes(raw) if isinstance(raw, list) else spelled.encode()


def _shown(token: Mapping[str, Any]) -> dict[str, Any]:
    top = token.get("top_logprobs") or ()
    return {
        "token": token["token"],
        "logprob": token["logprob"],
        "top": {other["token"]: other["logprob"] for other in reversed(top)},
    }
