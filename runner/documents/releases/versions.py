"""Versions in order: which of two is the newer one. Any words will do as versions, and any two have an order."""

from __future__ import annotations

import re

_PART = re.compile(r"[0-9]+|[a-z]+")
_LATER = frozenset(("post", "rev", "patch", "hotfix", "r"))
"""Words that come after the version that they stand behind; any other comes before it: 1.0rc1, 1.0, 1.0.post1."""

_BEFORE, _END, _AFTER, _NUMBER = range(-1, 3)

Key = tuple[tuple[tuple[int, int, str], ...], str]


def version_order(version: str) -> Key:
    """What versions are sorted by: 1.2 before 1.10, 1.0-rc2 before 1.0-rc10, both before 1.0, and that before 1.0-1.

    No two versions are equal: where their parts are, as those of 1.0 and 1.00, their letters decide.
    """
    release, dash, rest = version.removeprefix("v").partition("-")
    parts = [_part(part) for part in _PART.findall(release)]
    behind = [_part(part) for part in _PART.findall(rest)]
    if dash and behind and behind[0][0] == _NUMBER:  # a number behind a dash is a revision
        parts.append((_AFTER, 0, ""))
    return (*parts, *behind, (_END, 0, "")), version


def _part(part: str) -> tuple[int, int, str]:
    if part.isdigit():
        return _NUMBER, int(part), ""
    if part == "dev":
        return _BEFORE, -1, part
    return _AFTER if part in _LATER else _BEFORE, 0, part
