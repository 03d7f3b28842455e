"""By which code a run was made."""

from __future__ import annotations

import os
import subprocess


def git_state() -> tuple[str | None, bool | None]:
    """The commit of the working folder and whether it has uncommitted changes; (None, None) outside git."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ("git", *arguments), capture_output=True, text=True, timeout=5, check=False,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None, None
    changes = git("status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else bool(changes)
