"""Where a spec came from: the user's own files are trusted, and what was fetched from elsewhere is not.

Whoever fetches a spec puts `MARKER` into the folder that it is unpacked into, before anything else. A file is fetched
if it lies in such a folder, at any depth; a spec is, if any of its files is. To trust one for good is to copy it out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from runner.storage.files import read_bounded

MARKER = ".nip-run-fetched"
MAX_MARKER = 1 << 16


def fetched_folder(folders: Iterable[Path]) -> Path | None:
    """The first folder with the marker among these and those above them."""
    for folder in folders:
        above = folder.resolve()
        while not (above / MARKER).exists() and above != above.parent:
            above = above.parent
        if (above / MARKER).exists():
            return above
    return None


def release_of(folder: Path) -> Mapping[str, str]:
    """The release that a fetched folder was unpacked from, by its name and the hash of its manifest.

    Empty where the marker says none.
    """
    with suppress(OSError, ValueError):
        said = json.loads(read_bounded(folder / MARKER, MAX_MARKER))
        if isinstance(said, dict) and isinstance(said.get("release"), str) and isinstance(said.get("sha256"), str):
            return {"release": said["release"], "sha256": said["sha256"]}
    return {}
