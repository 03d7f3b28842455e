"""A file that is written for hours may be deleted, moved or replaced meanwhile: found out, and its records saved.

What is written to a file that has no name any more is gone with the process. While the file is open it can still be
read, so what was deleted is copied to a place that is said.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from runner.base.errors import FolderGoneError
from runner.base.storage.safe_files import create_only, is_there

_PIECE = 1 << 20
_HIDDEN = (".nfs", ".fuse_hidden")
"""What NFS and FUSE rename a file to that is deleted while it is open; it is gone once it is closed."""


def check_there(path: Path, descriptor: int, *, rescue: bool) -> None:
    """See that an open file still stands at its path; `rescue` what it holds where it was deleted.

    Raises:
        FolderGoneError: it does not; the message says where its records are.
    """
    if is_there(path, descriptor):
        return
    now = _moved_to(descriptor)
    if now is not None:
        raise FolderGoneError(f"{path} was moved to {now} while the run went on, which stops; it is whole there", now)
    deleted = f"{path} was deleted while the run went on, which stops"
    if not rescue:
        raise FolderGoneError(f"{deleted}; what it held costs nothing to have again: run the same command again")
    copy = _rescued(path, descriptor)
    if copy is None:
        raise FolderGoneError(f"{deleted}; its records could not be saved anywhere, and are lost")
    back = f"{shlex.quote(str(copy))} {shlex.quote(str(path))}"
    if path.exists():
        how = f"another file is at its place now; move that away, then: mv {back}"
    else:
        how = f"to resume with them: mkdir -p {shlex.quote(str(path.parent))} && mv {back}"
    raise FolderGoneError(f"{deleted}; all its records were saved in {copy}; {how}, and run the same command again")


def _moved_to(descriptor: int) -> Path | None:
    """Where an open file is now, if the system tells."""
    with suppress(OSError):
        now = Path(f"/proc/self/fd/{descriptor}").readlink()
        if is_there(now, descriptor) and not now.name.startswith(_HIDDEN):
            return now
    return None


def _rescued(path: Path, descriptor: int) -> Path | None:
    """Copy an open file to the first place that takes it."""
    for folder in _places(path):
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


def _places(path: Path) -> Iterator[Path]:
    """The nearest folder above the run's that is still there, then those that every process has."""
    folder = path.parent.absolute().parent
    while not folder.is_dir():
        folder = folder.parent
    yield folder
    with suppress(OSError):  # the current folder may be gone, too
        yield Path.cwd()
    yield Path(tempfile.gettempdir())


def _copy(descriptor: int, copy: Path) -> None:
    """Copy a file, whole and on disk, or not at all."""
    target = create_only(copy, os.O_WRONLY)
    try:
        with os.fdopen(target, "wb") as file:
            at = 0
            while piece := os.pread(descriptor, _PIECE, at):
                file.write(piece)
                at += len(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        copy.unlink(missing_ok=True)
        raise
