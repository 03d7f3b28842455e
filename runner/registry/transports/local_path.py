"""Normalize a path that a user wrote, so that locks, caches and links always name a place alike."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from runner.base.errors import UsageError


def local_path(text: str) -> Path:
    """Return an absolute path without `.`, `..`, `~` and doubled slashes, which the system would resolve alike.

    A link keeps its own name, because it may lead elsewhere later; only a link before a `..` is followed.

    Raises:
        UsageError: there is no such user's home, or a link that has to be followed is circular or cannot be read.
    """
    try:
        absolute = Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(f"{text}: {str(error)[:1].lower()}{str(error)[1:]}") from error
    path = Path("/")
    try:
        for part in absolute.parts[1:]:
            path = path / part if part != ".." else _follow_link(path).parent
    except OSError as error:
        raise UsageError(f"{text} cannot be followed: {path}: {error.strerror}") from error
    return path


def _follow_link(path: Path) -> Path:
    if not path.is_symlink():
        return path
    with suppress(FileNotFoundError):  # its target does not exist yet
        path.stat()  # the errors of `resolve` for circular links differ between versions of Python
    return path.resolve()
