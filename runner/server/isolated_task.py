"""Runs tasks on untrusted data in a separate process with limited time and memory.

Only this module starts processes in the server. `run_isolated` runs a task, such as building a page, and returns a
`TaskResult`. `run_with_check_limits` runs a task such as the check of an upload or the scoring of a submission, with
the limits of `--check-seconds` and `--check-memory`. `start_process` starts the long-running worker that builds boards.
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
from sqlalchemy.exc import SQLAlchemyError

from runner.base.errors import NipRunError, ReleaseError, RunError, os_errors_as
from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.duckdb_connections import reuse_connections
from runner.base.storage.safe_files import make_folders, read_bounded, remove_folder
from runner.registry.release_errors import RegistryUnavailableError, causes_of, describe_error, lacks_memory
from runner.server.settings import Settings

MAX_RESULT_BYTES = 256 << 20
"""Maximum size of a task's result, in bytes of JSON."""
_RESULT_FILE = "result.json"
_FOLDER_PREFIX = "work-"
_OUT_OF_MEMORY_EXIT = 77
"""Exit code of a process that ran out of memory."""
_GRACE_SECONDS = 5
"""Seconds of processor time from SIGXCPU, at the soft limit, to SIGKILL, at the hard limit."""
_SERVER_FAULT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE)
_SERVER_FAULT_TEXTS = (*map(os.strerror, _SERVER_FAULT_ERRNOS), "database or disk is full", "disk I/O error")
"""Parts of the error messages of DuckDB and SQLite that mean one of the errors in `_SERVER_FAULT_ERRNOS`."""

_ADDRESS_SPACE_FACTOR = 4
"""Limit of the address space, as a multiple of the memory limit. It is larger, because DuckDB reserves 700 MiB of
addresses that it does not use."""

PRELOADED_MODULES = (
    "runner.server.single_thread", "runner.server.uploads.checking", "runner.server.boards.worker",
    "runner.pages.report.run_site",
    "runner.registry.transports.locations", "duckdb", "numpy", "scipy.special",
)  # fmt: skip
"""Modules that the fork server imports once, before it forks the other processes.

`runner.server.single_thread` must come first, because it sets environment variables that NumPy reads."""


@dataclass(frozen=True, kw_only=True)
class TaskLimits:
    """Limits on the resources of a process."""

    memory: int
    """Maximum memory in bytes (`resource.RLIMIT_DATA`)."""
    seconds: float | None = None
    """Maximum wall time, and also maximum processor time."""
    file_bytes: int | None = None
    """Maximum size of each file that the process writes."""
    nice: int = 10
    """Increment of the process's niceness, so that the server's own process gets processor time first."""


class TaskStatus(Enum):
    """How a task ended."""

    FINISHED = "the task returned a result"
    TIMED_OUT = "the task exceeded its time limit"
    OUT_OF_MEMORY = "the task exceeded its memory limit"
    DIED = "the task's process ended without a result"


@dataclass(frozen=True)
class TaskResult:
    """The status of a task that has ended, and its result if it returned one."""

    status: TaskStatus
    value: Any = None
    failure: str = ""
    """The reason if the status is DIED, such as "ended with exit code -9"."""


def run_isolated(limits: TaskLimits, parent: Path, function: Callable[..., Any], *args: Any) -> TaskResult:
    """Run `function(folder, *args)` in a process, where `folder` is a temporary folder in `parent`.

    Raises:
        OSError: the process cannot be started.
    """
    folder = parent.absolute() / f"{_FOLDER_PREFIX}{secrets.token_hex(8)}"
    make_folders(folder)
    try:
        process = start_process(limits, _write_result, folder, function, args)
        process.join(limits.seconds)
        if process.is_alive():
            process.kill()
            process.join()
            return TaskResult(TaskStatus.TIMED_OUT)
        return _read_result(process.exitcode, folder / _RESULT_FILE)
    finally:
        remove_folder(folder)


def _read_result(exit_code: int | None, path: Path) -> TaskResult:
    if exit_code == 0:
        try:
            return TaskResult(TaskStatus.FINISHED, orjson.loads(read_bounded(path, MAX_RESULT_BYTES)))
        except (OSError, ValueError) as error:
            return TaskResult(TaskStatus.DIED, failure=f"left a result that cannot be read: {error}")
    if exit_code == -signal.SIGXCPU:
        return TaskResult(TaskStatus.TIMED_OUT)
    if exit_code == _OUT_OF_MEMORY_EXIT:
        return TaskResult(TaskStatus.OUT_OF_MEMORY)
    return TaskResult(TaskStatus.DIED, failure=f"ended with exit code {exit_code}")


