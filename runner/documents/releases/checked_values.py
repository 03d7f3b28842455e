"""Check the type, form and size of values from untrusted JSON before they are used.

A failed check raises `TypeError` or `ValueError` with a short message, which the caller puts into its own error.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from runner.base.text import shortened

MAX_TEXT = 4_000
MAX_DEPTH = 24
MAX_NAMES = 1_000


def check_type(value: Any, *types: type) -> Any:
    """Return a value that has exactly one of these types; subclasses are refused, so `True` is not an `int`."""
    if type(value) not in types:
        raise TypeError(f"unexpected value {shortened(repr(value))}")
    return value


def check_text(value: Any, max_length: int = MAX_TEXT) -> str:
    checked: str = check_type(value, str)
    if len(checked) > max_length:
        raise ValueError(f"a text of {len(checked):,} characters; at most {max_length:,} are allowed")
    return checked


def check_text_or_null(value: Any) -> str | None:
    return None if value is None else check_text(value)


def check_pattern(pattern: re.Pattern[str], value: Any) -> str:
    if not pattern.fullmatch(check_type(value, str)):
        raise ValueError(f"{shortened(value)!r} is not of the form {pattern.pattern}")
    return str(value)


def check_fields(value: Any, cls: type) -> dict[str, Any]:
    """Return a copy of a mapping whose keys are exactly the fields of a dataclass."""
    names = {field.name for field in fields(cls)}
    if set(check_type(value, dict)) != names:
        differing = [shortened(name) for name in sorted(set(value) ^ names)[:5]]
        raise ValueError(f"missing or unknown keys: {', '.join(differing)}")
    return dict(value)


def check_names(value: Any) -> dict[str, object]:
    """Return a mapping with text keys; its values are not checked."""
    mapping: dict[str, Any] = check_type(value, dict)
    if len(mapping) > MAX_NAMES:
        raise ValueError(f"{len(mapping):,} names; at most {MAX_NAMES:,} are allowed")
    return {check_text(name, 200): value for name, value in mapping.items()}


def is_too_deep(value: Any) -> bool:
    """Return whether data is nested deeper than `MAX_DEPTH` levels, without recursion."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        inner = [container for container in level if isinstance(container, (dict, list))]
        level = [
            item for container in inner for item in (container.values() if isinstance(container, dict) else container)
        ]
        depth += 1
    return depth > MAX_DEPTH
