"""Restricts a server's folder to the server's user, because the folder contains labels and private releases."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.base.errors import RunError, os_errors_as
from runner.base.storage.safe_files import make_folders

_OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO


@contextmanager
def restrict_access(folder: Path) -> Iterator[None]:
    """Create a server's folder, and deny other users access to its files and to files that the `with` block creates.

    Raises:
        RunError: the folder cannot be created or read.
    """
    previous_umask = os.umask(_OTHER_USERS)
    try:
        with os_errors_as(RunError, f"cannot write to the server's folder {folder}", "; check its permissions"):
            _remove_permissions(folder)
        yield
    finally:
        os.umask(previous_umask)


def _remove_permissions(folder: Path) -> None:
    make_folders(folder)
    root = folder.resolve()
    for path in (root, *root.iterdir()):
        # A mounted volume that belongs to another user keeps its permissions. A running server may remove a file
        # between the listing and this check.
        with suppress(PermissionError, FileNotFoundError):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & _OTHER_USERS:
                path.chmod(stat.S_IMODE(mode) & ~_OTHER_USERS)
