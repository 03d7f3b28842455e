"""A path as somebody writes it into the one by which locks, caches and links know the place."""

from __future__ import annotations

from pathlib import Path

from runner.errors import UsageError


def local_path(text: str) -> Path:
    """A whole path without `.`, `..`, `~` and doubled slashes, to where the system would go by what is written.

    A link keeps its own name, since it may lead elsewhere tomorrow; only one that a `..` stands behind is followed.

    Raises:
        UsageError: there is no such user's home.
    """
    try:
        whole = Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(f"{text}: {str(error)[:1].lower()}{str(error)[1:]}") from error
    found = Path("/")
    for part in whole.parts[1:]:
        if part != "..":
            found /= part
        else:
            found = (found.resolve() if found.is_symlink() else found).parent
    return found
