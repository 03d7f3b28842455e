"""Values of a stranger's JSON, each seen to be of its type, its form and its size before anything is made of it.

What is refused is told in words of a bounded length: `TypeError` or `ValueError`, which the caller turns into its own.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from runner.base.text import shortened

MAX_TEXT = 4_000
MAX_DEPTH = 24
MAX_NAMES = 1_000


def typed(value: Any, *types: type) -> Any:
    """A value of one of these types, and not of a type below them: true is no number."""
    if type(value) not in types:
        raise TypeError(f"{shortened(repr(value))} cannot stand where it stands")
    return value


def text(value: Any, most: int = MAX_TEXT) -> str:
    found: str = typed(value, str)
    if len(found) > most:
        raise ValueError(f"a text of {len(found):,} characters; at most {most:,} are taken")
    return found


def text_or_null(value: Any) -> str | None:
    return None if value is None else text(value)


def match(pattern: re.Pattern[str], value: Any) -> str:
    if not pattern.fullmatch(typed(value, str)):
        raise ValueError(f"{shortened(value)!r} is not of the form {pattern.pattern}")
    return str(value)


def only(said: Any, cls: type) -> dict[str, Any]:
    """A mapping with all keys of a class, and no others."""
    names = {one.name for one in fields(cls)}
    if set(typed(said, dict)) != names:
        others = [shortened(name) for name in sorted(set(said) ^ names)[:5]]
        raise ValueError(f"missing or unknown keys: {others}")
    return dict(said)


def named(said: Any) -> dict[str, Any]:
    """A mapping of names to anything."""
    known: dict[str, Any] = typed(said, dict)
    if len(known) > MAX_NAMES:
        raise ValueError(f"{len(known):,} names; at most {MAX_NAMES:,} are taken")
    return {text(name, 200): value for name, value in known.items()}


def too_deep(value: Any) -> bool:
    """Whether data is nested deeper than `MAX_DEPTH` levels; without a call for each level."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        inner = [one for one in level if isinstance(one, (dict, list))]
        level = [item for one in inner for item in (one.values() if isinstance(one, dict) else one)]
        depth += 1
    return depth > MAX_DEPTH
