"""The folder `.incoming`, where `FolderTransport` writes a release before it moves the release into place.

The server uses the same code for uploads. Interrupted writes leave folders behind, which `remove_abandoned` deletes.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from runner.base.storage.safe_files import remove_folder

INCOMING = ".incoming"
"""The name of the folder, which readers ignore."""

ABANDONED = 24 * 3600.0
"""Seconds without a write after which a folder counts as abandoned."""

_NAME = re.compile(r"[0-9a-f]{16}(\.old)?")


def remove_abandoned(incoming: Path, *, now: float, pattern: re.Pattern[str] = _NAME) -> None:
    """Remove abandoned folders whose name matches `pattern`; `now` is the time in seconds by the file system's clock.

    A folder is renamed before its files are removed. If the publisher then continues (its machine may have been
    suspended for a day), it cannot move the folder into place, so readers never see an incomplete release. Folders that
    this user may not remove stay.
    """
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(incoming)  # noqa: PTH208 - only names are needed
    for folder in (incoming / name for name in names if pattern.fullmatch(name)):
        with suppress(OSError):
            if not _was_written_since(folder, now - ABANDONED):
                renamed = folder if folder.suffix == ".old" else folder.rename(folder.with_suffix(".old"))
                remove_folder(renamed)


def _was_written_since(folder: Path, since: float) -> bool:
    """Return whether anything in a folder was written since that time; True if unknown or if it is not a folder."""
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_mtime >= since:
            return True
        return any(
            os.lstat(os.path.join(parent, name)).st_mtime >= since  # noqa: PTH118 - faster
            for parent, folders, files in os.walk(folder)
            for name in (*folders, *files)
        )
    except OSError:
        return True
