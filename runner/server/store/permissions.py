"""File permissions of a server's folder, which has labels and private releases: only the server's user has access."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.base.errors import RunError
from runner.base.storage.safe_files import make_folders

_OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO


@contextmanager
def restrict_access(folder: Path) -> Iterator[None]:
    """Create a server's folder and deny access to other users, for existing files and for those created in the block.

    Raises:
        RunError: the folder cannot be created or read.
    """
    previous_umask = os.umask(_OTHER_USERS)
    try:
        try:
            _close(folder)
        except OSError as error:
            raise RunError(f"the server's folder {folder} cannot be written: {error.strerror}") from error
        yield
    finally:
        os.umask(previous_umask)


def _close(folder: Path) -> None:
    make_folders(folder)
    root = folder.resolve()
    for path in (root, *root.iterdir()):
        # A mounted volume may belong to another user, who then keeps its permissions. A running server may remove files
        # while this runs.
        with suppress(PermissionError, FileNotFoundError):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & _OTHER_USERS:
                path.chmod(stat.S_IMODE(mode) & ~_OTHER_USERS)
