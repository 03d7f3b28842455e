"""Work on what strangers sent, in a process of its own with bounded time and memory; its answer is JSON."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import orjson

from runner.errors import NipRunError, ReleaseError, RunError
from runner.registry.left_out import in_words
from runner.server.settings import Settings
from runner.storage.atomic import atomic_write
from runner.storage.files import make_folders, read_bounded, remove_folder
from runner.storage.queries import kept_connections

Work = Callable[..., dict[str, Any]]
MOST = 256 << 20
_RESULT, _PREFIX = "result.json", "work-"
_THE_SERVERS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE)
_NO_MEMORY = 77
"""How a process ends that is given no more memory."""


PRELOADED = (
    "runner.server.intake.checking", "runner.server.boards.worker", "runner.pages.run_page", "duckdb", "scipy.special"
)  # fmt: skip
"""What processes of a server begin with: a check, a board, a page; and what they would load each for itself."""


def context() -> ForkServerContext:
    """Processes that begin with all that a check imports, and with nothing that a server has open."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload([*PRELOADED])
    return made


class ApartError(RunError):
    """The server could not do it, for no reason of what was asked; it may, later."""


def run_apart(settings: Settings, work: Work, *args: Any) -> dict[str, Any]:
    """What `work(settings, folder, *args)` answers; the folder is its own, and gone afterwards.

    Raises:
        ReleaseError: it cannot be done, or takes more time or memory than the server gives.
        ApartError: the process ended otherwise, as where the disk is full or the server ends.
    """
    try:
        make_folders(settings.incoming)
        with TemporaryDirectory(prefix=_PREFIX, dir=settings.incoming, ignore_cleanup_errors=True) as place:
            said = _said_apart(settings, Path(place), work, args)
    except (OSError, EOFError) as error:
        raise ApartError(f"no process can be begun for it: {error}") from error
    if "error" in said:
        raise ReleaseError(said["error"])
    found: dict[str, Any] = said["answer"]
    return found


def _said_apart(settings: Settings, place: Path, work: Work, args: tuple[Any, ...]) -> dict[str, Any]:
    process = context().Process(target=_run, args=(settings, place, work, args), daemon=True)
    process.start()
    process.join(settings.check_seconds)
    if process.is_alive():
        process.kill()
        process.join()
        raise ReleaseError("it takes longer than this server gives it")
    if process.exitcode == -signal.SIGXCPU:
        raise ReleaseError("it takes longer than this server gives it")
    if process.exitcode == _NO_MEMORY:
        raise ReleaseError(f"it takes more than {settings.check_bytes >> 20:,} MiB of memory")
    if process.exitcode != 0:
        raise ApartError(f"the process that did it ended with {process.exitcode}")
    try:
        said: dict[str, Any] = orjson.loads(read_bounded(place / _RESULT, MOST))
    except (ReleaseError, ValueError) as error:
        raise ApartError(f"what came of it cannot be read: {error}") from error
    return said


def clear(settings: Settings) -> None:
    """Remove what a server that was killed left of such work."""
    for left in settings.incoming.glob(f"{_PREFIX}*"):
        remove_folder(left)


def _run(settings: Settings, place: Path, work: Work, args: tuple[Any, ...]) -> None:
    os.nice(10)
    seconds = int(settings.check_seconds)
    resource.setrlimit(resource.RLIMIT_AS, (settings.check_bytes, settings.check_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Thread(target=end_with_server, daemon=True).start()
    tempfile.tempdir = str(place)
    try:
        with kept_connections():
            said: dict[str, Any] = {"answer": work(settings, place, *args)}
    except MemoryError:
        os._exit(_NO_MEMORY)
    except NipRunError as error:
        if is_the_servers(error):
            raise
        said = {"error": in_words(error)}
    atomic_write(place / _RESULT, orjson.dumps(said))


def is_the_servers(error: BaseException | None) -> bool:
    """Whether a full or broken disk, or too many open files, is behind an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _THE_SERVERS:
            return True
        error = error.__cause__ or error.__context__
    return False


def end_with_server() -> None:
    """Wait for the server to end, however it does, and end then."""
    server = multiprocessing.parent_process()
    assert server is not None
    server.join()
    os._exit(1)
