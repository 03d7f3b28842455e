"""The class `Draft`: a release that is not redacted, checked and hashed yet; and `PublisherChoices`.

`runner.registry.bundles` and `runner.registry.components` build drafts, and `runner.registry.publishing` turns them
into releases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.documents.releases.bundle import Bundle, Content
from runner.documents.releases.limits import DEFAULT_LIMITS, Limits
from runner.documents.releases.manifest import FileSource, Release


@dataclass(frozen=True)
class PublisherChoices:
    """The publisher's choices for a release: its name, description, license and visibility."""

    owner: str
    version: str = "1"
    name: str | None = None
    """Name of the release; None means the run id in lower case."""
    description: str = ""
    licence: str | None = None
    dataset_licence: str | None = None
    """The license of a run's dataset; None means `licence`. With `none` only the hashes of the rows are published."""
    labels_licence: str | None = None
    """The license of the labels of people; None leaves them out."""
    visibility: str = "public"
    child_of: str | None = None
    """The release that this one is based on, `KIND/OWNER/NAME@VERSION`; None means the release that was played."""
    child_of_sha256: str | None = None
    """The hash of the manifest of `child_of`."""
    references: Mapping[str, str] = field(default_factory=dict)
    """The references of the runs that are published together, by run id. Links between them need these."""
    registry_address: str | None = None
    """The address of the registry. Links name the releases that were published there earlier."""
    sources: Mapping[str, FileSource] | None = None
    """The sources of a run's files that `--pin` found; None means the sources recorded when the run started."""


@dataclass(frozen=True)
class Draft:
    """A release without the hashes of its files, and the contents of its files by path."""

    release: Release
    contents: Mapping[str, Content]
    notes: tuple[str, ...] = field(default=())
    """Messages for the publisher, such as which files are not in the release."""
    rebuilders: Mapping[str, Callable[[Release, Path], bytes]] = field(default_factory=dict)
    """Functions that build a file again from redacted data, by the file's path.

    They are called after redaction, because these files quote data that redaction may have changed. Each function gets
    the redacted release and a folder with its redacted files.
    """
    withheld: Mapping[str, Content] = field(default_factory=dict)
    """Files that are checked but not published, by path: the rows of a dataset whose license forbids publishing."""

    @property
    def all_contents(self) -> Mapping[str, Content]:
        """Files of the release by path, including the withheld ones."""
        return {**self.withheld, **self.contents}

    def bundle(self, limits: Limits = DEFAULT_LIMITS) -> Bundle:
        """Return the release with the hashes of its files. Raises as `Bundle.of`."""
        return Bundle.of(self.release, self.contents, limits)
