"""The known fields of an answer in the formats chat completions and Messages.

Servers add other fields, which may show where the servers run. So `runner.registry.redaction.rules` removes them from
the answers in a journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ANY = "any"
"""Allows any value. Used for text that a model wrote."""
_SCALAR = "scalar"
"""Allows all values except objects and lists."""
_NUMBERS = "numbers"
"""Allows numbers, also in nested objects and lists."""
_REST = "*"
"""The key for all fields of an object that are not listed."""
_REMOVED = object()
"""Marks a value that is not allowed."""

_TOKEN = {"token": _SCALAR, "logprob": _SCALAR, "bytes": _NUMBERS}
_TOKENS = [{**_TOKEN, "top_logprobs": [_TOKEN]}]
_FUNCTION = {"name": _SCALAR, "arguments": _ANY}
_MESSAGE = {
    "role": _SCALAR, "content": _ANY, "refusal": _ANY, "reasoning": _ANY, "reasoning_content": _ANY,
    "tool_calls": [{"id": _SCALAR, "type": _SCALAR, "index": _NUMBERS, "function": _FUNCTION}],
    "function_call": _FUNCTION, "provider_specific_fields": {"refusal": _ANY},
}  # fmt: skip
_CHOICE = {
    "index": _NUMBERS, "message": _MESSAGE, "finish_reason": _SCALAR, "stop_reason": _SCALAR,
    "logprobs": {"content": _TOKENS, "refusal": _TOKENS}, "token_ids": _NUMBERS,
}  # fmt: skip
_BLOCK = {"type": _SCALAR, "text": _ANY, "thinking": _ANY, "signature": _ANY, "data": _ANY}
_ANSWER = {
    "id": _SCALAR, "object": _SCALAR, "created": _NUMBERS, "model": _SCALAR, "choices": [_CHOICE],
    "usage": {"service_tier": _SCALAR, _REST: _NUMBERS}, "service_tier": _SCALAR, "system_fingerprint": _SCALAR,
    "type": _SCALAR, "role": _SCALAR, "content": [_BLOCK], "stop_reason": _SCALAR, "stop_sequence": _SCALAR,
    "stop_details": {"type": _SCALAR, "category": _SCALAR, "explanation": _ANY},
}  # fmt: skip
MODEL_TEXT = ("choices", "content", "stop_details")
"""Fields of an answer with text that a model wrote."""


def select_known_fields(answer: Mapping[str, object]) -> tuple[dict[str, object], int]:
    """Return an answer with only the fields of the format, and the number of other fields that were removed."""
    selected = _select_members(answer, _ANSWER)
    if selected == answer:
        return selected, 0
    return selected, max(_count_fields(answer) - _count_fields(selected), 1)  # a removed list item is not a field


def _select(value: Any, allowed: Any) -> Any:
    """Return the allowed part of a value, or `_REMOVED`."""
    if allowed is _ANY or _is_empty(value):
        return value
    if allowed is _REMOVED:
        return _REMOVED
    if isinstance(allowed, dict):
        return _select_members(value, allowed) if isinstance(value, Mapping) else _REMOVED
    if isinstance(allowed, list):
        return _select_items(value, allowed[0]) if isinstance(value, list) else _REMOVED
    if allowed is _NUMBERS:
        return _select_numbers(value)
    return _REMOVED if isinstance(value, (dict, list)) else value


def _select_members(value: Mapping[str, object], allowed: Mapping[str, object]) -> dict[str, object]:
    selected = {name: _select(item, allowed.get(name, allowed.get(_REST, _REMOVED))) for name, item in value.items()}
    return {name: item for name, item in selected.items() if item is not _REMOVED}


def _select_items(items: list[Any], allowed: Any) -> list[Any]:
    selected = [_select(item, allowed) for item in items]
    return [{} if item is _REMOVED else item for item in selected]


def _select_numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _select_members(value, dict.fromkeys(value, _NUMBERS))
    if isinstance(value, list):
        return _REMOVED if any(isinstance(item, (str, dict, list)) for item in value) else value
    return _REMOVED if isinstance(value, str) else value


def _is_empty(value: Any) -> bool:
    return value is None or isinstance(value, bool) or value in ("", [], {})


def _count_fields(value: Any) -> int:
    """Count the fields at any depth."""
    if isinstance(value, Mapping):
        return len(value) + sum(map(_count_fields, value.values()))
    return sum(map(_count_fields, value)) if isinstance(value, list) else 0
