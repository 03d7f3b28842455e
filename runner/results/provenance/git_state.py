"""Run git commands that read a repository, with a time limit, and without network access or code of the repository.

Somebody else's repository may be configured to run programs. So no hook, monitor or filter runs, nothing is fetched,
and environment variables that a hook of another repository has set are removed.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

SECONDS = 5.0
"""The time limit for all commands in one folder together."""

_SAFE_OPTIONS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-c", "protocol.allow=never")


class GitState:
    """The git repository of a folder. Calling it runs a git command; all commands together may take `SECONDS`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._deadline = time.monotonic() + SECONDS

    def __call__(self, *arguments: str) -> bytes | None:
        """Return git's output; None if git fails, is missing or takes too long."""
        try:
            process = subprocess.run(
                ("git", *_SAFE_OPTIONS, "-C", str(self._folder), *arguments), capture_output=True, check=False,
                timeout=max(self._deadline - time.monotonic(), 0.01), env=_environment(), stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None
        return process.stdout if process.returncode == 0 else None

    def line(self, *arguments: str) -> str | None:
        """Return git's output as text without the line end; None if git fails, is missing or takes too long."""
        answer = self(*arguments)
        return None if answer is None else answer.decode(errors="replace").strip()

    @property
    def is_late(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() >= self._deadline


def _environment() -> dict[str, str]:
    # Variables set by a hook of another repository would redirect git to that repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**variables, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
