"""Work on what strangers sent, in a process of its own with bounded time and memory; its answer is JSON.

The one place of the server that begins a process. `apart` has a piece of work done and says how that ended;
`run_apart` is `apart` for whoever only wants the answer; `begun` is a process that goes on, and is told what to do.
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


def apart(bounds: TaskLimits, within: Path, work: Callable[..., Any], *args: Any, most: int = MOST) -> Ending:
    """How `work(folder, *args)` ends; the folder, in `within`, is its own and its temporary one, and gone afterwards.

    Raises:
        OSError: no process can be begun.
    """
    place = within.absolute() / f"{_PREFIX}{secrets.token_hex(8)}"
    make_folders(place)
    try:
        process = begun(bounds, _answer, place, work, args)
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


class ApartError(RunError):
    """The server could not do it, for no reason of what was asked; it may, later."""


def run_apart(settings: Settings, work: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """What `work(settings, folder, *args)` answers, within the bounds of a check.

    Raises:
        ReleaseError: it cannot be done, or takes more time or memory than the server gives.
        ApartError: the process could not be begun, or ended otherwise, as where the disk is full or the server ends.
    """
    try:
        ending = apart(TaskLimits.of(settings), settings.incoming, _said, settings, work, args)
    except OSError as error:
        raise ApartError(f"the server cannot do it now: {error.strerror or error}") from error
    if ending.how is How.ANSWERED and "error" not in ending.answer:
        found: dict[str, Any] = ending.answer["answer"]
        return found
    if ending.how is How.DIED:
        raise ApartError(f"the server could not do it: what was to do it {ending.why}")
    why = {
        How.TOO_LONG: "it takes longer than this server gives it",
        How.TOO_MUCH: f"it takes more memory than this server gives it, which is {settings.check_bytes >> 20:,} MiB",
    }
    raise ReleaseError(why.get(ending.how) or ending.answer["error"])


def begun(bounds: TaskLimits, target: Callable[..., Any], *args: Any) -> BaseProcess:
    """A process within bounds, which does `target(*args)`, and ends with the server.

    Raises:
        OSError: none can be begun.
    """
    process = context().Process(target=_bounded, args=(bounds, target, args), daemon=True)
    try:
        process.start()
    except EOFError as error:  # what begins them has ended
        raise OSError(f"no process can be begun: {error}") from error
    return process


def context() -> ForkServerContext:
    """Processes that begin with all that a check imports, and with nothing that a server has open."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload([*PRELOADED])
    return made


def clear(settings: Settings) -> None:
    """Remove what a server that was killed left of such work."""
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


def is_the_servers(error: BaseException | None) -> bool:
    """Whether a full or broken disk, too many open files, or a store of blobs that fails, is behind an error."""
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
        if is_the_servers(error):
            raise
        return {"error": in_words(error)}
