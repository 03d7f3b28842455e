"""A release before its files are checked and hashed, and how it is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.documents.releases.bundle import Bundle, Content
from runner.documents.releases.limits import USUAL, Limits
from runner.documents.releases.manifest import FileSource, Release


@dataclass(frozen=True)
class Naming:
    """The name and terms of a release."""

    owner: str
    version: str = "1"
    name: str | None = None
    """Name of the release; None means the id of the run in lower case."""
    description: str = ""
    licence: str | None = None
    dataset_licence: str | None = None
    """The license of a run's dataset, if it differs; with `none` only the hashes of its rows are published."""
    visibility: str = "public"
    child_of: str | None = None
    """The release that this one is based on, `KIND/OWNER/NAME@VERSION`; None means the one the run was played from."""
    child_of_sha256: str | None = None
    """The hash of that release's manifest."""
    names: Mapping[str, str] = field(default_factory=dict)
    """References of the runs that are published together, by run id, for links to them."""
    registry: str | None = None
    """The address of the registry, for links to releases that were published there earlier."""
    sources: Mapping[str, FileSource] | None = None
    """The sources of a run's files that `--pin` found; None: the sources recorded when the run began."""


@dataclass(frozen=True)
class Draft:
    """A release without the hashes of its files, and their contents by path."""

    release: Release
    contents: Mapping[str, Content]
    notes: tuple[str, ...] = field(default=())
    """Messages for the publisher, such as what is not in it."""
    derived: Mapping[str, Callable[[Release, Path], bytes]] = field(default_factory=dict)
    """Files that are built from the others, by path: they are rebuilt from the redacted release in a folder."""
    withheld: Mapping[str, Content] = field(default_factory=dict)
    """Files that are not published but that the checks read, by path: rows that must not be published."""

    @property
    def all_contents(self) -> Mapping[str, Content]:
        """Files of the release by path, including the withheld ones."""
        return {**self.withheld, **self.contents}

    def bundle(self, limits: Limits = USUAL) -> Bundle:
        """Return the release with the hashes of its files. Raises as `Bundle.of`."""
        return Bundle.of(self.release, self.contents, limits)
