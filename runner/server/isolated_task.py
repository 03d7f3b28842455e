"""Run work on strangers' data in a process of its own, with bounded time and memory; the result is JSON.

This is the only place where the server starts a process. `run_isolated` runs a piece of work and returns how it ended;
`run_bounded_check` returns its result or raises; `start_process` starts a process that goes on and receives commands.
"""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
import resource
import secrets
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any

import orjson

from runner.base.errors import NipRunError, ReleaseError, RunError
from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.duckdb_connections import kept_connections
from runner.base.storage.safe_files import make_folders, read_bounded, remove_folder
from runner.registry.skipped_releases import in_words, lacks_memory
from runner.server.settings import Settings
from runner.server.store.blobs import BlobsError

MOST = 256 << 20
"""Bytes of an answer."""
_RESULT, _PREFIX = "result.json", "work-"
_NO_MEMORY = 77
"""How a process ends that is given no more memory."""
_SPARE_SECONDS = 5
"""Of processor time, in which a process that has had all of its own may still say so."""
_THE_SERVERS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE)
_SAID = (*map(os.strerror, _THE_SERVERS), "database or disk is full", "disk I/O error")
"""How DuckDB and SQLite say the same."""

_ADDRESSES = 4
"""So many times its memory a process may reserve: DuckDB does so with 700 MiB, of which it takes none."""

PRELOADED = (
    "runner.server.single_thread", "runner.server.uploads.checking", "runner.server.boards.worker",
    "runner.pages.report.run_site",
    "runner.registry.transports.locations", "duckdb", "numpy", "scipy.special",
)  # fmt: skip
"""What processes of a server begin with, all in one thread: a check, a board, a page."""


@dataclass(frozen=True, kw_only=True)
class TaskLimits:
    """What a process may take."""

    memory: int
    """Bytes; see `resource.RLIMIT_DATA`."""
    seconds: float | None = None
    """Of wall time, and of processor time."""
    file_bytes: int | None = None
    """Of one file that it writes."""
    nice: int = 10

    @classmethod
    def of(cls, settings: Settings) -> TaskLimits:
        """Those of the check of one publish."""
        return cls(memory=settings.check_bytes, seconds=settings.check_seconds, file_bytes=settings.check_bytes)


class How(Enum):
    """How a piece of work ended."""

    ANSWERED = "it answered"
    TOO_LONG = "it took longer than it may"
    TOO_MUCH = "it asked for more memory than it may have"
    DIED = "it ended without an answer"


@dataclass(frozen=True)
class Ending:
    """How a piece of work ended, and what it answered where it did."""

    how: How
    answer: Any = None
    why: str = ""
    """Of a process that died: `ended with -9`."""


def run_isolated(bounds: TaskLimits, within: Path, work: Callable[..., Any], *args: Any, most: int = MOST) -> Ending:
    """Run `work(folder, *args)` and return how it ended; the folder, in `within`, is its own and is removed afterwards.

    Raises:
        OSError: no process can be started.
    """
    place = within.absolute() / f"{_PREFIX}{secrets.token_hex(8)}"
    make_folders(place)
    try:
        process = start_process(bounds, _answer, place, work, args)
        process.join(bounds.seconds)
        if process.is_alive():
            process.kill()
            process.join()
            return Ending(How.TOO_LONG)
        return _ending(process.exitcode, place / _RESULT, most)
    finally:
        remove_folder(place)


def _ending(code: int | None, result: Path, most: int) -> Ending:
    if code == 0:
        try:
            return Ending(How.ANSWERED, orjson.loads(read_bounded(result, most)))
        except (OSError, ValueError) as error:
            return Ending(How.DIED, why=f"left an answer that cannot be read: {error}")
    if code == -signal.SIGXCPU:
        return Ending(How.TOO_LONG)
    return Ending(How.TOO_MUCH) if code == _NO_MEMORY else Ending(How.DIED, why=f"ended with {code}")


class IsolatedTaskError(RunError):
    """Raised when the server itself could not do the work; it may work later."""


def run_bounded_check(settings: Settings, work: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """Return the result of `work(settings, folder, *args)`, within the limits of a check.

    Raises:
        ReleaseError: it cannot be done, or takes more time or memory than the server gives.
        IsolatedTaskError: the process could not start, or ended early, as when the disk is full or the server ends.
    """
    try:
        ending = run_isolated(TaskLimits.of(settings), settings.incoming, _said, settings, work, args)
    except OSError as error:
        raise IsolatedTaskError(f"the server cannot do it now: {error.strerror or error}") from error
    if ending.how is How.ANSWERED and "error" not in ending.answer:
        found: dict[str, Any] = ending.answer["answer"]
        return found
    if ending.how is How.DIED:
        raise IsolatedTaskError(f"the server could not do it: what was to do it {ending.why}")
    why = {
        How.TOO_LONG: "it takes longer than this server gives it",
        How.TOO_MUCH: f"it takes more memory than this server gives it, which is {settings.check_bytes >> 20:,} MiB",
    }
    raise ReleaseError(why.get(ending.how) or ending.answer["error"])


def start_process(bounds: TaskLimits, target: Callable[..., Any], *args: Any) -> BaseProcess:
    """Start a process within limits that runs `target(*args)` and ends with the server.

    Raises:
        OSError: no process can be started.
    """
    process = context().Process(target=_bounded, args=(bounds, target, args), daemon=True)
    try:
        process.start()
    except EOFError as error:  # what begins them has ended
        raise OSError(f"no process can be started: {error}") from error
    return process


def context() -> ForkServerContext:
    """Return the context of processes that start with all imports of a check and none of the server's files."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload([*PRELOADED])
    return made


def clear(settings: Settings) -> None:
    """Remove the folders of work that a killed server left."""
    for left in settings.incoming.glob(f"{_PREFIX}*"):
        remove_folder(left)


# In the process


def _bounded(bounds: TaskLimits, target: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.nice(bounds.nice)
    resource.setrlimit(resource.RLIMIT_DATA, (bounds.memory, bounds.memory))
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES * bounds.memory, _ADDRESSES * bounds.memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if bounds.seconds is not None:
        seconds = math.ceil(bounds.seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + _SPARE_SECONDS))
    if bounds.file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bounds.file_bytes, bounds.file_bytes))
    Thread(target=_end_with_server, daemon=True).start()
    try:
        target(*args)
    except Exception as error:
        if lacks_memory(error):
            os._exit(_NO_MEMORY)
        raise


def is_server_fault(error: BaseException | None) -> bool:
    """Return whether an error follows from a full or broken disk, too many open files, or a failing blob store."""
    while error is not None:
        if isinstance(error, BlobsError):
            return True
        is_databases = type(error).__module__.lstrip("_") in ("duckdb", "sqlite3")
        if isinstance(error, OSError) and error.errno in _THE_SERVERS:
            return True
        if is_databases and any(words in str(error) for words in _SAID):
            return True
        error = error.__cause__ or error.__context__
    return False


def _end_with_server() -> None:
    """Wait for the server to end, however it does, and end then."""
    server = multiprocessing.parent_process()
    assert server is not None
    server.join()
    os._exit(1)


def _answer(place: Path, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    tempfile.tempdir = str(place)
    with kept_connections():
        said = work(place, *args)
    atomic_write(place / _RESULT, orjson.dumps(said))


def _said(place: Path, settings: Settings, work: Callable[..., dict[str, Any]], args: tuple[Any, ...]) -> Any:
    try:
        return {"answer": work(settings, place, *args)}
    except NipRunError as error:
        if is_server_fault(error):
            raise
        return {"error": in_words(error)}
