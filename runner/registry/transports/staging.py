"""The folder where releases are written before they are moved into place, and the removal of abandoned ones."""

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

    A folder is renamed before its files are removed. If its publisher continues after all, for example on a machine
    that was suspended for a day, the publisher's own rename fails, and readers never see half a release. Folders that
    this user may not remove stay.
    """
    with suppress(OSError):
        for name in os.listdir(incoming):  # noqa: PTH208 - only names are needed
            folder = incoming / name
            if pattern.fullmatch(name) and not _is_written(folder, now - ABANDONED):
                with suppress(OSError):
                    renamed = folder if folder.suffix == ".old" else folder.rename(folder.with_suffix(".old"))
                    remove_folder(renamed)


def _is_written(folder: Path, since: float) -> bool:
    """Return whether anything in a folder was written after `since`; also True for a file, or if that is unknown."""
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_mtime >= since:
            return True
        paths = (os.path.join(parent, name) for parent, *lists in os.walk(folder) for names in lists for name in names)  # noqa: PTH118 - faster
        return any(os.lstat(path).st_mtime >= since for path in paths)
    except OSError:
        return True
