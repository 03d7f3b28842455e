"""Marker files of folders that nip-run downloaded. A marker applies to all files in its folder and in subfolders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

MARKER = ".nip-run-fetched"
"""Name of the marker file, which nip-run writes to such a folder before all other files."""

RELEASE_MANIFEST = "release.json"
"""Name of the manifest in the folder of a release."""

DATA = "data"
"""Name of the run's folder within the folder of a downloaded release."""


def fetched_folder(folders: Iterable[Path]) -> Path | None:
    """Return the first folder with a marker among `folders` and the folders above them; None if there is none."""
    for folder in folders:
        above = folder.resolve()
        while not (above / MARKER).exists() and above != above.parent:
            above = above.parent
        if (above / MARKER).exists():
            return above
    return None
