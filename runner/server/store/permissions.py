"""A server's files are for who runs it alone: its records have labels, and private releases."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.base.errors import RunError
from runner.base.storage.safe_files import make_folders

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@contextmanager
def closed_to_others(folder: Path) -> Iterator[None]:
    """Take from others what they may do in a server's folder, as an earlier nip-run left it, and with what is made now.

    Raises:
        RunError: it cannot be made, or read.
    """
    before = os.umask(_OTHERS)
    try:
        try:
            _close(folder)
        except OSError as error:
            raise RunError(f"the server's folder {folder} cannot be written: {error.strerror}") from error
        yield
    finally:
        os.umask(before)


def _close(folder: Path) -> None:
    make_folders(folder)
    own = folder.resolve()
    for path in (own, *own.iterdir()):
        # A folder that was given to the server, as a volume is, may be another's: what it makes there is not. And a
        # server that runs may have removed a file.
        with suppress(PermissionError, FileNotFoundError):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & _OTHERS:
                path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
