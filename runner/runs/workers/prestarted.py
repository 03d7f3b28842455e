"""The processes of workers, which may be begun before it is known what they play: their start is mostly imports.

A process shares nothing with the one that began it but a socket, which tells each that the other is gone. It is a
program of its own, begun afresh, which needs no `__main__` that can be imported, so that a notebook may play with
workers; or it is forked from a command that has imported no more than itself (see `forked`).
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from tempfile import TemporaryFile
from typing import IO, NamedTuple, Protocol

from runner.base.errors import RunError
from runner.runs.execution.process import allow_open_files, cores_here
from runner.runs.workers.exit_reasons import how_ended
from runner.runs.workers.forked import forked, may_fork
from runner.runs.workers.shared_memory import Arena, shared

log = logging.getLogger("nip_run.workers")

_BEGIN = (
    "import gc, signal, sys\n"
    "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "gc.disable()\n"  # what is imported is kept
    "sys.path[:] = {path!r}\n"
    "from runner.runs.workers.process import main\n"
    "main({descriptor}, {memory})\n"
)
"""What a worker runs. What interrupts the group is for the writer alone, which tells the workers."""


_OPEN_FILES = 3
"""That a worker takes here: its link, its stderr, and the memory that is shared with it."""


class Process(Protocol):
    """What is needed of a `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int | None: ...
    def kill(self) -> None: ...


class PrestartedProcess(NamedTuple):
    """A process that was begun, and has been told nothing yet."""

    process: Process
    end: socket.socket
    said: IO[bytes]
    """What it writes to its stderr."""
    arena: Arena | None
    """Where it leaves what it has to say, as far as that goes through memory."""

    def let_go(self) -> None:
        """End it: nobody needs it."""
        self.end.close()
        self.process.kill()
        self.process.wait()
        self.said.close()


def begin() -> PrestartedProcess:
    """Begin a process, as a program of its own.

    Raises:
        RunError: it cannot be begun.
    """
    if not sys.executable:
        raise RunError("this Python knows no program of its own to start workers with; set execution.processes=1")
    try:
        return _begun(_program)
    except OSError as error:
        raise RunError(
            f"cannot start a worker process: {error.strerror}; what was paid for is kept. Lower "
            "execution.processes, and run the same command again"
        ) from error


def _begun(start: Callable[[socket.socket, int | None, IO[bytes]], Process]) -> PrestartedProcess:
    """What `start` makes of a worker's end of a link, the memory that it shares, and its stderr."""
    allow_open_files(_OPEN_FILES)
    with ExitStack() as undone, ExitStack() as passed:
        ours, theirs = socket.socketpair()
        undone.enter_context(ours)
        passed.enter_context(theirs)
        said = undone.enter_context(TemporaryFile())
        memory, arena = shared() or (None, None)
        if memory is not None:
            passed.callback(os.close, memory)
        process = start(theirs, memory, said)
        undone.pop_all()
    return PrestartedProcess(process, ours, said, arena)


def _program(end: socket.socket, memory: int | None, said: IO[bytes]) -> Process:
    code = _BEGIN.format(path=list(sys.path), descriptor=end.fileno(), memory=memory)
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        pass_fds=[end.fileno(), *(() if memory is None else (memory,))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=said,
        process_group=0,  # a terminal's Ctrl-C does not reach it
    )


_AHEAD: ContextVar[list[PrestartedProcess] | None] = ContextVar("nip_run_begun_ahead", default=None)
"""Within `begun_ahead`: those that were begun, and not taken yet."""


@contextmanager
def begun_ahead(count: int) -> Iterator[None]:
    """Have so many processes begun, as far as there are cores for them, for the first workers that the block starts.

    What cannot be begun, or has ended before it is taken, is begun when it is needed, which says what is wrong.
    """
    waiting: list[PrestartedProcess] = []
    token = _AHEAD.set(waiting)
    try:
        with suppress(RunError, OSError):
            forks = may_fork()
            waiting.extend(_begun(forked) if forks else begin() for _ in range(min(count, cores_here())))
        yield
    finally:
        _AHEAD.reset(token)
        while waiting:
            waiting.pop().let_go()


def taken() -> PrestartedProcess:
    """A process that was begun ahead; where there is none, a new one. Raises as `begin`."""
    waiting = _AHEAD.get()
    while waiting:
        one = waiting.pop(0)
        code = one.process.poll()
        if code is None:
            return one
        log.warning("a worker process that was begun ahead %s; another one is begun", how_ended(code, one.said))
        one.let_go()
    return begin()
