"""A path as somebody writes it into the one by which locks, caches and links know the place."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from runner.base.errors import UsageError


def local_path(text: str) -> Path:
    """A whole path without `.`, `..`, `~` and doubled slashes, to where the system would go by what is written.

    A link keeps its own name, since it may lead elsewhere tomorrow; only one that a `..` stands behind is followed.

    Raises:
        UsageError: there is no such user's home, or a link that is followed leads round or nowhere that can be read.
    """
    try:
        whole = Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(f"{text}: {str(error)[:1].lower()}{str(error)[1:]}") from error
    found = Path("/")
    try:
        for part in whole.parts[1:]:
            found = found / part if part != ".." else _followed(found).parent
    except OSError as error:
        raise UsageError(f"{text} cannot be followed: {found}: {error.strerror}") from error
    return found


def _followed(path: Path) -> Path:
    if not path.is_symlink():
        return path
    with suppress(FileNotFoundError):  # to where nothing is yet
        path.stat()  # says of links that lead round what `resolve` says otherwise in each version of Python
    return path.resolve()
