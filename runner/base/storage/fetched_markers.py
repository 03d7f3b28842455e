"""Which files were fetched from elsewhere: those in a folder with the marker, at any depth."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

MARKER = ".nip-run-fetched"
"""In the folder that something was fetched into, before anything else is."""


def fetched_folder(folders: Iterable[Path]) -> Path | None:
    """The first folder with the marker among these and those above them."""
    for folder in folders:
        above = folder.resolve()
        while not (above / MARKER).exists() and above != above.parent:
            above = above.parent
        if (above / MARKER).exists():
            return above
    return None
