"""Normalize the path of a local registry, so that locks, caches and links always use the same name for a folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from runner.base.errors import UsageError


def local_path(text: str) -> Path:
    """Return an absolute path to the same file, without `.`, `..`, `~` and double slashes.

    Symbolic links stay in the path, because they may be changed later. Only links before a `..` are resolved.

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
        path.stat()  # raises OSError for a circular link; the exception of `resolve` depends on the Python version
    return path.resolve()
