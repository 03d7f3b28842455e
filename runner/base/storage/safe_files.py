"""Files opened so that what was planted in their place leads nowhere.

What we write is new, or a regular file of its own: no link is followed, and no FIFO or device is opened. What others
wrote is read through links, as they like to lay out their folders, but only from regular files, and up to a bound.

Nothing else in `runner/` opens a file to write to it, or makes a folder inside one of ours (a test holds this). The
errors are `OSError`, whose `strerror` says in plain words what stands there.
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
    """A new file to write to; what a killed process left under its name is removed, and never written through.

    Raises:
        OSError: it cannot be made, or something else than a file stands there and cannot be removed.
    """
    path.unlink(missing_ok=True)
    return os.fdopen(create_only(path, os.O_WRONLY), "wb", buffering=1 << 16)


def create_only(path: Path, flags: int) -> int:
    """The descriptor of a file that must not be there yet, not even as a link.

    Raises:
        OSError: it is there, or cannot be made.
    """
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def open_own(path: Path, flags: int) -> int:
    """The descriptor of a file of ours, which is no link; with `O_CREAT` it is made if it is not there.

    Raises:
        OSError: it cannot be opened, or is a link or no regular file.
    """
    with suppress(FileNotFoundError):
        _check_own(os.lstat(path), path)
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    return _checked(descriptor, path)


def append_to(path: Path) -> IO[bytes]:
    """A file of ours to append to, unbuffered, made if it is not there.

    Raises:
        OSError: see `open_own`.
    """
    return os.fdopen(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0)


def make_folders(path: Path) -> None:
    """A folder of the user's own and those above it, which may be links.

    Raises:
        OSError: they cannot be made.
    """
    path.mkdir(parents=True, exist_ok=True)


def make_folder(path: Path) -> None:
    """A folder inside one of ours, made if it is not there; a link to a folder is not one.

    Raises:
        OSError: it cannot be made, or something else stands there.
    """
    with suppress(FileExistsError):
        path.mkdir()
    found = os.lstat(path).st_mode
    if not stat.S_ISDIR(found):
        what = "a link" if stat.S_ISLNK(found) else "a file"
        raise OSError(errno.ENOTDIR, f"{what} stands where a folder of ours belongs; remove it", str(path))


def same_file(path: Path, name: Path) -> bool:
    """Give a file a second name; False where its disk has no such names, or is another one."""
    with suppress(OSError):
        os.link(path, name)
        return True
    return False


def link_to(path: Path, target: Path) -> None:
    """A link in a folder of our own that nobody else writes to, to a file that is only read by it.

    Raises:
        OSError: it cannot be made, or something stands there.
    """
    path.symlink_to(target)


def remove_folder(path: Path) -> None:
    """Remove a folder of ours with all that is in it, if it is there; no link in it is followed.

    Raises:
        OSError: it cannot be removed, or is a link.
    """
    try:
        found = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found):
        raise OSError(errno.ENOTDIR, "not a folder of ours; remove it", str(path))
    shutil.rmtree(path)


def is_there(path: Path, descriptor: int) -> bool:
    """Whether a path still leads to an open file; where that cannot be asked, it is believed to."""
    try:
        found = os.lstat(path)
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)
    return os.path.samestat(found, os.fstat(descriptor))


def open_to_read(path: Path) -> IO[bytes]:
    """A regular file to read, wherever it is linked from.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    _check_regular(path.stat(), path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(_checked(descriptor, path), "rb")


def open_below(root: Path, names: Sequence[str]) -> IO[bytes]:
    """A regular file to read by the names of the folders below `root` that lead to it.

    None of them may be a link, not even one that is put there while it is opened; `root` may be one.

    Raises:
        OSError: it cannot be opened, is no regular file, or a link leads to it.
    """
    folder, place = os.open(root, _FOLDER), root
    try:
        for name in names[:-1]:
            place = place / name
            try:
                inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            except OSError:
                _check_own(os.stat(name, dir_fd=folder, follow_symlinks=False), place, stat.S_IFDIR)
                raise
            os.close(folder)
            folder = inner
        place = place / names[-1]
        _check_own(os.stat(names[-1], dir_fd=folder, follow_symlinks=False), place)
        descriptor = os.open(names[-1], os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        return os.fdopen(_checked(descriptor, place), "rb")
    finally:
        os.close(folder)


def read_bounded(path: Path, most: int) -> bytes:
    """The content of a regular file of at most so many bytes.

    Raises:
        OSError: it cannot be read, is no regular file (a device has no end, a FIFO waits for one), or is larger.
    """
    with open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        # A read has a buffer as large as what is asked for, and most files are far smaller than their bound.
        data = file.read(min(size, most) + 1)
        while len(data) <= most and (more := file.read(1 << 16)):  # one that grows, or says no size as those of /proc
            data += more
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most >> 10:,} KiB", str(path))
    return data


def _checked(descriptor: int, path: Path) -> int:
    """The descriptor of a regular file; that of anything else is closed."""
    try:
        _check_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_own(found: os.stat_result, path: Path, kind: int = stat.S_IFREG) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, "a link stands there, and is not followed; remove it", str(path))
    if stat.S_IFMT(found.st_mode) != kind:
        _check_regular(found, path)


def _check_regular(found: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
