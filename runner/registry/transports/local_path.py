"""Normalize a path that a user wrote, so that locks, caches and links always use the same name for a folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from runner.base.errors import UsageError


def local_path(text: str) -> Path:
    """Return the absolute path without `.`, `..`, `~` and doubled slashes that leads to the same file.

    A symbolic link keeps its own name, because it may be changed later; only a link before a `..` is followed.

    Raises:
        UsageError: the user after `~` has no home folder, or a link before a `..` is circular or cannot be read.
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
        raise UsageError(f"cannot resolve the path {text}: {path}: {error.strerror}") from error
    return path


def _follow_link(path: Path) -> Path:
    if not path.is_symlink():
        return path
    with suppress(FileNotFoundError):  # its target does not exist yet
        path.stat()  # the errors of `resolve` for circular links differ between versions of Python
    return path.resolve()
