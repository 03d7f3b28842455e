"""Locations of the specs, prompts and protocols that ship with the package, and the lookup of files by name."""

from __future__ import annotations

import os
from pathlib import Path

import runner

_PACKAGE = Path(runner.__file__).resolve().parent

PROTOCOLS = _PACKAGE / "game" / "protocols"

ANALYZERS = _PACKAGE / "analysis" / "analyzers"

STARTER = _PACKAGE / "starter"
"""The files that `nip-run init` writes."""


def root() -> Path:
    """Return the folder that holds `specs/` and `prompts/`: inside an installed wheel, or the checkout."""
    packaged = _PACKAGE / "builtin_files"
    return packaged if packaged.is_dir() else _PACKAGE.parent


def folders() -> tuple[Path, ...]:
    """Return the folders of all files that ship with the package."""
    return (PROTOCOLS, root() / "specs", root() / "prompts")


def queries() -> Path:
    """Return the folder of the ready-made SQL queries."""
    return root() / "results" / "queries"


def find_file(name: str, folder: Path) -> Path | None:
    """Return the path of a file or folder that a spec names: next to the spec, otherwise built in. None if missing."""
    candidates = (folder / name, root() / "specs" / name, root() / name)
    return next((path for path in candidates if exists(path)), None)


# The functions below use `os.path`, because the methods of `Path` raise if a name is too long, or if the folder is not
# readable.


def exists(path: Path) -> bool:
    """Return whether the file or folder exists; an invalid name does not exist."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112


def why_unusable(path: Path) -> str | None:
    """Return why nothing can be created at `path`, or None if the path is usable, existing or not."""
    try:
        path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error.strerror)
    except ValueError:
        return "the path contains a character that no file name may contain"
    return None
