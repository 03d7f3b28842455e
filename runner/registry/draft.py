"""A release that is being made: what is said of it, and its files, before they are checked and hashed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.documents.releases.bundle import Bundle, Content
from runner.documents.releases.limits import USUAL, Limits
from runner.documents.releases.manifest import FileSource, Release


@dataclass(frozen=True)
class Naming:
    """How a release is to be called, and under which terms."""

    owner: str
    version: str = "1"
    name: str | None = None
    """None: of a run, its id in lower case."""
    description: str = ""
    licence: str | None = None
    dataset_licence: str | None = None
    """Of a run's dataset, where it is another than `licence`; `none`: its rows are left out, their hashes stay."""
    visibility: str = "public"
    child_of: str | None = None
    """The release that it was made from, `KIND/OWNER/NAME@VERSION`; None: the one that the run was got from, if any."""
    child_of_sha256: str | None = None
    """Of that release's manifest."""
    sources: Mapping[str, FileSource] | None = None
    """The sources of a run's files that `--pin` found; None: the sources recorded when the run began."""


@dataclass(frozen=True)
class Draft:
    """A release without its files' hashes, and the content of each file by path."""

    release: Release
    contents: Mapping[str, Content]
    notes: tuple[str, ...] = field(default=())
    """What whoever publishes it should know, such as what was left out."""
    made: Mapping[str, Callable[[Release, Path], bytes]] = field(default_factory=dict)
    """Files by their paths in it that say in words what the others say: each is made again of the release and its
    files, in a folder, once these are cleaned."""
    kept: Mapping[str, Content] = field(default_factory=dict)
    """Files by their paths in it that stay here, and that the checks read: rows that may not be passed on."""

    @property
    def all_contents(self) -> Mapping[str, Content]:
        """Those of the release, and those that stay here."""
        return {**self.kept, **self.contents}

    def bundle(self, limits: Limits = USUAL) -> Bundle:
        """With its files hashed. Raises as `Bundle.of`."""
        return Bundle.of(self.release, self.contents, limits)
