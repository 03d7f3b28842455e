"""Order versions from old to new. Any identifier is a valid version, and any two versions are ordered.

The registry's lists use this order.
"""

from __future__ import annotations

import re

_PART = re.compile(r"[0-9]+|[a-z]+")
_LATER_SUFFIXES = frozenset(("post", "rev", "patch", "hotfix", "r"))
"""Suffixes that sort after their version; all others sort before it: 1.0rc1, 1.0, 1.0.post1."""

_BEFORE, _END, _AFTER, _NUMBER = range(-1, 3)
"""Ranks of the next part of a version: a pre-release, no further part, a later suffix, a number."""

VersionKey = tuple[tuple[tuple[int, int, str], ...], str]


def version_order(version: str) -> VersionKey:
    """Return a sort key for versions, so that 1.2 < 1.10 and 1.0-rc2 < 1.0-rc10 < 1.0 < 1.0-1.

    No two versions have the same key: 1.0 and 1.00 are ordered by their text.
    """
    release, dash, suffix = version.removeprefix("v").partition("-")
    parts = [_rank_part(part) for part in _PART.findall(release)]
    suffix_parts = [_rank_part(part) for part in _PART.findall(suffix)]
    if dash and suffix_parts and suffix_parts[0][0] == _NUMBER:  # a number after a dash is a revision
        parts.append((_AFTER, 0, ""))
    return (*parts, *suffix_parts, (_END, 0, "")), version


def _rank_part(part: str) -> tuple[int, int, str]:
    if part.isdigit():
        return _NUMBER, int(part), ""
    if part == "dev":
        return _BEFORE, -1, part
    return _AFTER if part in _LATER_SUFFIXES else _BEFORE, 0, part
