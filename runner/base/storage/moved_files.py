"""Detects that an open file was deleted, moved or replaced by another, and saves its records.

A run writes to its log for hours. If the log is deleted meanwhile, its content is lost when the process ends. As long
as the process has the log open, the content can be read, so it is copied to another folder. The error message names
the copy.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from runner.base.errors import FolderGoneError
from runner.base.storage.safe_files import create_only, is_still_at
from runner.base.text import path_argument

_PIECE_BYTES = 1 << 20
_HIDDEN_PREFIXES = (".nfs", ".fuse_hidden")
"""Prefixes of the names that NFS and FUSE give to a deleted file while it is open."""


def check_not_moved(path: Path, descriptor: int, *, rescue: bool) -> None:
    """Check that an open file is still at its path. If the file was deleted and `rescue` is true, copy its content.

    Raises:
        FolderGoneError: the file is not at its path; the message names the file or copy that has the records.
    """
    if is_still_at(path, descriptor):
        return
    now = _current_path(descriptor)
    if now is not None:
        raise FolderGoneError(
            f"the run stopped because {path} was moved to {now}, where the file is complete; resume the run there, "
            "or move the file back",
            now,
        )
    problem = f"the run stopped because {path} was deleted"
    if not rescue:
        raise FolderGoneError(f"{problem}; run the same command again, which replaces the lost records at no cost")
    copy = _copy_to_first_folder(path, descriptor)
    if copy is None:
        raise FolderGoneError(
            f"{problem}; its records are lost, because no folder accepted a copy; run the same command again to "
            "replace them"
        )
    move = f"{shlex.quote(path_argument(copy))} {shlex.quote(path_argument(path))}"
    if path.exists():
        how = f"another file is at its path now; move that away, then: mv {move}"
    else:
        how = f"to resume with them: mkdir -p {shlex.quote(path_argument(path.parent))} && mv {move}"
    raise FolderGoneError(f"{problem}; all its records were saved in {copy}; {how}, and run the same command again")


def _current_path(descriptor: int) -> Path | None:
    """Return the current path of an open file, or None if the system does not report it."""
    with suppress(OSError):
        now = Path(f"/proc/self/fd/{descriptor}").readlink()
        if is_still_at(now, descriptor) and not now.name.startswith(_HIDDEN_PREFIXES):
            return now
    return None


def _copy_to_first_folder(path: Path, descriptor: int) -> Path | None:
    """Copy an open file to the first folder that accepts a copy. Return the copy, or None if no folder accepts one."""
    for folder in _rescue_folders(path):
        for number in range(1, 100):
            copy = folder / f"{path.parent.name}.{path.stem}.rescued{'' if number == 1 else f'.{number}'}{path.suffix}"
            try:
                _copy(descriptor, copy)
            except FileExistsError:
                continue
            except OSError:
                break
            return copy
    return None


def _rescue_folders(path: Path) -> Iterator[Path]:
    """Yield the nearest existing folder above the run's, the current folder, and the folder for temporary files."""
    folder = path.parent.absolute().parent
    while not folder.is_dir():
        folder = folder.parent
    yield folder
    with suppress(OSError):  # the current folder may be deleted, too
        yield Path.cwd()
    yield Path(tempfile.gettempdir())


def _copy(descriptor: int, copy: Path) -> None:
    """Copy a file completely and flush it to disk, or leave no copy."""
    target = create_only(copy, os.O_WRONLY)
    try:
        with os.fdopen(target, "wb") as file:
            offset = 0
            while piece := os.pread(descriptor, _PIECE_BYTES, offset):
                file.write(piece)
                offset += len(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        copy.unlink(missing_ok=True)
        raise
