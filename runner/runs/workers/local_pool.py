"""Workers that are processes on this machine.

A worker shares only a socket with the writer (the main process, which writes the journal). The socket closes when
either side ends, so the other side notices. A worker is a separate program that does not import the caller's
`__main__`, so that notebooks can use workers.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from contextlib import ExitStack, suppress
from tempfile import TemporaryFile
from typing import IO, Any

from runner.base.errors import ANSWERS_ARE_SAVED, RunError
from runner.base.redaction import redacted
from runner.runs.execution.process import raise_open_files_limit
from runner.runs.workers.channel import ReceiveBatch, SocketChannel
from runner.runs.workers.pool import END_SECONDS

_PROGRAM = (
    "import signal, sys\n"
    "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "sys.path[:] = {path!r}\n"
    "from runner.runs.workers.process import main\n"
    "main({descriptor})\n"
)
"""The program of a worker. It ignores SIGINT and SIGTERM, because the writer handles them and ends its workers."""

_OPEN_FILES = 3
"""The number of files that the writer opens for a worker: two sockets and stderr."""

_STDERR_BYTES = 2000
"""The number of bytes that are read at the end of stderr to find its last line."""


class LocalPool:
    """Starts worker processes."""

    async def start(self, receive: ReceiveBatch, on_exit: Callable[[str], None]) -> LocalWorker:
        try:
            return await self._start(receive, on_exit)
        except OSError as error:
            raise RunError(
                f"cannot start a worker process: {error.strerror}. Lower execution.processes, and run the same command "
                f"again. {ANSWERS_ARE_SAVED}"
            ) from error

    @staticmethod
    async def _start(receive: ReceiveBatch, on_exit: Callable[[str], None]) -> LocalWorker:
        raise_open_files_limit(_OPEN_FILES)
        with ExitStack() as undo_on_failure:
            writer_socket, worker_socket = socket.socketpair()
            undo_on_failure.enter_context(writer_socket)
            stderr = undo_on_failure.enter_context(TemporaryFile())
            with worker_socket:
                code = _PROGRAM.format(path=list(sys.path), descriptor=worker_socket.fileno())
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-c", code, pass_fds=[worker_socket.fileno()], stdin=DEVNULL, stdout=DEVNULL,
                    stderr=stderr, process_group=0,  # so that Ctrl-C in a terminal does not reach the worker
                )  # fmt: skip
            undo_on_failure.callback(process.kill)
            worker = LocalWorker(process, stderr, on_exit)
            await worker.connect(writer_socket, receive)
            undo_on_failure.pop_all()  # all succeeded: keep the socket, stderr and the process
        return worker


class LocalWorker:
    """A worker process, and the channel to it."""

    def __init__(self, process: Process, stderr: IO[bytes], on_exit: Callable[[str], None]) -> None:
        self._process, self._stderr = process, stderr
        self._on_exit: Callable[[str], None] | None = on_exit
        self._channel: SocketChannel | None = None
        self._exit_task: asyncio.Task[None] | None = None
        self._exit_reason = ""

    async def connect(self, sock: socket.socket, receive: ReceiveBatch) -> None:
        self._channel = await SocketChannel.open(sock, receive, self._on_disconnect)

    def send(self, message: Any) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def _on_disconnect(self) -> None:
        """Start a task that reports the exit of the process. The closed socket shows that it has ended or soon ends."""
        self._channel = None
        if self._on_exit is not None:
            self._exit_task = asyncio.create_task(self._report_exit())

    async def _report_exit(self) -> None:
        reason = await self._wait(END_SECONDS)
        on_exit, self._on_exit = self._on_exit, None
        if on_exit is not None:
            on_exit(self._exit_reason or reason)

    def kill(self, exit_reason: str) -> None:
        self._exit_reason = exit_reason
        self._kill()  # the socket closes after the messages already sent, and then `on_exit` is called

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def _wait(self, seconds: float) -> str:
        """Wait until the process ends, kill it after this time, and describe how it ended."""
        try:
            async with asyncio.timeout(seconds):
                code = await self._process.wait()
        except TimeoutError:
            self._kill()
            code = await self._process.wait()
        return describe_exit(code, self._stderr)

    async def end(self, *, immediately: bool) -> None:
        self._on_exit = None
        if self._channel is not None:
            self._channel.close()
        await self._wait(0.0 if immediately else END_SECONDS)


def describe_exit(code: int, stderr: IO[bytes]) -> str:
    """Describe an exit code, with the last line of stderr; and close stderr.

    A negative exit code is the number of the signal that killed the process.
    """
    last_line = "" if stderr.closed else _last_line(stderr)
    stderr.close()
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}" + (" (by a user, or because memory ran out)" if -code == signal.SIGKILL else "")
    return f"ended with exit code {code}" + (f": {last_line}" if last_line else "")


def _last_line(stderr: IO[bytes]) -> str:
    stderr.seek(0, 2)
    stderr.seek(max(stderr.tell() - _STDERR_BYTES, 0))
    lines = stderr.read().decode("utf-8", "replace").strip().splitlines()
    return redacted(lines[-1]) if lines else ""
