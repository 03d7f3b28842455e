"""Markers of folders whose files, at any depth, were fetched from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

MARKER = ".nip-run-fetched"
"""Name of the marker, which is the first file that is written to such a folder."""


def fetched_folder(folders: Iterable[Path]) -> Path | None:
    """Return the first folder with a marker among `folders` and their parents, or None."""
    for folder in folders:
        above = folder.resolve()
        while not (above / MARKER).exists() and above != above.parent:
            above = above.parent
        if (above / MARKER).exists():
            return above
    return None
