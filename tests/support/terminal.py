"""Run the command line in a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import command, environment, wait_until


def run_in_terminal(
    *arguments: str, cwd: Path, columns: int = 80, interrupted_when: Callable[[], bool] | None = None, **variables: str
) -> tuple[int, str]:
    """Run the command line in a pseudo-terminal; return its exit code and output.

    Send a Ctrl-C as soon as `interrupted_when` returns true.
    """
    parent, child = pty.openpty()
    termios.tcsetwinsize(child, (24, columns))
    try:
        process = subprocess.Popen(
            command(*arguments), cwd=cwd, env=environment(TERM="xterm", **variables), stdin=child, stdout=child,
            stderr=child,
        )  # fmt: skip
    finally:
        os.close(child)
    if interrupted_when is not None:
        Thread(target=_interrupt, args=(process, interrupted_when), daemon=True).start()
    output = b""
    try:
        while chunk := os.read(parent, 65536):
            output += chunk
    except OSError:
        pass  # Linux raises this when the other side has closed
    finally:
        os.close(parent)
    return process.wait(HANG_SECONDS), output.decode()


def _interrupt(process: subprocess.Popen[bytes], when: Callable[[], bool]) -> None:
    wait_until(lambda: when() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
