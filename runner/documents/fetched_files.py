"""Files that were fetched from a registry: where they came from, and which files they may name.

A folder with a fetched release has a file `MARKER`, which is written before the release is unpacked. A file counts as
fetched if it is in such a folder, at any depth. A stranger wrote it, so it must not reach other files that the user can
read: it may name only files in that folder and files that ship with the package, after following links.
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

__all__ = [
    "MARKER",
    "describe_origin",
    "fetched_folder",
    "fetched_registry",
    "marker_bytes",
    "path_refusal",
    "read_marker",
]

MAX_MARKER = 64 << 10
MAX_ENTRIES = 20_000
"""Maximum number of files and folders in a folder that a fetched file names."""

_RELEASE = re.compile(r"[a-z]+/[a-z0-9._-]{1,100}/[a-z0-9._-]{1,100}@[a-z0-9._-]{1,100}")


def marker_bytes(release: str, sha256: str, address: str) -> bytes:
    """Return the content of the marker file for a release that was fetched from the registry at `address`."""
    return json.dumps({"release": release, "sha256": sha256, "where": address}, indent=2).encode() + b"\n"


def read_marker(folder: Path) -> Mapping[str, str] | None:
    """Return the `release` and `sha256` of a folder's marker file, or None if the marker is missing or invalid."""
    from runner.base.hashing import SHA256  # imports orjson, which would delay the help of commands

    try:
        with open_to_read(folder / MARKER) as file:
            content = json.loads(file.read(MAX_MARKER))
        origin = {"release": content["release"], "sha256": content["sha256"]}
        is_valid = _RELEASE.fullmatch(origin["release"]) and SHA256.fullmatch(origin["sha256"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return origin if is_valid else None


def fetched_registry(folder: Path) -> str | None:
    """Return the registry that a folder's marker names; None if there is none.

    It is for display only, because a stranger may have written the marker.
    """
    try:
        with open_to_read(folder / MARKER) as file:
            registry = json.loads(file.read(MAX_MARKER))["where"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return registry if isinstance(registry, str) and registry else None


def describe_origin(file: Path | None, root: Path) -> str:
    """Return how the spec in `file` depends on the fetched folder `root`, as a verb phrase for messages."""
    if file is None or fetched_folder([file.absolute().parent]) is not None:
        return "was downloaded"
    origin = read_marker(root)
    return f"uses the download {root if origin is None else origin['release']}"


def path_refusal(folder: Path, target: Path) -> str | None:
    """Return why a file in `folder` may not name the file or folder `target`, or None if it may.

    `target` need not exist.
    """
    root = fetched_folder([folder])
    if root is None:
        return None
    if not _is_within(target, root):
        return f"the path is outside {root}, and a downloaded file may only name files in its own folder"
    return _link_problem(target, root) if package_data.is_folder(target) else None


def _is_within(path: Path, root: Path) -> bool:
    try:
        real = path.resolve()
    except (OSError, ValueError, RuntimeError):  # an impossible file name, or a loop of links
        return False
    return any(real.is_relative_to(folder.resolve()) for folder in (root, *package_data.folders()))


def _link_problem(folder: Path, root: Path) -> str | None:
    """Return a message about a link in `folder` that leads out of `root`, or about too many files; else None."""
    entries = 0
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            entries += 1
            if path.is_symlink() and not _is_within(path, root):
                return f"{path} is a link to a file outside {root}, the folder of the fetched release; remove the link"
        if entries > MAX_ENTRIES:
            return f"{folder} contains more than {MAX_ENTRIES:,} files and folders, too many for a fetched release"
    return None
