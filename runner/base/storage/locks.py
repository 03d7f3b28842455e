"""File locks that name their holder, and that the system releases when the holder's process ends."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.base.errors import RunDirectoryError, RunError, os_errors_as
from runner.base.storage.safe_files import make_folders, open_own, read_bounded

MAX_HOLDER = 64 << 10
"""Maximum number of bytes that are read from a lock file."""


@contextmanager
def locked(path: Path, subject: str, wait_seconds: float = 0.0, advice: str = "") -> Iterator[None]:
    """Hold an exclusive lock on a file while the `with` block runs. The file remains after the lock is released.

    The file names the process that holds the lock. The message to other processes begins with `subject`, the name of
    the locked object, and ends with `advice`.

    Raises:
        RunDirectoryError: another process still holds the lock after `wait_seconds`; the message names the process.
        RunError: the file cannot be opened.
    """
    advice_if_closed = ". Check the permissions of its folder, or choose another folder (for results: --results DIR)"
    with os_errors_as(RunError, f"cannot open {path}", advice_if_closed):
        make_folders(path.parent)
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
    _acquire(descriptor, path, subject, wait_seconds, advice)
    try:
        holder = {"pid": os.getpid(), "host": os.uname().nodename, "command": Path(sys.argv[0]).name or "python"}
        with suppress(OSError):  # the lock is valid without its holder's name, which a full disk may not accept
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, subject: str, wait_seconds: float, advice: str) -> None:
    """Acquire the lock, or close the descriptor and raise an error that names the process with the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            os.close(descriptor)
            raise RunError(f"cannot lock {path}: {error.strerror}") from error
        # `nip-run runs` takes the lock for an instant to see whether a run is played, so wait at least a moment.
        if _KernelQueue(descriptor).wait(max(wait_seconds, 0.2)):
            return
        raise RunDirectoryError(f"{subject} is in use by {_holder(path)}{advice}") from error


class _KernelQueue:
    """Waits for a lock in the kernel's queue, which is fair, unlike polling."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._guard = threading.Lock()
        self._state = "waiting"
        self._done = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Return whether the lock was acquired in time. If not, the descriptor is closed when the kernel returns."""
        if seconds > 0:
            threading.Thread(target=self._take, daemon=True).start()
            self._done.wait(seconds)
        with self._guard:
            if self._state == "acquired":
                return True
            self._state = "abandoned"
        if seconds <= 0:
            os.close(self._descriptor)
        return False

    def _take(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        with self._guard:
            if self._state == "abandoned":
                os.close(self._descriptor)
                return
            self._state = "acquired"
        self._done.set()


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock at `path`."""
    try:
        descriptor = open_own(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _holder(path: Path) -> str:
    """Return a description of the process that holds the lock."""
    try:
        holder = json.loads(read_bounded(path, MAX_HOLDER))
        return f"process {holder['pid']} on {holder['host']} ({holder['command']})"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"
