"""The command line, and Python, in processes of their own: run to the end, or watched, signalled and waited for."""

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
from tests.support.servers.client import Loopback


def environment(**variables: str) -> dict[str, str]:
    """An environment with nothing of the person's own: no key, no proxy, no colour settings; and with the guard."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, **guard.variables(), **variables}


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "runner", *map(str, words)]


def nip_run(
    *words: str | Path, cwd: Path, timeout: float = HANG_SECONDS, **variables: str
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
    code: str, *arguments: str | Path, cwd: Path | None = None, timeout: float = HANG_SECONDS, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=cwd, env=environment(**variables), capture_output=True,
        text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def until(condition: Callable[[], bool]) -> None:
    """Poll until `condition` is true. The pauses grow with the wait, to leave CPU time to what the test waits for."""
    started = time.monotonic()
    while not condition():
        waited = time.monotonic() - started
        assert waited < HANG_SECONDS, "what the test waits for did not happen"
        time.sleep(min(max(0.01, waited / 20), 0.5))


def has_open(pid: int, name: str) -> bool:
    """Whether a process has a file of this name open."""
    with suppress(FileNotFoundError):  # it was closed, or the process has ended
        return any(path.readlink().name == name for path in Path(f"/proc/{pid}/fd").iterdir())
    return False


def until_asked(server: Loopback, kind: str, count: int, process: subprocess.Popen[Any]) -> None:
    """Wait for so many of what the server counts, or for the end of the process that asks."""
    until(lambda: server.stats()[kind] >= count or process.poll() is not None)


def started(*words: str | Path, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """What it says is kept for `ended`."""
    return subprocess.Popen(
        command(*words), cwd=cwd, env=environment(**variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def read_stderr_until(process: subprocess.Popen[str], text: str) -> str:
    """Read what a process writes to stderr until `text` has come, past any buffer so that `ended` reads the rest."""
    assert process.stderr is not None
    read = b""
    while text.encode() not in read:
        assert select.select([process.stderr], [], [], HANG_SECONDS)[0], f"no {text!r} in {read.decode()}"
        piece = os.read(process.stderr.fileno(), 65536)
        assert piece, f"no {text!r} in {read.decode()}"
        read += piece
    return read.decode()


def interrupt(process: subprocess.Popen[str]) -> str:
    """Send the first SIGINT to a run that plays and wait until the run has handled it; its stderr so far."""
    process.send_signal(signal.SIGINT)
    return read_stderr_until(process, "press Ctrl-C again to stop immediately")


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit code and what it said on stdout and stderr."""
    try:
        out, err = process.communicate(timeout=HANG_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()  # closes its pipes, which would fail whichever test comes when they are collected
        raise
    return process.returncode, out, err


def started_silent(*words: str | Path, cwd: Path) -> subprocess.Popen[bytes]:
    """What it says is dropped."""
    return subprocess.Popen(
        command(*words), cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


def ended_or_killed(process: subprocess.Popen[Any]) -> int | None:
    """The exit code; None where it hung and had to be killed."""
    try:
        return process.wait(HANG_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()
        process.wait()
