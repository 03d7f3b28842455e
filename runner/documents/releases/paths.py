"""Rules for file paths in a release: a path must lead to the same file in the release on every file system.

Manifests, the registry and uploads check paths with it.
"""

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
    "each part of a path is 1 to 100 of a-z, A-Z, 0-9, '.', '_' and '-', does not begin with '.' or '-', and does not "
    "end with '.'"
)

REGISTRY_FILES = frozenset(("release.json", "release.sha256", "yanked", "signature"))
"""Names that a registry uses for its own files next to those of a release."""

CODE_SUFFIXES = frozenset(
    (".py", ".pyc", ".pyd", ".pyo", ".pth", ".so", ".dylib", ".dll", ".exe", ".com", ".bat", ".cmd", ".ps1", ".sh")
)
"""Suffixes of files that an operating system or Python would execute. A release may contain only data."""


def path_problem(path: str) -> str | None:
    """Return why a release may not have a file at this path, or None if it may."""
    segments = path.split("/")
    if len(path) > MAX_PATH or len(segments) > MAX_SEGMENTS:
        return f"a path is at most {MAX_PATH} characters in {MAX_SEGMENTS} parts"
    for segment in segments:
        if not _SEGMENT.fullmatch(segment) or segment.endswith("."):
            return _FORM
        if segment.lower().partition(".")[0] in RESERVED:
            return f"{segment!r} is a reserved name"
    if PurePosixPath(path).suffix.lower() in CODE_SUFFIXES:
        return f"a release is data and has no code; files may not end in {comma_join(sorted(CODE_SUFFIXES))}"
    return f"{segments[0]!r} is reserved for the registry" if segments[0].lower() in REGISTRY_FILES else None


def path_conflicts(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each path that conflicts with an earlier one, with the reason."""
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    for path in paths:
        lower = path.lower()
        parents = [lower[:at] for at, sign in enumerate(lower) if sign == "/"]
        if lower in files:
            yield (
                path,
                "the file is listed twice"
                if files[lower] == path
                else f"the path differs from {shortened(files[lower])!r} only in case",
            )
        elif lower in folders or any(parent in files for parent in parents):
            yield path, "the same path is a file and a folder"
        elif other_spelling := next(
            (folders[p] for p in parents if folders.get(p, path[: len(p)]) != path[: len(p)]), None
        ):
            yield path, f"the file's folder differs from {shortened(other_spelling)!r} only in case"
        files.setdefault(lower, path)
        folders.update({parent: path[: len(parent)] for parent in parents if parent not in folders})
