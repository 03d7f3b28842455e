"""The interface `Transport`. A transport lists, reads and adds the files of a registry at one kind of address.

There are transports for folders, git repositories, the Hugging Face Hub and servers. The class `Registry` uses them. At
every address a registry is a tree of files:

    {kind}/{owner}/{name}/{version}/release.sha256   the hash of the manifest, written last: a release has this file
    {kind}/{owner}/{name}/{version}/release.json     the manifest
    {kind}/{owner}/{name}/{version}/...              the files in the manifest, by their paths there
    {kind}/{owner}/{name}/{version}/yanked/yanked.json       the reason, if the release was yanked (withdrawn)
    {kind}/{owner}/{name}/{version}/signature/release.json.sig   the signature of the manifest, if it is signed
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
    """The new commit, if the registry has commits."""
    note: str | None = None
    """A note for the user, such as the pull request that has to be merged."""
    proposed_at: str | None = None
    """The address where the releases are until their pull request is merged; None if everyone can see them already."""


@dataclass(frozen=True)
class IndexedRelease:
    """A release in a server's list of releases."""

    folder: str
    """KIND/OWNER/NAME/VERSION."""
    sha256: str
    """The hash of its manifest."""
    yanked: bytes | None
    """The content of its `yanked.json`; None if the release has no such file."""
    signed: bool
    tier: str = ""
    """The level of verification that the server states for a run; empty if it states none."""


class _Transport(Protocol):
    """Access to the files of one registry.

    A folder is read in its current state. A repository is read at one commit: the newest one, or the requested one.
    """

    @property
    def address(self) -> str:
        """The registry's address for messages, locks and links, without secrets and without a commit."""

    def open(self, path: str) -> IO[bytes]:
        """Open a file to read.

        Raises:
            NotFoundError: there is no such file.
            ReleaseError: the file cannot be read, or is not a regular file.
        """

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> AddResult:
        """Add folders one after the other. A folder's files have paths inside the folder.

        Readers never see an incomplete folder. If a call is interrupted, the same call again adds the missing folders.

        Raises:
            TakenError: a folder exists already, with any content.
            ReleaseError: a folder cannot be written; readers do not see it.
        """

    def close(self) -> None:
        """Close connections, and remove temporary copies."""


class FileTransport(_Transport, Protocol):
    """A transport that lists files (of a folder or repository)."""

    def list_files(self, prefix: str = "") -> Iterator[StoredFile]:
        """Yield all completely written files whose path starts with `prefix`, in any order.

        Raises:
            ReleaseError: the registry cannot be read.
        """


@runtime_checkable
class BulkTransport(_Transport, Protocol):
    """A transport that lists releases, and can fetch many files in one request (a server's).

    The hashes in its answers are checked in the same way as checksum files.
    """

    def list_releases(self, prefix: str = "") -> Iterator[IndexedRelease]:
        """Yield all releases whose path KIND/OWNER/NAME/VERSION/ starts with `prefix`, in the order of publication.

        Raises:
            ReleaseError: the registry cannot be read.
        """

    def plan_prefetch(self, paths: Sequence[str]) -> None:
        """State which files will be opened soon, in this order, so that small files can be fetched together.

        Files that do not exist are allowed.
        """


Transport = FileTransport | BulkTransport
"""Access to the files of one registry."""
