"""Where a spec came from: the user's own files are trusted, and what was fetched from elsewhere is not.

Whoever fetches a spec puts `MARKER` into the folder that it is unpacked into, before anything else. A file is fetched
if it lies in such a folder, at any depth; a spec is, if any of its files is. To trust one for good is to copy it out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

MARKER = ".nip-run-fetched"


def fetched_folder(folders: Iterable[Path]) -> Path | None:
    """The first folder with the marker among these and those above them."""
    for folder in folders:
        above = folder.resolve()
        while not (above / MARKER).exists() and above != above.parent:
            above = above.parent
        if (above / MARKER).exists():
            return above
    return None
