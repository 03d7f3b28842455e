"""The command line, and Python, in processes of their own: run to the end, or watched, signalled and waited for."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from runner.cli.main import main
from tests.support import guard
from tests.support.servers.client import Loopback


def environment(**variables: str) -> dict[str, str]:
    """An environment with nothing of the person's own: no key, no proxy, no colour settings; and with the guard."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, **guard.variables(), **variables}


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "runner", *map(str, words)]


def nip_run(
    *words: str | Path, cwd: Path, timeout: float = 180.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        command(*words), cwd=cwd, env=environment(**variables), capture_output=True, text=True, timeout=timeout,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def nip_run_here(*words: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process: for tests that ask what it does and says, and no process of its own.

    A process takes a second of CPU to import what a run needs, which was most of what such a test cost.
    """
    out, err = io.StringIO(), io.StringIO()
    settings = patch.dict(os.environ, environment(**variables), clear=True)
    with settings, chdir(cwd), redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def python(
    code: str, *arguments: str | Path, cwd: Path | None = None, timeout: float = 180.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=cwd, env=environment(**variables), capture_output=True,
        text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for what must come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0.01)


def until_asked(server: Loopback, kind: str, count: int, process: subprocess.Popen[Any]) -> None:
    """Wait for so many of what the server counts, or for the end of the process that asks."""
    until(lambda: server.stats()[kind] >= count or process.poll() is not None)


def started(*words: str | Path, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """What it says is kept for `ended`."""
    return subprocess.Popen(
        command(*words), cwd=cwd, env=environment(**variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, preexec_fn=_as_at_a_terminal,
    )  # fmt: skip


def _as_at_a_terminal() -> None:
    """A shell has what it starts in the background ignore Ctrl-C, and that would be handed down to here."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ended(process: subprocess.Popen[str], seconds: float = 120.0) -> tuple[int, str, str]:
    """Its exit code and what it said on stdout and stderr."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, out, err


def started_silent(*words: str | Path, cwd: Path) -> subprocess.Popen[bytes]:
    """What it says is dropped."""
    return subprocess.Popen(
        command(*words), cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, preexec_fn=_as_at_a_terminal,
    )  # fmt: skip


def ended_or_killed(process: subprocess.Popen[Any], seconds: float) -> int | None:
    """The exit code; None where it had to be killed."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()
        process.wait()
