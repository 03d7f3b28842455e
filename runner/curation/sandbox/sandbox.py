"""A running sandbox: programs go in, and what they print and return comes out."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from runner.base.errors import RunError, os_errors_as
from runner.base.storage.safe_files import read_bounded
from runner.curation.sandbox.fork_server import HEADER, LENGTH, ProcessLimits
from runner.curation.sandbox.mechanisms import Mechanism
from runner.curation.sandbox.values import OpaqueValue, decode_value, encode_value

_START_SECONDS = 60.0
_GRACE_SECONDS = 10.0
_WATCH_MS = 100
_SERVER_THREADS = 4
"""Threads that a sandbox needs itself: two processes of bubblewrap, the server, and its copy for the program."""
_MAX_ERROR_BYTES = 2000


class SandboxError(RunError):
    """The sandbox could not be started, or ended unexpectedly."""


@dataclass(frozen=True)
class RunLimits:
    """Limits of one program. Sizes are in bytes; `memory` counts address space, `output` all that it writes.

    Time is CPU time, so that verdicts do not depend on other processes. A program also ends if it has not used the CPU
    for `idle_seconds`, or at the latest after `wall_seconds`.
    """

    cpu_seconds: float = 5.0
    memory: int = 1 << 30
    output: int = 1 << 20
    threads: int = 64

    @property
    def idle_seconds(self) -> float:
        return self.cpu_seconds + 2

    @property
    def wall_seconds(self) -> float:
        return 20 * self.cpu_seconds + 10

    def for_process(self) -> ProcessLimits:
        return ProcessLimits(self.cpu_seconds, self.idle_seconds, self.wall_seconds, self.memory, self.output)


@dataclass(frozen=True)
class ProgramRun:
    """A Python program to run once: on a stdin, or to evaluate an expression.

    With an expression, the sandbox executes `source`, then `setup`, then evaluates `expression`, where the name
    `arguments` has the value of that field. `preamble` is executed first, in both cases.
    """

    source: str
    stdin: str = ""
    preamble: str = ""
    setup: str = ""
    expression: str | None = None
    arguments: object = field(default=(), hash=False)

    def to_json(self) -> dict[str, object]:
        return {**self.__dict__, "arguments": encode_value(self.arguments)}


class RunOutcome(NamedTuple):
    """The result of one program.

    `status` is the exit code, or minus the number of the signal that ended the program. `stopped` is the limit that the
    program exceeded: time, output or threads. `value` is the value of the expression, and an `OpaqueValue` if there is
    none or its type cannot leave the sandbox.
    """

    status: int
    stopped: str | None
    cpu_seconds: float
    stdout: str
    stderr: str
    value: Any

    @property
    def is_out_of_memory(self) -> bool:
        """Whether the program failed because its memory was used up."""
        last_line = (self.stderr.rstrip().splitlines() or [""])[-1]
        is_killed = self.status == -signal.SIGKILL and self.stopped is None
        return self.status != 0 and (is_killed or "MemoryError" in last_line.partition(":")[0])


class Sandbox:
    """A sandbox that runs one program at a time. It starts with the first program.

    All programs run with the same seed of hashes. Use it in one thread, which must outlive it.
    """

    def __init__(self, mechanism: Mechanism, hash_seed: int = 0) -> None:
        self._mechanism, self._hash_seed = mechanism, hash_seed
        self._process: subprocess.Popen[bytes] | None = None
        self.has_landlock = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, program: ProgramRun, limits: RunLimits) -> RunOutcome:
        """Run a program.

        Raises:
            SandboxError: the sandbox cannot be started, or ended.
        """
        if self._process is None:
            self.start()
        content = json.dumps(program.to_json()).encode()
        header = HEADER.pack(len(content), *limits.for_process())
        try:
            self._send(header + content)
            result = self._receive(limits.wall_seconds + _GRACE_SECONDS, limits.threads)
        except _TooManyThreads:
            self.close()
            return RunOutcome(-signal.SIGKILL, "threads", 0.0, "", "", OpaqueValue("nothing"))
        except BaseException:
            self.close()
            raise
        return RunOutcome(
            result["status"], result["stopped"], result["cpu_seconds"], result["stdout"], result["stderr"],
            _parse_value(result["result"]),
        )  # fmt: skip

    def start(self) -> None:
        """Start the server in the sandbox.

        Raises:
            SandboxError: it does not start; the message has the reason.
        """
        command, environment = self._mechanism.start(self._hash_seed)
        with os_errors_as(SandboxError, f"cannot start {command[0]}"):
            self._process = subprocess.Popen(
                command, env=environment, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, bufsize=0, start_new_session=True,
            )  # fmt: skip
        configuration = json.dumps(self._mechanism.configuration).encode()
        try:
            self._send(LENGTH.pack(len(configuration)) + configuration)
            self.has_landlock = self._receive(_START_SECONDS)["landlock"]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the sandbox with everything in it."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()

    def _send(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        view = memoryview(data)
        try:
            while view:
                view = view[self._process.stdin.write(view) or 0 :]
        except BrokenPipeError:
            raise self._ended() from None

    def _receive(self, seconds: float, threads: int | None = None) -> dict[str, Any]:
        """Return the server's next message. With `threads`, watch that the program has no more than these."""
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        data, size = bytearray(), LENGTH.size
        while len(data) < size:
            if poll.poll(_WATCH_MS):
                chunk = os.read(self._process.stdout.fileno(), 1 << 20)
                if not chunk:
                    raise self._ended()
                data += chunk
                if size == LENGTH.size and len(data) >= size:
                    size += LENGTH.unpack(data[: LENGTH.size])[0]
            elif threads is not None and _count_threads(self._process.pid) > threads + _SERVER_THREADS:
                raise _TooManyThreads
            elif time.monotonic() > deadline:
                raise SandboxError(f"the sandbox ({self._mechanism.name}) did not answer for {seconds:.0f} seconds")
        message: dict[str, Any] = json.loads(data[LENGTH.size :])
        return message

    def _ended(self) -> SandboxError:
        """Return the error for a server that has ended, with the last line that it or its launcher printed."""
        assert self._process is not None
        assert self._process.stderr is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        os.set_blocking(self._process.stderr.fileno(), False)
        text = (self._process.stderr.read(_MAX_ERROR_BYTES) or b"").decode("utf-8", "replace").strip()
        reason = text.splitlines()[-1] if text else f"exit code {self._process.returncode}"
        return SandboxError(f"the sandbox ({self._mechanism.name}) ended: {reason}")


class _TooManyThreads(Exception):
    """Raised if a program has started too many threads."""


def _count_threads(process: int) -> int:
    """Return the number of threads of a process and its descendants."""
    folder = Path(f"/proc/{process}/task")
    count = 0
    with suppress(OSError):  # the process or a thread has ended
        for thread in folder.iterdir():
            count += 1
            children = read_bounded(thread / "children", 1 << 20).split()
            count += sum(_count_threads(int(child)) for child in children)
    return count


def _parse_value(text: str) -> Any:
    """Return the value that a program returned. The program may have written the text itself."""
    try:
        return decode_value(json.loads(text))
    except (ValueError, RecursionError):
        return OpaqueValue("nothing")
