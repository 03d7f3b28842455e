"""Where releases are written before they are moved to their places, and what killed publishers have left there."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from runner.base.storage.safe_files import remove_folder

INCOMING = ".incoming"
"""Nobody reads there."""

ABANDONED = 24 * 3600.0
"""Seconds in which nothing was written to it, after which a folder there is nobody's."""

_NAME = re.compile(r"[0-9a-f]{16}(\.old)?")


def remove_abandoned(incoming: Path, *, now: float, named: re.Pattern[str] = _NAME) -> None:
    """Remove what was begun and not ended, of these names. `now` is the time by the clock that stamps the files, in
    seconds.

    A folder is renamed before anything in it is removed: should its publisher go on after all, as one that was
    suspended for a day, its own rename fails, and nothing half is seen. What cannot be removed is left to its owner.
    """
    with suppress(OSError):
        for name in os.listdir(incoming):  # noqa: PTH208 - names are all that is needed
            folder = incoming / name
            if named.fullmatch(name) and not _is_written(folder, now - ABANDONED):
                with suppress(OSError):
                    gone = folder if folder.suffix == ".old" else folder.rename(folder.with_suffix(".old"))
                    remove_folder(gone)


def _is_written(folder: Path, since: float) -> bool:
    """Whether anything below a folder was written since then, as far as that can be seen; what is no folder is."""
    try:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_mtime >= since:
            return True
        paths = (os.path.join(place, name) for place, *inside in os.walk(folder) for names in inside for name in names)  # noqa: PTH118 - of many
        return any(os.lstat(path).st_mtime >= since for path in paths)
    except OSError:
        return True
