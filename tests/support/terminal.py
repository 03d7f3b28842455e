"""The command line in a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

from tests.support.processes import command, environment


def in_terminal(*words: str, cwd: Path, **variables: str) -> tuple[int, str]:
    """Run the command line in a pseudo-terminal; its exit code and all it wrote there."""
    parent, child = pty.openpty()
    try:
        process = subprocess.Popen(
            command(*words), cwd=cwd, env=environment(TERM="xterm", **variables), stdin=child, stdout=child,
            stderr=child,
        )  # fmt: skip
    finally:
        os.close(child)
    seen = b""
    try:
        while piece := os.read(parent, 65536):
            seen += piece
    except OSError:
        pass  # how Linux says that the other side has closed
    finally:
        os.close(parent)
    return process.wait(30), seen.decode()
