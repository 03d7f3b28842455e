"""A server's answer without what the wire format does not have: routers and servers add where they run.

What a model said stays as it is, and so does an answer in which nothing else tells anything, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_OPAQUE = re.compile(
    r"(?:(?:chatcmpl|cmpl|gen|resp|msg|req|chat|call|fp|tool)[-_])*"
    r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{8,64}|\d{1,20}"
    r"|(?=[A-Za-z]*\d)(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])[A-Za-z0-9]{16,64})(?:-\d{1,6})?"
)
"""Ids that are numbers, hashes, or letters of both cases and digits at random: no name of anything."""
_FINGERPRINTS = re.compile(
    r"fp_(?:ollama|loopback)|b\d{1,6}-[0-9a-f]{7,40}|vllm-\d+(?:\.\d+){1,3}(?:-tp\d+)?-[0-9a-f]{8}"
)
_WORD = re.compile(r"[a-z]{1,12}(?:[._][a-z]{1,12}){0,3}")
_TIERS = frozenset(("auto", "default", "flex", "priority", "scale", "standard", "on_demand", "batch"))
_OBJECTS = frozenset(("chat.completion", "chat.completion.chunk", "text_completion"))

Keep = Callable[[Any], Any]
"""A value into what of it is published; `_GONE` for nothing."""
_GONE = object()


def _whole(value: Any) -> Any:
    return value


def _scalar(value: Any) -> Any:
    return _GONE if isinstance(value, (dict, list)) else value


def _matching(fits: Callable[[str], object]) -> Keep:
    return lambda value: value if isinstance(value, str) and fits(value) else _GONE


def _numbers(value: Any) -> Any:
    """Counts, in whatever order a server puts them."""
    if isinstance(value, Mapping):
        return _object(value, lambda _: _numbers)
    if isinstance(value, list):
        return _GONE if any(isinstance(item, (str, dict, list)) for item in value) else value
    return _GONE if isinstance(value, str) else value


def _fields(**known: Keep) -> Keep:
    return lambda value: _object(value, known.get) if isinstance(value, Mapping) else _GONE


def _list(item: Keep) -> Keep:
    def kept(value: Any) -> Any:
        if not isinstance(value, list):
            return _GONE
        found = [item(one) for one in value]
        return [old if new is _GONE and _says_nothing(old) else {} if new is _GONE else new
                for old, new in zip(value, found, strict=True)]  # fmt: skip

    return kept


def _says_nothing(value: Any) -> bool:
    return value is None or isinstance(value, bool) or value in ("", [], {})


def _object(value: Mapping[str, Any], keep: Callable[[str], Keep | None]) -> dict[str, Any]:
    kept = {}
    for name, item in value.items():
        if _says_nothing(item):
            kept[name] = item  # as the fields that a server leaves empty
            continue
        known = keep(name)
        cleaned = _GONE if known is None else known(item)
        if cleaned is not _GONE:
            kept[name] = cleaned
    return kept


_LIKELY = {"token": _scalar, "logprob": _scalar, "bytes": _numbers}
_TOKENS = _list(_fields(**_LIKELY, top_logprobs=_list(_fields(**_LIKELY))))
_FUNCTION = _fields(name=_scalar, arguments=_whole)
_MESSAGE = _fields(
    role=_matching(_WORD.fullmatch), content=_whole, refusal=_whole, reasoning=_whole, reasoning_content=_whole,
    tool_calls=_list(_fields(id=_matching(_OPAQUE.fullmatch), type=_matching(_WORD.fullmatch), index=_numbers,
                             function=_FUNCTION)),
    function_call=_FUNCTION, provider_specific_fields=_fields(refusal=_whole),
)  # fmt: skip
_CHOICE = _fields(
    index=_numbers, message=_MESSAGE, finish_reason=_scalar, stop_reason=_scalar,
    logprobs=_fields(content=_TOKENS, refusal=_TOKENS), token_ids=_numbers,
)  # fmt: skip
_ANSWER: Mapping[str, Keep] = {
    "id": _matching(_OPAQUE.fullmatch),
    "object": _matching(_OBJECTS.__contains__),
    "created": _numbers,
    "model": _scalar,
    "choices": _list(_CHOICE),
    "usage": _numbers,
    "service_tier": _matching(_TIERS.__contains__),
    "system_fingerprint": _matching(lambda text: _OPAQUE.fullmatch(text) or _FINGERPRINTS.fullmatch(text)),
}


def clean_answer(said: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """An answer with the fields of the wire format alone, and how many others were taken out."""
    kept = _object(said, _ANSWER.get)
    return kept, 0 if kept == said else _size(said) - _size(kept) or 1


def _size(value: Any) -> int:
    """So many fields it has, at any depth."""
    if isinstance(value, Mapping):
        return len(value) + sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list) else 0
