"""Functions that open files safely: they reject a link, FIFO or device that somebody planted in place of a file.

nip-run writes only to new files, or to regular files that it created. For reading, a path of the user may lead through
links, but only to a regular file.

No other module in `runner/` opens a file for writing, or creates a folder inside a folder of nip-run (a test checks
this). The functions raise `OSError` with a `strerror` that describes the obstacle in plain words.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def create(path: Path) -> IO[bytes]:
    """Open a new file for writing. An existing file, such as one of a killed process, is removed first.

    Raises:
        OSError: the file cannot be created, or something with its name cannot be removed.
    """
    path.unlink(missing_ok=True)
    return os.fdopen(create_only(path, os.O_WRONLY), "wb", buffering=1 << 16)


def create_only(path: Path, flags: int) -> int:
    """Create a file that must not exist yet, not even as a link, and return its descriptor.

    Raises:
        OSError: the file exists, or cannot be created.
    """
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def open_own(path: Path, flags: int) -> int:
    """Open a regular file of nip-run and return its descriptor. `O_CREAT` creates a missing file.

    Raises:
        OSError: the file cannot be opened, or is a link or not a regular file.
    """
    with suppress(FileNotFoundError):
        _check_own(os.lstat(path), path)
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    return _require_regular(descriptor, path)


def append_to(path: Path) -> IO[bytes]:
    """Open a regular file of nip-run for appending, unbuffered; create a missing file.

    Raises:
        OSError: as for `open_own`.
    """
    return os.fdopen(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0)


def make_folders(path: Path) -> None:
    """Create a folder that the user chose, and its parents. Existing folders may be links.

    Raises:
        OSError: a folder cannot be created.
    """
    path.mkdir(parents=True, exist_ok=True)


def make_folder(path: Path) -> None:
    """Create a folder inside a folder of nip-run, if it does not exist. A link to a folder is refused.

    Raises:
        OSError: the folder cannot be created, or something else has its name.
    """
    with suppress(FileExistsError):
        path.mkdir()
    mode = os.lstat(path).st_mode
    if not stat.S_ISDIR(mode):
        obstacle = "a link" if stat.S_ISLNK(mode) else "a file"
        raise OSError(errno.ENOTDIR, f"nip-run needs a folder here, but finds {obstacle}; remove that", str(path))


def hard_link(path: Path, name: Path) -> bool:
    """Hard-link a file to a second name. Return False if the file systems of the two do not support it."""
    with suppress(OSError):
        os.link(path, name)
        return True
    return False


def link_to(path: Path, target: Path) -> None:
    """Create a symbolic link `path` to `target`, a file that is only read, in a folder that only this process changes.

    Raises:
        OSError: the link cannot be created, or something has its name.
    """
    path.symlink_to(target)


def remove_folder(path: Path) -> None:
    """Remove a folder of nip-run and its contents, if it exists. Links in it are not followed.

    Raises:
        OSError: the folder cannot be removed, or something else has its name.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        raise OSError(errno.ENOTDIR, "nip-run needs a folder here, but finds something else; remove that", str(path))
    shutil.rmtree(path)


def is_still_at(path: Path, descriptor: int) -> bool:
    """Return whether a path still leads to the open file `descriptor`. If the file system cannot tell, return True."""
    try:
        status = os.lstat(path)
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)
    return os.path.samestat(status, os.fstat(descriptor))


def open_to_read(path: Path) -> IO[bytes]:
    """Open a regular file for reading; the path may lead through links.

    Raises:
        OSError: the file cannot be opened, or is not a regular file.
    """
    _check_regular(path.stat(), path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(_require_regular(descriptor, path), "rb")


def open_below(root: Path, names: Sequence[str]) -> IO[bytes]:
    """Open a regular file for reading. `names` has the folders from `root` to the file, and the file's name.

    `root` may be a link. No other part of the path may be a link, even if somebody replaces a folder during the call.

    Raises:
        OSError: the file cannot be opened, is not a regular file, or a link leads to it.
    """
    folder, path = os.open(root, _FOLDER), root
    try:
        for name in names[:-1]:
            path = path / name
            try:
                inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            except OSError:
                _check_own(os.stat(name, dir_fd=folder, follow_symlinks=False), path, stat.S_IFDIR)
                raise
            os.close(folder)
            folder = inner
        path = path / names[-1]
        _check_own(os.stat(names[-1], dir_fd=folder, follow_symlinks=False), path)
        descriptor = os.open(names[-1], os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        return os.fdopen(_require_regular(descriptor, path), "rb")
    finally:
        os.close(folder)


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes` bytes.

    Raises:
        OSError: the file cannot be read, is larger, or is not a regular file (a device never ends, a FIFO may block).
    """
    with open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        # A read allocates a buffer of the requested size, and most files are far smaller than the maximum.
        data = file.read(min(size, max_bytes) + 1)
        while len(data) <= max_bytes and (
            more := file.read(1 << 16)
        ):  # The file grew, or reports no size, as in /proc.
            data += more
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes >> 10:,} KiB", str(path))
    return data


def _require_regular(descriptor: int, path: Path) -> int:
    """Return the descriptor if it is of a regular file; otherwise close it and raise `OSError`."""
    try:
        _check_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_own(status: os.stat_result, path: Path, kind: int = stat.S_IFREG) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "this is a link, which nip-run does not follow here; remove it", str(path))
    if stat.S_IFMT(status.st_mode) != kind:
        _check_regular(status, path)


def _check_regular(status: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
