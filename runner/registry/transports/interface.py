"""What a registry needs of the place where it lives: three calls. Everything else is the same over all of them.

A registry is a tree of files, whatever holds it:

    {kind}/{owner}/{name}/{version}/release.sha256   the hash of the manifest; once it is there, the release is
    {kind}/{owner}/{name}/{version}/release.json     the manifest
    {kind}/{owner}/{name}/{version}/...              the files that it lists, by their own paths
    {kind}/{owner}/{name}/{version}/yanked/yanked.json       why it was yanked, where it was
    {kind}/{owner}/{name}/{version}/signature/...    of the manifest, where it was signed
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol, runtime_checkable

from runner.documents.releases.bundle import Content


@dataclass(frozen=True)
class Stored:
    """A file of a registry."""

    path: str
    size: int | None
    """In bytes; None where the place does not say before it is read."""


@dataclass(frozen=True)
class Added:
    """What became of a publish: where it can be looked at, and what is left to do so that others see it."""

    revision: str | None = None
    """The commit, where the place has commits."""
    note: str | None = None
    """Such as the branch or pull request that is to be merged."""
    proposed_at: str | None = None
    """Where it can be read until others have merged it; None where everybody sees it already."""


@dataclass(frozen=True)
class Indexed:
    """A release, as a place that keeps an index of its releases lists it."""

    folder: str
    """KIND/OWNER/NAME/VERSION."""
    sha256: str
    """Of its manifest."""
    yanked: bytes | None
    """What stands in its `yanked.json`; None where it has none."""
    signed: bool
    vouched: str = ""
    """How far the place itself says that it has checked a run; "": it says nothing."""


class Transport(Protocol):
    """A place that holds a registry, opened at one moment: what it reads does not change under it.

    A folder is read as it stands. A repository is read at the commit that was its newest, or was asked for.
    """

    @property
    def where(self) -> str:
        """The place, as messages, locks and links name it: without any secret, and pinned to nothing."""

    def stored(self, prefix: str = "") -> Iterator[Stored]:
        """All files whose path begins so, in any order. What is half written is not among them.

        Raises:
            ReleaseError: the place cannot be read.
        """

    def open(self, path: str) -> IO[bytes]:
        """A file to read.

        Raises:
            NotPublished: there is none.
            ReleaseError: it cannot be read, or is no regular file.
        """

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> Added:
        """Add folders with their files, by paths inside them, in this order: seen whole, or not at all.

        Killed or cut off at any moment it leaves nothing that a reader sees, and the same call again finishes.

        Raises:
            TakenError: a folder is there already, whatever is in it.
            ReleaseError: it cannot be written; nothing of it is seen.
        """

    def close(self) -> None:
        """Let go of connections and of what was copied."""


@runtime_checkable
class Swift(Protocol):
    """A transport whose place answers at once what would be asked file by file. What it says is no truer than files."""

    def index(self, prefix: str = "") -> Iterator[Indexed]:
        """All releases whose folder's path, with a slash behind it, begins so; in any order.

        Raises:
            ReleaseError: the place cannot be read.
        """

    def expect(self, paths: Sequence[str]) -> None:
        """Say which files are opened soon, in this order; small ones then come many at a time. None need be there."""
