"""The command line in a pseudo-terminal."""

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
from tests.support.processes import command, environment, until


def in_terminal(
    *words: str, cwd: Path, columns: int = 80, interrupted_when: Callable[[], bool] | None = None, **variables: str
) -> tuple[int, str]:
    """Run the command line in a pseudo-terminal; its exit code and all it wrote there.

    It gets a Ctrl-C as soon as `interrupted_when` is true.
    """
    parent, child = pty.openpty()
    termios.tcsetwinsize(child, (24, columns))
    try:
        process = subprocess.Popen(
            command(*words), cwd=cwd, env=environment(TERM="xterm", **variables), stdin=child, stdout=child,
            stderr=child,
        )  # fmt: skip
    finally:
        os.close(child)
    if interrupted_when is not None:
        Thread(target=_interrupt, args=(process, interrupted_when), daemon=True).start()
    seen = b""
    try:
        while piece := os.read(parent, 65536):
            seen += piece
    except OSError:
        pass  # how Linux says that the other side has closed
    finally:
        os.close(parent)
    return process.wait(HANG_SECONDS), seen.decode()


def _interrupt(process: subprocess.Popen[bytes], when: Callable[[], bool]) -> None:
    until(lambda: when() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
