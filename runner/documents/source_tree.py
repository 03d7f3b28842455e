"""Decide which files belong to a spec's project, so that error messages may quote them.

A spec may come from a stranger and name any file that the user can read, and users copy messages into mails and logs.
For a file outside the project, a message says only the place and kind of a mistake; it never quotes the file. The
project of a spec is

    the git checkout or the current folder that has the spec in it (the inner one, if both have);
    otherwise the folder of the spec.

The home folder and the folders above it are never a project, even if they are a git checkout. Files that ship with the
package and files that the user names on the command line may always be quoted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from runner.base import package_data


@dataclass(frozen=True)
class ProjectTree:
    """The folders whose files error messages may quote."""

    root: Path
    extra_folders: list[Path] = field(default_factory=list)
    """Folders of installed releases that the spec names: published files are not secret."""

    @classmethod
    def of(cls, spec: Path) -> Self:
        """Return the project of a spec file, after following symbolic links."""
        folder = spec.absolute().parent.resolve()
        return cls(next(filter(_is_project, ancestors(folder)), folder))

    def is_in_release(self, path: Path) -> bool:
        """Return whether a file is in an installed release, which is one of the extra folders."""
        return any(path.resolve().is_relative_to(root) for root in self.extra_folders)

    def contains(self, path: Path) -> bool:
        """Return whether a file, after following links, is in the project or ships with the package."""
        real = path.resolve()
        return any(real.is_relative_to(root) for root in (self.root, *self.extra_folders, *package_data.folders()))


def ancestors(folder: Path) -> Iterator[Path]:
    """Yield a folder and all folders above it."""
    yield folder
    while folder != folder.parent:
        folder = folder.parent
        yield folder


def _is_project(folder: Path) -> bool:
    """Return whether a folder is a project: the current folder or a git checkout, but not the home folder or above."""
    return (folder == _current_folder() or (folder / ".git").exists()) and not _home_folder().is_relative_to(folder)


def _current_folder() -> Path | None:
    try:
        return Path.cwd().resolve()
    except OSError:  # the current folder was removed
        return None


def _home_folder() -> Path:
    try:
        return Path.home().resolve()
    except RuntimeError:  # the user has no home folder: then only the root of the file system is excluded
        return Path("/")
