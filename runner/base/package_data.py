"""Where the specs, prompts and protocols that travel with the package are, and how a named file is found."""

from __future__ import annotations

import os
from pathlib import Path

import runner

_PACKAGE = Path(runner.__file__).resolve().parent

PROTOCOLS = _PACKAGE / "game" / "protocols"

STARTER = _PACKAGE / "starter"
"""What `nip-run init` writes."""


def root() -> Path:
    """The folder that holds `specs/` and `prompts/`: inside an installed wheel, or the checkout."""
    packaged = _PACKAGE / "builtin_files"
    return packaged if packaged.is_dir() else _PACKAGE.parent


def folders() -> tuple[Path, ...]:
    """The folders of all files that travel with the package."""
    return (PROTOCOLS, root() / "specs", root() / "prompts")


def queries() -> Path:
    """The folder of the questions that can be asked by name."""
    return root() / "results" / "queries"


def find(name: str, folder: Path) -> Path | None:
    """A file or folder by the name a spec gives it: beside the spec, else among the built-in ones."""
    candidates = (folder / name, root() / "specs" / name, root() / name)
    return next((path for path in candidates if is_there(path)), None)


# `Path.exists` and its kin raise where a name is too long or the folder is closed to us; `os.path` says no.


def is_there(path: Path) -> bool:
    """Whether there is such a file or folder; no name is so odd that it cannot be asked for."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112


def unusable(path: Path) -> str | None:
    """Why nothing can be made at a path, whether or not something is there; None where something may be."""
    try:
        path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error.strerror)
    except ValueError:
        return "no file can have this name"
    return None