class IsolatedTaskError(RunError):
    """Raised if the server could not finish a task for a reason other than the task's data; a retry may succeed."""


def run_with_check_limits(settings: Settings, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Run `function(settings, folder, *args)` in a process with the limits of a check.

    Return the fields of its result, which is a dictionary or a dataclass with values that JSON can represent.

    Raises:
        ReleaseError: the function raised an error, or exceeded its limit of time or memory.
        IsolatedTaskError: the server failed, for example because its disk is full, or is stopping.
    """
    limits = TaskLimits(memory=settings.check_bytes, seconds=settings.check_seconds, file_bytes=settings.check_bytes)
    with os_errors_as(IsolatedTaskError, "the server cannot start a process now", "; try again in a minute"):
        outcome = run_isolated(limits, settings.incoming, _catch_errors, settings, function, args)
    if outcome.status is TaskStatus.FINISHED and "error" not in outcome.value:
        result: dict[str, Any] = outcome.value["result"]
        return result
    if outcome.status is TaskStatus.DIED:
        message = f"the server could not finish checking the release: its process {outcome.failure}; try again later"
        raise IsolatedTaskError(message)
    if outcome.status is TaskStatus.TIMED_OUT:
        limit, option = f"takes longer than {settings.check_seconds:g} seconds", "--check-seconds"
    elif outcome.status is TaskStatus.OUT_OF_MEMORY:
        limit, option = f"needs more memory than {settings.check_bytes >> 20:,} MiB", "--check-memory"
    else:  # finished with an error
        raise ReleaseError(outcome.value["error"])
    raise ReleaseError(
        f"checking the release {limit}, the limit of this server; use a smaller dataset or run, publish fewer releases "
        f"at once, or ask the administrator to raise {option} of nip-run serve"
    )


def start_process(limits: TaskLimits, target: Callable[..., Any], *args: Any) -> BaseProcess:
    """Start a process that runs `target(*args)` within limits and exits when the server exits.

    Raises:
        OSError: the process cannot be started.
    """
    process = forkserver_context().Process(target=_run_with_limits, args=(limits, target, args), daemon=True)
    try:
        process.start()
    except EOFError as error:  # the fork server has ended
        raise OSError(f"the fork server has ended, restart nip-run serve: {error}") from error
    return process


def forkserver_context() -> ForkServerContext:
    """Return a context whose processes start with `PRELOADED_MODULES` imported and without the server's open files."""
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload([*PRELOADED_MODULES])
    return forkserver


def remove_leftovers(settings: Settings) -> None:
    """Remove the temporary folders of tasks that a crash of the server interrupted."""
    for folder in settings.incoming.glob(f"{_FOLDER_PREFIX}*"):
        remove_folder(folder)


# The functions below run in the isolated process. The server also calls `is_server_fault`.


def _run_with_limits(limits: TaskLimits, target: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.nice(limits.nice)
    resource.setrlimit(resource.RLIMIT_DATA, (limits.memory, limits.memory))
    address_space = _ADDRESS_SPACE_FACTOR * limits.memory
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.seconds is not None:
        seconds = math.ceil(limits.seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + _GRACE_SECONDS))
    if limits.file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))
    Thread(target=_exit_with_server, daemon=True).start()
    try:
        target(*args)
    except Exception as error:
        if lacks_memory(error):
            os._exit(_OUT_OF_MEMORY_EXIT)
        raise


def is_server_fault(error: BaseException) -> bool:
    """Return whether the server caused an error: its database or blob store, its disk, or too many open files."""
    for cause in causes_of(error):
        if isinstance(cause, (SQLAlchemyError, RegistryUnavailableError)):
            return True
        if isinstance(cause, OSError) and cause.errno in _SERVER_FAULT_ERRNOS:
            return True
        is_from_local_database = type(cause).__module__.lstrip("_") in ("duckdb", "sqlite3")
        if is_from_local_database and any(text in str(cause) for text in _SERVER_FAULT_TEXTS):
            return True
    return False


def _exit_with_server() -> None:
    """Wait until the server ends, even if it is killed, and then exit this process."""
    server = multiprocessing.parent_process()
    assert server is not None
    server.join()
    os._exit(1)


def _write_result(folder: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    tempfile.tempdir = str(folder)
    with reuse_connections():
        result = function(folder, *args)
    atomic_write(folder / _RESULT_FILE, orjson.dumps(result))


def _catch_errors(
    folder: Path, settings: Settings, function: Callable[..., Any], args: tuple[Any, ...]
) -> dict[str, object]:
    """Return the function's result or the message of its error. An error of the server itself ends the process."""
    try:
        return {"result": function(settings, folder, *args)}
    except NipRunError as error:
        if is_server_fault(error):
            raise
        return {"error": describe_error(error)}
