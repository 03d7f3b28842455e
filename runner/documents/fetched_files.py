"""Files that were fetched from elsewhere: where they lie, where from, and which files they may name.

Whoever fetches something puts `MARKER` into the folder that it is unpacked into, before anything else. A file is
fetched if it lies in such a folder, at any depth. What it names may be in that folder, or travel with the package, and
nowhere else, links included: it is a stranger's, and may name any file that its user can read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from runner.base import package_data
from runner.base.storage.fetched_markers import MARKER, fetched_folder
from runner.base.storage.safe_files import open_to_read

__all__ = ["MARKER", "fetched_folder", "from_elsewhere", "got_from", "marker", "refused", "where_from"]

MAX_MARKER = 64 << 10
MAX_ENTRIES = 20_000
"""A folder that a fetched file names has no more files than this."""

_RELEASE = re.compile(r"[a-z]+/[a-z0-9._-]{1,100}/[a-z0-9._-]{1,100}@[a-z0-9._-]{1,100}")
_HEX = re.compile(r"[0-9a-f]{64}")


def marker(release: str, sha256: str, where: str) -> bytes:
    """What stands in the marker of a folder that a release was got into."""
    return json.dumps({"release": release, "sha256": sha256, "where": where}, indent=2).encode() + b"\n"


def got_from(folder: Path) -> Mapping[str, str] | None:
    """The release that was got into a folder with the marker, and its hash; None where its marker names none."""
    try:
        with open_to_read(folder / MARKER) as file:
            said = json.loads(file.read(MAX_MARKER))
        found = {"release": said["release"], "sha256": said["sha256"]}
        is_one = _RELEASE.fullmatch(found["release"]) and _HEX.fullmatch(found["sha256"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if is_one else None


def where_from(folder: Path) -> str | None:
    """The registry that the marker of a folder names, to be shown and never asked: others may have written it."""
    try:
        with open_to_read(folder / MARKER) as file:
            said = json.loads(file.read(MAX_MARKER))["where"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return said if isinstance(said, str) and said else None


def from_elsewhere(file: Path | None, root: Path) -> str:
    """How a spec in this file has to do with the folder that something was fetched into, as `came from elsewhere`."""
    if file is None or fetched_folder([file.absolute().parent]) is not None:
        return "came from elsewhere"
    said = got_from(root)
    return f"uses what came from elsewhere, {root if said is None else said['release']}"


def refused(folder: Path, named: Path) -> str | None:
    """Why a file in a folder may not name another file, or folder; None where it may.

    The other one need not be there.
    """
    root = fetched_folder([folder])
    if root is None:
        return None
    if not _is_within(named, root):
        return f"it leads out of {root}, where what was fetched lies; what came from elsewhere may name no file there"
    return _link_out(named, root) if package_data.is_folder(named) else None


def _is_within(path: Path, root: Path) -> bool:
    try:
        real = path.resolve()
    except (OSError, ValueError, RuntimeError):  # no file can have this name, or its links go in a circle
        return False
    return any(real.is_relative_to(one.resolve()) for one in (root, *package_data.folders()))


def _link_out(folder: Path, root: Path) -> str | None:
    """A link below a folder that leads out of the root, told."""
    seen = 0
    for at, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(at, name)
            seen += 1
            if path.is_symlink() and not _is_within(path, root):
                return f"{path} is a link that leads out of {root}, where what was fetched lies; remove it"
        if seen > MAX_ENTRIES:
            return f"it holds more than {MAX_ENTRIES:,} files"
    return None
