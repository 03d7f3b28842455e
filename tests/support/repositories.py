"""Git repositories of a test's own, with a remote as far as git knows without asking it."""

from __future__ import annotations

import subprocess
from pathlib import Path

ADDRESS = "https://example.org/acme/games.git"
_WHO = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(("git", *_WHO, *words), cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def committed(folder: Path, *paths: str) -> str:
    """A repository of all that a folder holds, or of these paths; its commit."""
    git(folder, "init", "-q")
    git(folder, "add", *(paths or (".",)))
    git(folder, "commit", "-q", "-m", "all")
    return git(folder, "rev-parse", "HEAD")


def pushed(folder: Path, *paths: str, url: str = ADDRESS) -> str:
    """`committed`, and known to be on the remote: as it is after a push there."""
    commit = committed(folder, *paths)
    git(folder, "remote", "add", "origin", url)
    git(folder, "update-ref", "refs/remotes/origin/main", commit)
    return commit
