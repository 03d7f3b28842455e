"""Paths of the files in a release: what they may be, so that they mean the same file on every disk, and one inside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from runner.base.text import comma_join, shortened
from runner.documents.releases.reference import RESERVED

MAX_SEGMENTS = 8
MAX_PATH = 240
MAX_SEGMENT = 100

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")

_FORM = (
    "each part of a path is 1 to 100 of a-z, A-Z, 0-9, '.', '_' and '-', begins with none of '.-', and does not end "
    "with '.'"
)

OURS = frozenset(("release.json", "release.sha256", "yanked", "signature"))
"""What stands beside the files of a release in a registry: no file of one may be called so."""

CODE = frozenset(
    (".py", ".pyc", ".pyd", ".pyo", ".pth", ".so", ".dylib", ".dll", ".exe", ".com", ".bat", ".cmd", ".ps1", ".sh")
)
"""What a system or a Python that happens to stand in the folder would run: a release is data, and has no code."""


def wrong_path(path: str) -> str | None:
    """Why a path can be no file's of a release; None where it can."""
    segments = path.split("/")
    if len(path) > MAX_PATH or len(segments) > MAX_SEGMENTS:
        return f"a path is at most {MAX_PATH} characters in {MAX_SEGMENTS} parts"
    for segment in segments:
        if not _SEGMENT.fullmatch(segment) or segment.endswith("."):
            return _FORM
        if segment.lower().partition(".")[0] in RESERVED:
            return f"{segment!r} is a reserved word"
    if (suffix := PurePosixPath(path).suffix.lower()) in CODE:
        return f"a release is data, and has no {suffix}; none of {comma_join(sorted(CODE))} is taken"
    return f"{segments[0]!r} is a name of the registry's own" if segments[0].lower() in OURS else None


def wrong_together(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Paths that cannot stand beside those before them, each with why: twice, by case alone, a file as a folder."""
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    for path in paths:
        low = path.lower()
        parents = [low[:at] for at, sign in enumerate(low) if sign == "/"]
        if low in files:
            yield (
                path,
                "it stands there twice"
                if files[low] == path
                else f"it differs from {shortened(files[low])!r} by case alone",
            )
        elif low in folders or any(parent in files for parent in parents):
            yield path, "a file stands where a folder belongs"
        elif spelled := next((folders[p] for p in parents if folders.get(p, path[: len(p)]) != path[: len(p)]), None):
            yield path, f"its folder differs from {shortened(spelled)!r} by case alone"
        files.setdefault(low, path)
        folders.update({parent: path[: len(parent)] for parent in parents if parent not in folders})
