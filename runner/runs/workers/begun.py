"""The processes of workers, which may be begun before it is known what they play: their start is mostly imports.

A process is a program of its own, begun afresh: it shares nothing with the one that began it but a socket, which
tells each that the other is gone. It needs no `__main__` that can be imported, so a notebook may play with workers.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from runner.errors import RunError
from runner.runs.process import cores_here

_BEGIN = (
    "import gc, signal, sys\n"
    "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "gc.disable()\n"  # what is imported is kept
    "sys.path[:] = {path!r}\n"
    "from runner.runs.workers.process import main\n"
    "main({descriptor})\n"
)
"""What a worker runs. What interrupts the group is for the writer alone, which tells the workers."""


class Begun(NamedTuple):
    """A process that was begun, and has been told nothing yet."""

    process: subprocess.Popen[bytes]
    end: socket.socket
    said: IO[bytes]
    """What it writes to its stderr."""

    def let_go(self) -> None:
        """End it: nobody needs it."""
        self.end.close()
        self.process.kill()
        self.process.wait()
        self.said.close()


def begin() -> Begun:
    """Begin a process.

    Raises:
        RunError: it cannot be begun.
    """
    if not sys.executable:
        raise RunError("this Python knows no program of its own to start workers with; set execution.processes=1")
    ours, theirs = socket.socketpair()
    code = _BEGIN.format(path=list(sys.path), descriptor=theirs.fileno())
    said = TemporaryFile()  # noqa: SIM115 - closed by whoever ends the process
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                process_group=0,  # a terminal's Ctrl-C does not reach it
            )
    except OSError as error:
        ours.close()
        said.close()
        raise RunError(
            f"cannot start a worker process: {error.strerror}; what was paid for is kept. Lower "
            "execution.processes, and run the same command again"
        ) from error
    return Begun(process, ours, said)


_AHEAD: ContextVar[list[Begun] | None] = ContextVar("nip_run_begun_ahead", default=None)
"""Within `begun_ahead`: those that were begun, and not taken yet."""


@contextmanager
def begun_ahead(count: int) -> Iterator[None]:
    """Have so many processes begun, as far as there are cores for them, for the first workers that the block starts.

    What cannot be begun, or has ended before it is taken, is begun when it is needed, which says what is wrong.
    """
    waiting: list[Begun] = []
    token = _AHEAD.set(waiting)
    try:
        with suppress(RunError, OSError):
            waiting.extend(begin() for _ in range(min(count, cores_here())))
        yield
    finally:
        _AHEAD.reset(token)
        while waiting:
            waiting.pop().let_go()


def taken() -> Begun:
    """A process that was begun ahead; where there is none, a new one. Raises as `begin`."""
    waiting = _AHEAD.get()
    while waiting:
        one = waiting.pop(0)
        if one.process.poll() is None:
            return one
        one.let_go()
    return begin()
