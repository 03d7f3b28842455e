"""Whether a folder is a registry: one that is misspelt, or is something else, must not look like an empty one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from runner.base.errors import ReleaseError
from runner.base.text import did_you_mean
from runner.documents.releases.reference import Kind
from runner.registry.transports.staging import INCOMING


def check_registry(folder: Path) -> None:
    """See that a folder is there, and holds releases, or nothing but a README.

    Raises:
        ReleaseError: it does not; with the registry that may be meant.
    """
    if not folder.exists():
        raise ReleaseError(f"no registry is at {folder}: there is no such folder{_nearest(folder)}")
    if not folder.is_dir():
        raise ReleaseError(f"no registry is at {folder}: that is a file")
    if not _has_releases(folder) and any(not _is_beside(name) for name in _names(folder)):
        inside = next((name for name in _names(folder) if _has_releases(folder / name)), None)
        hint = "" if inside is None else f"; did you mean {str(folder / inside)!r}?"
        raise ReleaseError(f"no registry is at {folder}: it holds other things, and no release{hint}")


def _has_releases(folder: Path) -> bool:
    """Whether there is a version of anything, or a publish began."""
    return (folder / INCOMING).is_dir() or any(
        _any_two_below(owner) for kind in Kind for owner in _folders(folder / kind)
    )


def _any_two_below(owner: Path) -> bool:
    return any(True for name in _folders(owner) for _ in _folders(name))


def _folders(folder: Path) -> Iterable[Path]:
    return (folder / name for name in _names(folder) if (folder / name).is_dir())


def _is_beside(name: str) -> bool:
    """What stands beside releases in a copy of a repository."""
    return name.upper().startswith(("README", "LICEN"))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(one.name for one in folder.iterdir() if not one.name.startswith("."))
    except OSError:
        return []


def _nearest(folder: Path) -> str:
    there = [name for name in _names(folder.parent) if _has_releases(folder.parent / name)]
    if not there:
        return ""
    return did_you_mean(folder.name, there) or (f"; did you mean {there[0]!r}?" if len(there) == 1 else "")
