"""What git says of a folder: a few questions that are bounded in time, run nothing of the repository's, and ask nobody.

A repository may be a stranger's, or be told by its own configuration to run programs: no hook, monitor or filter is
run here, nothing is fetched, and what a hook of another repository sets in the environment is not heard.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

SECONDS = 5.0
"""After so long git is not waited for."""

_SAFELY = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-c", "protocol.allow=never")


class GitState:
    """Questions to git about one folder, `SECONDS` in all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._until = time.monotonic() + SECONDS

    def __call__(self, *arguments: str) -> bytes | None:
        """What git answers; None where it fails, is not there, or takes too long."""
        try:
            done = subprocess.run(
                ("git", *_SAFELY, "-C", str(self._folder), *arguments), capture_output=True, check=False,
                timeout=max(self._until - time.monotonic(), 0.01), env=_environment(), stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def line(self, *arguments: str) -> str | None:
        """Likewise, as text without its line end."""
        answer = self(*arguments)
        return None if answer is None else answer.decode(errors="replace").strip()

    @property
    def is_late(self) -> bool:
        """Whether its time is used up."""
        return time.monotonic() >= self._until


def _environment() -> dict[str, str]:
    # What a hook of another repository sets would make it that one.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
