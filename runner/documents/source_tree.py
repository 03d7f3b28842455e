"""Which files are a spec's own, so that messages may show what stands in them.

A spec may come from a stranger, and may name any file that its user can read. Messages are copied into mails and logs,
so of a file that is none of the spec's own they say where something is wrong and of what kind, and never what stands
there. A spec's own are the files below

    its git checkout, or the current folder where the spec is below that: the nearer one;
    else the folder that it is in.

The home folder and what is above it is nobody's project, whatever git says: there the spec's own folder counts. The
files that travel with the package are always shown, and so is what the user names on the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from runner.base import package_data


@dataclass(frozen=True)
class OwnTree:
    """The folder that holds a spec's own files."""

    root: Path
    also: list[Path] = field(default_factory=list)
    """The folders of installed releases that the spec names: what is published is nobody's secret."""

    @classmethod
    def of(cls, spec: Path) -> Self:
        """The tree of a spec's file, wherever links in its name lead."""
        folder = spec.absolute().parent.resolve()
        return cls(next(filter(_is_project, upwards(folder)), folder))

    def is_of_release(self, path: Path) -> bool:
        """Whether a file is in one of `also`."""
        return any(path.resolve().is_relative_to(root) for root in self.also)

    def holds(self, path: Path) -> bool:
        """Whether a file is in the tree, or travels with the package; a link is where it leads."""
        real = path.resolve()
        return any(real.is_relative_to(root) for root in (self.root, *self.also, *package_data.folders()))


def upwards(folder: Path) -> Iterator[Path]:
    """A folder and all above it."""
    yield folder
    while folder != folder.parent:
        folder = folder.parent
        yield folder


def _is_project(folder: Path) -> bool:
    """Whether a folder is a project: the current folder or a git checkout, not the home folder or one above it."""
    return (folder == _current() or (folder / ".git").exists()) and not _home().is_relative_to(folder)


def _current() -> Path | None:
    try:
        return Path.cwd().resolve()
    except OSError:  # it was removed
        return None


def _home() -> Path:
    try:
        return Path.home().resolve()
    except RuntimeError:  # nobody's: then at least the whole file system is no project
        return Path("/")
