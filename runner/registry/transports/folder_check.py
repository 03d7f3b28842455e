"""Check that a folder is a registry, so that commands do not read a misspelled or unrelated folder as an empty one."""

from __future__ import annotations

from pathlib import Path

from runner.base.errors import ReleaseError
from runner.base.text import did_you_mean
from runner.documents.releases.reference import Kind
from runner.registry.transports.staging import INCOMING


def check_registry(folder: Path) -> None:
    """Check that a folder exists, and has releases or is empty (except for a README and a license).

    Raises:
        ReleaseError: the folder is not a registry; the message suggests a registry next to the folder.
    """
    if not folder.exists():
        hint = _suggest_registry(folder) or "; check the path"
        raise ReleaseError(f"no registry is at {folder}: there is no such folder{hint}")
    if not folder.is_dir():
        raise ReleaseError(f"no registry is at {folder}, because it is a file; name a folder")
    if not _has_releases(folder) and any(not _is_allowed_file(name) for name in _names(folder)):
        inside = next((name for name in _names(folder) if _has_releases(folder / name)), None)
        hint = "; check the path" if inside is None else f"; did you mean {str(folder / inside)!r}?"
        raise ReleaseError(f"no registry is at {folder}: the folder has other files, but no release{hint}")


def _has_releases(folder: Path) -> bool:
    """Return whether a folder has a release, or the folder of an unfinished publish."""
    versions = (path for kind in Kind for path in folder.glob(f"{kind}/[!.]*/[!.]*/[!.]*"))  # KIND/OWNER/NAME/VERSION
    return (folder / INCOMING).is_dir() or any(path.is_dir() for path in versions)


def _is_allowed_file(name: str) -> bool:
    """Return whether an empty registry may have a file with this name: new repositories have a README and a license."""
    return name.upper().startswith(("README", "LICEN"))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return []


def _suggest_registry(folder: Path) -> str:
    names = [name for name in _names(folder.parent) if _has_releases(folder.parent / name)]
    if not names:
        return ""
    return did_you_mean(folder.name, names) or (f"; did you mean {names[0]!r}?" if len(names) == 1 else "")
