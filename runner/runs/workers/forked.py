"""Workers that are forked from a command which has just begun: what both import is imported once.

Only where nothing is lost in a fork: on Linux, in a process of one thread, which no user's code has touched. Everywhere
else, and later in a run, a worker is a program of its own (see `begun`).
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

from runner.base.redaction import redacted

_TASKS = Path("/proc/self/task")
_NAME = b"nip-run worker"
"""What a list of processes says; the kernel keeps 15 bytes of it."""

_OPEN = Path("/proc/self/fd")

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def may_fork() -> bool:
    """Whether this process is one that can be forked; it has imported what a worker needs afterwards."""
    if not sys.platform.startswith("linux"):
        return False
    import runner.runs.workers.process  # noqa: F401 - which workers then have

    try:
        return len(list(_TASKS.iterdir())) == 1  # the threads of packages, too
    except OSError:
        return False


class ForkedProcess:
    """A forked process, as `subprocess.Popen` has one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended: its exit code, or a signal's number below zero; None while it lives."""
        return self._waited(os.WNOHANG)

    def wait(self) -> int | None:
        return self._waited(0)

    def _waited(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # somebody else has waited for it
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def forked(end: socket.socket, memory: int | None, said: IO[bytes]) -> ForkedProcess:
    """A worker on this end of a link, with the memory that it shares, whose stderr is `said`.

    Raises:
        OSError: there can be no more processes.
    """
    # What interrupts the command comes to the child once that ignores it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        pid = os.fork()
        if pid == 0:
            _live(end, memory, said, before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return ForkedProcess(pid)


def _live(end: socket.socket, memory: int | None, said: IO[bytes], mask: set[signal.Signals | int]) -> NoReturn:
    """Be a worker; of the command that it was forked from nothing goes on."""
    code = 1
    try:
        os.setpgid(0, 0)  # a terminal's Ctrl-C does not reach it
        for number in _INTERRUPTS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _close_all_but(end.fileno(), said.fileno(), *(() if memory is None else (memory,)))
        _have_streams(said.fileno())
        _be_named()
        from runner.runs.workers.process import main

        main(end.detach(), memory)
        code = 0
    except BaseException:  # noqa: BLE001 - nothing may come back from here into the command's own frames
        with suppress(BaseException):
            os.write(2, redacted(traceback.format_exc()).encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)


def _be_named() -> None:
    with suppress(OSError):
        name = os.open("/proc/self/comm", os.O_WRONLY)
        try:
            os.write(name, _NAME)
        finally:
            os.close(name)


def _close_all_but(*kept: int) -> None:
    """Close what the command has open, its ends of links among it: by those a worker sees that the command has ended.

    Objects that had it open are never freed: they belong to frames that do not go on.
    """
    faulthandler.disable()  # it may have one of them
    for descriptor in [int(one.name) for one in _OPEN.iterdir()]:
        if descriptor > 2 and descriptor not in kept:  # stdin, stdout and stderr are replaced
            with suppress(OSError):  # the one by which these were listed
                os.close(descriptor)


def _have_streams(said: int) -> None:
    """What is printed goes nowhere, and what is said of faults to this descriptor."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, replaced in enumerate((nothing, nothing, said)):
        os.dup2(replaced, descriptor)
    if nothing > 2:
        os.close(nothing)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
