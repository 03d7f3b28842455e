"""The process in the sandbox that starts a fresh, confined copy of itself for each program.

It reads a configuration and then requests from stdin, and writes results to stdout. Only the copy reads the request's
content, so no program finds the sources and inputs of other programs in its memory. The server keeps the program's
limits on time and output. This module runs inside the sandbox, where only the standard library exists.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import struct
import sys
import threading
import time
import traceback
import types
from typing import Any, NamedTuple

from runner.curation.sandbox.confinement import (
    create_landlock_ruleset,
    drop_privileges,
    filter_program,
    hide_process,
    install_filter,
    limit_resources,
)
from runner.curation.sandbox.values import decode_value, encode_value

LENGTH = struct.Struct("<I")
HEADER = struct.Struct("<IdddQQ")
"""The start of a request: the number of bytes of its content, and the fields of `ProcessLimits`."""

_PRELOADED = (
    "bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "io", "itertools",
    "linecache", "math", "operator", "random", "re", "statistics", "string", "textwrap", "tokenize", "typing",
)  # fmt: skip
"""Modules that many programs import."""

_STDIN, _STDOUT, _STDERR, _RESULT, _READY = range(5)
"""The descriptors of a program. It does not get the last one, over which the copy says that it is confined."""

_CONFINED = b"confined"
_LONGEST_POLL_MS = 20
_MAX_READ = 1 << 16
_LONGEST_WAIT = 0.1
"""Maximum number of seconds between two calls that count as time of a program."""


class ProcessLimits(NamedTuple):
    """The limits of one program, in seconds and bytes. `idle_seconds` is without any use of the CPU."""

    cpu_seconds: float
    idle_seconds: float
    wall_seconds: float
    memory: int
    output: int


def read_exactly(descriptor: int, size: int) -> bytes:
    """Return `size` bytes of a pipe.

    Raises:
        EOFError: the pipe was closed before.
    """
    data = bytearray()
    while len(data) < size:
        chunk = os.read(descriptor, min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def _write_fully(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _write_message(content: object) -> None:
    data = json.dumps(content).encode()
    _write_fully(1, LENGTH.pack(len(data)) + data)


def main() -> None:
    """Serve requests until stdin is closed."""
    config = json.loads(read_exactly(0, *LENGTH.unpack(read_exactly(0, LENGTH.size))))
    hide_process()
    for name in _PRELOADED:
        __import__(name)
    for descriptor in (_RESULT, _READY):
        os.dup2(_STDERR, descriptor)  # reserves the number for programs
    readable = [*config["readable"], f"{sys.base_prefix}/lib"]
    ruleset = create_landlock_ruleset(readable, config["writable"])
    if ruleset is None and config["landlock_required"]:
        raise SystemExit("this kernel has no Landlock, or does not allow it here")
    gc.freeze()
    _write_message({"landlock": ruleset is not None})
    while True:
        try:
            header = HEADER.unpack(read_exactly(0, HEADER.size))
        except EOFError:
            return
        # Another copy handles the result, because later programs could find it in the memory of this process.
        if (supervisor := os.fork()) == 0:
            code = 1
            try:
                _write_message(_run_request(header[0], ProcessLimits(*header[1:]), ruleset, config["filter"]))
                code = 0
            finally:
                os._exit(code)
        if os.waitpid(supervisor, 0)[1]:
            raise SystemExit(1)


def _run_request(length: int, limits: ProcessLimits, ruleset: int | None, rules: Any) -> dict[str, object]:
    """Run the program of one request in a copy of this process, and return the result as JSON."""
    pipes = [os.pipe() for _ in (_STDOUT, _STDERR, _RESULT, _READY)]
    process = os.fork()
    if process == 0:
        code = 1
        try:
            code = _become_program(length, [writer for _, writer in pipes], limits, ruleset, rules)
        finally:
            os._exit(code)
    for _, writer in pipes:
        os.close(writer)
    ready = pipes.pop()[0]
    try:
        report = os.read(ready, _MAX_READ)
        if report != _CONFINED:
            os.waitpid(process, 0)
            _write_error(f"a program could not be confined: {report.decode()}")
            raise SystemExit(1)
        return _supervise(process, [reader for reader, _ in pipes], limits)
    finally:
        for descriptor in (ready, *(reader for reader, _ in pipes)):
            os.close(descriptor)


def _become_program(length: int, writers: list[int], limits: ProcessLimits, ruleset: int | None, rules: Any) -> int:
    """Confine this copy of the server, run the program in it, and return the exit code."""
    report = writers[-1]
    try:
        request = json.loads(read_exactly(0, length))
        _take_descriptors(request["stdin"].encode("utf-8", "surrogatepass"), writers)
        report = _READY
        drop_privileges(ruleset)
        os.closerange(_READY + 1, os.sysconf("SC_OPEN_MAX"))
        limit_resources(limits.cpu_seconds, limits.memory)
        install_filter(filter_program(rules, os.getpid()))
    except BaseException as error:  # noqa: BLE001 - the server reports it
        os.write(report, f"{type(error).__name__}: {error}".encode())
        return 1
    os.write(_READY, _CONFINED)
    os.close(_READY)
    return _run_program(request)


def _take_descriptors(stdin: bytes, writers: list[int]) -> None:
    source = os.memfd_create("stdin")
    _write_fully(source, stdin)
    os.lseek(source, 0, os.SEEK_SET)
    for target, descriptor in enumerate([source, *writers]):
        os.dup2(descriptor, target)


def _supervise(process: int, readers: list[int], limits: ProcessLimits) -> dict[str, object]:
    """Read what a program writes, end it at its limits, and return the result as JSON."""
    outputs = {reader: bytearray() for reader in readers}
    clock, stopped, status = _ProgramClock(process, limits), None, None
    poll = select.poll()
    for reader in readers:
        poll.register(reader, select.POLLIN)
    poll.register(_STDOUT, 0)  # reports that nip-run has ended
    open_readers = len(readers)
    while open_readers or status is None:
        for reader, _ in poll.poll(_LONGEST_POLL_MS if open_readers else 1):
            if reader == _STDOUT:
                raise SystemExit(1)  # which also ends the program
            chunk = os.read(reader, _MAX_READ)
            outputs[reader] += chunk
            if not chunk:
                poll.unregister(reader)
                open_readers -= 1
        if sum(map(len, outputs.values())) > limits.output:
            stopped = stopped or "output"
        elif status is None and clock.is_late():
            stopped = stopped or "time"
        if status is None:
            if stopped is not None:
                os.kill(process, signal.SIGKILL)
            ended, wait_status, usage = os.wait4(process, 0 if stopped else os.WNOHANG)
            status = wait_status if ended else None
    cpu_seconds = usage.ru_utime + usage.ru_stime
    if status == signal.SIGKILL and stopped is None and cpu_seconds >= limits.cpu_seconds:
        stopped = "time"
    texts = [bytes(data[: limits.output]).decode("utf-8", "replace") for data in outputs.values()]
    return {
        "status": os.waitstatus_to_exitcode(status), "stopped": stopped, "cpu_seconds": cpu_seconds,
        "stdout": texts[0], "stderr": texts[1], "result": texts[2],
    }  # fmt: skip


class _ProgramClock:
    """The use of time by a program that has not been waited for.

    On a busy machine, a program may take much longer than its CPU time. So the time that it has been idle is limited,
    and the time since its start only generously. Neither counts while this process is not called as often as it asks
    for, because then the program may be waiting for the CPU, too.
    """

    def __init__(self, process: int, limits: ProcessLimits) -> None:
        self._clock = (~process << 3) | 2  # the CPU clock of a process, as in clock_getcpuclockid(3)
        self._limits = limits
        self._last_call = time.monotonic()
        self._seconds = self._active = 0.0
        self._cpu_seconds = 0.0

    def is_late(self) -> bool:
        """Return whether the program has used up its time."""
        now, cpu_seconds = time.monotonic(), time.clock_gettime(self._clock)
        self._seconds += min(now - self._last_call, _LONGEST_WAIT)
        self._last_call = now
        if cpu_seconds > self._cpu_seconds:
            self._cpu_seconds, self._active = cpu_seconds, self._seconds
        limits = self._limits
        is_idle = self._seconds - self._active > limits.idle_seconds
        return is_idle or cpu_seconds > limits.cpu_seconds or self._seconds > limits.wall_seconds


def _run_program(request: dict[str, Any]) -> int:
    """Run the program of a request in this process, and return its exit code."""
    sys.stdin = os.fdopen(_STDIN, encoding="utf-8", errors="surrogateescape")
    sys.stdout = os.fdopen(_STDOUT, "w", encoding="utf-8", errors="surrogateescape")
    sys.stderr = os.fdopen(_STDERR, "w", 1, encoding="utf-8", errors="backslashreplace")
    sys.argv = ["solution.py"]
    code = 0
    try:
        _execute(request)
    except SystemExit as error:
        if isinstance(error.code, str):
            _write_error(error.code)
        code = error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
    except MemoryError:
        _write_error("MemoryError")  # the traceback needs memory
        code = 1
    except BaseException:  # noqa: BLE001 - the program's
        _write_error(traceback.format_exc())
        code = 1
    try:
        # As at the end of Python: wait for the program's threads, and call its functions for the exit.
        threading._shutdown()  # type: ignore[attr-defined] # noqa: SLF001
        atexit._run_exitfuncs()  # noqa: SLF001
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - the program's
        code = code or 1
    return code


def _write_error(text: str) -> None:
    _write_fully(_STDERR, f"{text}\n".encode("utf-8", "backslashreplace"))


def _execute(request: dict[str, Any]) -> None:
    """Execute the source of a request, then evaluate its expression if there is one."""
    expression = request["expression"]
    module = types.ModuleType("__main__" if expression is None else "solution")
    sys.modules[module.__name__] = module
    names = module.__dict__
    _execute_source(request["preamble"], "preamble.py", names)
    _execute_source(request["source"], "solution.py", names)
    if expression is None:
        return
    names["arguments"] = decode_value(request["arguments"])
    _execute_source(request["setup"], "setup.py", names)
    value = eval(compile(expression, "expression.py", "eval", dont_inherit=True), names)  # noqa: S307 - confined
    _write_fully(_RESULT, json.dumps(encode_value(value)).encode())


def _execute_source(source: str, file: str, names: dict[str, Any]) -> None:
    exec(compile(source, file, "exec", dont_inherit=True), names)  # noqa: S102 - confined
