"""The interface of the places that store registries: list, read and add files. All other code is the same for all.

In every place a registry is a tree of files:

    {kind}/{owner}/{name}/{version}/release.sha256   the hash of the manifest, written last: a release has this file
    {kind}/{owner}/{name}/{version}/release.json     the manifest
    {kind}/{owner}/{name}/{version}/...              the files that it lists, by their own paths
    {kind}/{owner}/{name}/{version}/yanked/yanked.json       why it was yanked, if it was
    {kind}/{owner}/{name}/{version}/signature/...    the signature of the manifest, if it is signed
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol, runtime_checkable

from runner.documents.releases.bundle import Content


@dataclass(frozen=True)
class StoredFile:
    """A file of a registry."""

    path: str
    size: int | None
    """The size in bytes; None if it is not known before the file is read."""


@dataclass(frozen=True)
class AddResult:
    """The result of a publish."""

    revision: str | None = None
    """The commit, if the place has commits."""
    note: str | None = None
    """A note for the user, such as the pull request that has to be merged."""
    proposed_at: str | None = None
    """The address where it can be read until it is merged; None if everyone can see it already."""


@dataclass(frozen=True)
class IndexedRelease:
    """A release in the index of a place."""

    folder: str
    """KIND/OWNER/NAME/VERSION."""
    sha256: str
    """The hash of its manifest."""
    yanked: bytes | None
    """The content of its `yanked.json`; None if it has none."""
    signed: bool
    vouched: str = ""
    """The level of verification that the place states for a run; empty if it states none."""


class Transport(Protocol):
    """A place that stores a registry.

    A folder is read in its current state. A repository is read at one commit: the newest one, or the requested one.
    """

    @property
    def where(self) -> str:
        """The address of the place for messages, locks and links, without secrets and without a commit."""

    def list_files(self, prefix: str = "") -> Iterator[StoredFile]:
        """Yield all files whose path starts with `prefix`, in any order, without incompletely written ones.

        Raises:
            ReleaseError: the place cannot be read.
        """

    def open(self, path: str) -> IO[bytes]:
        """Open a file to read.

        Raises:
            NotPublished: there is no such file.
            ReleaseError: it cannot be read, or is not a regular file.
        """

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> AddResult:
        """Add folders with their files, by paths inside them, in this order. Readers see a complete folder or none.

        If the call is interrupted, readers see nothing of it, and the same call again completes it.

        Raises:
            TakenError: a folder exists already, with any content.
            ReleaseError: it cannot be written; readers see nothing of it.
        """

    def close(self) -> None:
        """Close connections, and remove temporary copies."""


@runtime_checkable
class BulkTransport(Protocol):
    """A transport that can list releases and send many files at once. Its answers are checked like files."""

    def index(self, prefix: str = "") -> Iterator[IndexedRelease]:
        """Yield all releases whose folder's path, with a slash at its end, starts with `prefix`, in any order.

        Raises:
            ReleaseError: the place cannot be read.
        """

    def expect(self, paths: Sequence[str]) -> None:
        """Announce files that are opened soon, in this order, to fetch small ones together. They may be missing."""
