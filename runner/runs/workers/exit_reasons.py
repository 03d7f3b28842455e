"""How a worker's process ended, in words."""

from __future__ import annotations

import signal
from typing import IO

from runner.base.redaction import redacted

_SAID_BYTES = 2000


def how_ended(code: int, said: IO[bytes]) -> str:
    """By its exit code, a signal's number below zero, and the last that it wrote to its stderr, which is closed."""
    last = "" if said.closed else _last_line(said)
    said.close()
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}" + (" (by hand, or out of memory)" if -code == signal.SIGKILL else "")
    return f"ended with exit code {code}" + (f": {last}" if last else "")


def _last_line(said: IO[bytes]) -> str:
    said.seek(0, 2)
    said.seek(max(said.tell() - _SAID_BYTES, 0))
    lines = said.read().decode("utf-8", "replace").strip().splitlines()
    return redacted(lines[-1]) if lines else ""
