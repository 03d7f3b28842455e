"""Run the command line or Python code, in a process or in this one; wait for processes and send them signals."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from runner.cli.main import main
from tests.support import guard
from tests.support.hang_guard import HANG_SECONDS
from tests.support.servers.client import LoopbackServer


def environment(**variables: str) -> dict[str, str]:
    """Return an environment with the guard of the tests, and without the user's keys, proxies and color settings."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**inherited, **guard.guard_variables(), **variables}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "runner", *map(str, arguments)]


def nip_run(
    *arguments: str | Path, cwd: Path, timeout: float = HANG_SECONDS, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line in its own process."""
    return subprocess.run(
        command(*arguments), cwd=cwd, env=environment(**variables), capture_output=True, text=True, timeout=timeout,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def nip_run_here(*arguments: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in the process of the test.

    This saves the second of CPU time that a new process takes to import the modules that a run needs.
    """
    out, err = io.StringIO(), io.StringIO()
    settings = patch.dict(os.environ, environment(**variables), clear=True)
    with settings, chdir(cwd), redirect_stdout(out), redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def python(
    code: str, *arguments: str | Path, cwd: Path | None = None, timeout: float = HANG_SECONDS, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python code in its own process."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=cwd, env=environment(**variables), capture_output=True,
        text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until `condition` is true. The pauses grow with the wait, to leave CPU time to the process under test."""
    started = time.monotonic()
    while not condition():
        waited = time.monotonic() - started
        assert waited < HANG_SECONDS, "the condition that the test waits for did not become true"
        time.sleep(min(max(0.01, waited / 20), 0.5))


def has_open(pid: int, name: str) -> bool:
    """Return whether a process has a file of this name open."""
    with suppress(FileNotFoundError):  # it was closed, or the process has ended
        return any(path.readlink().name == name for path in Path(f"/proc/{pid}/fd").iterdir())
    return False


def wait_for_requests(server: LoopbackServer, kind: str, count: int, process: subprocess.Popen[Any]) -> None:
    """Wait until a count in the statistics of the server reaches `count`, or until the process ends."""
    wait_until(lambda: server.stats()[kind] >= count or process.poll() is not None)


def start_nip_run(*arguments: str | Path, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """Start the command line in its own process; `wait_for_exit` returns its output."""
    process = subprocess.Popen(
        command(*arguments), cwd=cwd, env=environment(**variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    started.append(process)
    return process


def read_stderr_until(process: subprocess.Popen[str], text: str) -> str:
    """Read the stderr of a process until it contains `text`; leave the rest to `wait_for_exit`."""
    assert process.stderr is not None
    data = b""
    while text.encode() not in data:
        assert select.select([process.stderr], [], [], HANG_SECONDS)[0], f"expected {text!r} in {data.decode()}"
        chunk = os.read(process.stderr.fileno(), 65536)  # not the buffered `read`, which could take bytes after `text`
        assert chunk, f"expected {text!r} in {data.decode()}"
        data += chunk
    return data.decode()


def interrupt(process: subprocess.Popen[str]) -> str:
    """Send the first SIGINT to a run, wait until the run has handled it, and return its stderr so far."""
    process.send_signal(signal.SIGINT)
    return read_stderr_until(process, "press Ctrl-C again to stop immediately")


def wait_for_exit(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a process to end; return its exit code, stdout and stderr."""
    try:
        out, err = process.communicate(timeout=HANG_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()  # closes the pipes; if the garbage collector closed them later, another test would fail
        raise
    return process.returncode, out, err


def start_nip_run_silently(*arguments: str | Path, cwd: Path) -> subprocess.Popen[bytes]:
    """Start the command line in its own process and discard its output."""
    process = subprocess.Popen(
        command(*arguments), cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    started.append(process)
    return process


started: list[subprocess.Popen[Any]] = []
"""The processes that `start_nip_run` and `start_nip_run_silently` have started during a test."""


def kill_started() -> None:
    """Kill what a failed test has left running; otherwise a later test fails when the garbage collector finds it."""
    while started:
        process = started.pop()
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def wait_or_kill(process: subprocess.Popen[Any]) -> int | None:
    """Wait for a process to end and return its exit code; kill the process and return None if it hangs."""
    try:
        return process.wait(HANG_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()
        process.wait()
