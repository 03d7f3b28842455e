"""A registry at any kind of address: find releases by name or hash, and check every byte that is read."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Self

from runner.base.errors import NewerFormatError, NotFoundError, ReleaseError, TakenError, UsageError
from runner.base.text import did_you_mean, in_one_line, shortened
from runner.documents.releases.bundle import Bundle, checked_copy, unpack
from runner.documents.releases.limits import MAX_MANIFEST, USUAL, Limits
from runner.documents.releases.manifest import CHECKSUM, MANIFEST, Release, digest
from runner.documents.releases.reference import Digest, Kind, Reference
from runner.documents.releases.versions import version_order
from runner.registry.transports.interface import AddResult, BulkTransport, Transport
from runner.registry.transports.listing import SIGNATURE_FOLDER, Listing, ReleaseEntry, small_file
from runner.registry.transports.yanks import YANKED, YANKED_FILE, yanked_file

__all__ = ("Published", "Registry", "ReleaseEntry", "version_order")

MAX_SIGNATURES = 16
MAX_STRAY = 20
"""Maximum number of files that a message lists because they do not belong to a release."""


@dataclass(frozen=True)
class Published:
    """The result of publishing one release."""

    reference: Reference
    sha256: str
    was_there: bool
    """Whether the registry already had this release: from an earlier publish, which may have been interrupted, or from
    another publisher at the same time.

    If two publishers make the same commit of a git repository within one second, `was_there` is false for both."""


class Registry:
    """The releases at one address. They are listed once, at the first request."""

    def __init__(self, transport: Transport, limits: Limits = USUAL) -> None:
        self._transport = transport
        self.limits = limits
        self._listing = Listing(transport)

    @property
    def where(self) -> str:
        return self._transport.where

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def entries(self, kind: Kind | None = None) -> list[ReleaseEntry]:
        """Return all releases, by kind, owner, name, and version from the oldest.

        Raises:
            ReleaseError: the registry cannot be read.
        """
        return self._listing.of_kind(kind)

    def publication_order(self) -> dict[str, int]:
        """Return the position of each release in the order of publication, by its hash; empty if it is unknown."""
        return {}

    def find(self, reference: Reference | Digest) -> ReleaseEntry:
        """Find a release; a name without a version means its newest version that is not yanked.

        Raises:
            NotFoundError: there is none, or all its versions are yanked; the message suggests the nearest name.
            UsageError: several releases match the first digits of a hash.
        """
        if isinstance(reference, Digest):
            matches = [entry for entry in self.entries() if entry.sha256.startswith(reference.hex)]
            if len({entry.sha256 for entry in matches}) > 1:
                raise UsageError(f"{reference} matches {len(matches)} releases; give more digits")
            if len(matches) > 1:  # equal bytes under several names: only one name is the one in the manifest
                matches = [entry for entry in matches if self._is_genuine(entry)] or matches
        elif reference.version is not None:
            matches = [entry for entry in self._listing.of_name(reference) if entry.reference == reference]
        else:
            of_name = self._listing.of_name(reference)
            matches = [entry for entry in of_name if entry.yanked is None]
            if of_name and not matches:
                last = of_name[-1]
                raise NotFoundError(
                    f"all versions of {reference} in {self.where} were yanked; the newest, {last.reference}, because: "
                    f"{last.yanked}. To use the newest anyway, name its version"
                )
        if matches:
            return matches[-1]
        raise NotFoundError(
            f"{self.where} has no {shortened(str(reference), 200)}{self._suggest(reference)}; list its releases: "
            f"{shlex.join(['nip-run', 'search', '--from', self.where])}"
        )

    def _is_genuine(self, entry: ReleaseEntry) -> bool:
        """Return whether the manifest of a release can be read and has the release's name."""
        try:
            self.read(entry)
        except (ReleaseError, NewerFormatError):
            return False
        return True

    def _suggest(self, reference: Reference | Digest) -> str:
        names = [
            str(entry.reference if "@" in str(reference) else entry.reference.at("")).rstrip("@")
            for entry in self.entries()
        ]
        return did_you_mean(str(reference), names) if names else "; nothing is published there"

    def read(self, entry: ReleaseEntry) -> tuple[Release, bytes]:
        """Read the manifest of a release, and return it with its bytes.

        Raises:
            ReleaseError: it is damaged, does not match its name or checksum, or is too large.
            NewerFormatError: a newer nip-run wrote it.
        """
        if entry.unreadable is not None:
            raise ReleaseError(entry.unreadable)
        where = f"{entry.reference} in {self.where}"
        try:
            data = small_file(self.open(entry, MANIFEST), MANIFEST, MAX_MANIFEST)
            if digest(data) != entry.sha256:
                raise ReleaseError(f"{MANIFEST} or {CHECKSUM} is damaged: the hash differs; tell the release's owner")
            release = Release.from_bytes(data, self.limits)
        except (ReleaseError, NewerFormatError) as error:
            raise type(error)(f"{where}: {error}") from error
        if release.reference != entry.reference:
            raise ReleaseError(f"{where} is damaged: its {MANIFEST} is that of {release.reference}")
        return release, data

    def expect(self, files: Iterable[tuple[ReleaseEntry, str]]) -> None:
        """Announce files that are read soon, in this order, so that the transport can fetch them together."""
        if isinstance(self._transport, BulkTransport):
            self._transport.expect([f"{entry.reference.folder}/{path}" for entry, path in files])

    def open(self, entry: ReleaseEntry, path: str) -> IO[bytes]:
        """Open a file of a release to read, without any check; see `checked_copy`.

        Raises:
            ReleaseError: it is missing, or cannot be read.
        """
        try:
            return self._transport.open(f"{entry.reference.folder}/{path}")
        except NotFoundError as error:
            raise ReleaseError(
                f"{path} is missing; the release is incomplete. If this registry is a copy, copy it again"
            ) from error

    def content(self, entry: ReleaseEntry, release: Release, path: str, max_bytes: int) -> bytes:
        """Read and check a small file of a release.

        Raises:
            NotFoundError: the release has no such file.
            ReleaseError: it is damaged, or larger than `max_bytes` bytes.
        """
        file = release.file(path)
        if file is None:
            raise NotFoundError(f"{entry.reference} has no file {path}")
        if file.size > max_bytes:
            raise ReleaseError(f"{entry.reference}: {path} has {file.size:,} bytes; at most {max_bytes:,} are allowed")
        pieces: list[bytes] = []
        try:
            with self.open(entry, path) as source:
                checked_copy(source, file, pieces.append)
        except ReleaseError as error:
            raise type(error)(f"{entry.reference} in {self.where}: {error}") from error
        return b"".join(pieces)

    def unpack(self, entry: ReleaseEntry, target: Path, *, also: Mapping[str, bytes] | None = None) -> Release:
        """Check a release and write it into a folder; see `runner.documents.releases.bundle.unpack`."""
        release, manifest = self.read(entry)
        try:
            unpack(release, manifest, lambda path: self.open(entry, path), target, also=also)
        except ReleaseError as error:
            raise type(error)(f"{entry.reference} in {self.where}: {error}") from error
        return release

    def find_problems(self, entry: ReleaseEntry) -> Iterator[str]:
        """Yield a message for each damaged file of a release, and for each foreign file in its folder."""
        try:
            release, _ = self.read(entry)
        except (ReleaseError, NewerFormatError) as error:
            yield str(error)
            return
        for file in release.files:
            try:
                with self.open(entry, file.path) as source:
                    checked_copy(source, file, lambda _: None)
            except ReleaseError as error:
                yield f"{entry.reference} in {self.where}: {error}"
        stray = list(islice(self._unexpected_files(entry, release), MAX_STRAY + 1))
        for path in stray[:MAX_STRAY]:
            yield f"{entry.reference} in {self.where}: {in_one_line(shortened(path, 300))} is not a file of the release"
        if len(stray) > MAX_STRAY:
            yield f"{entry.reference} in {self.where}: more files, which are not listed, are not files of the release"

    def _unexpected_files(self, entry: ReleaseEntry, release: Release) -> Iterator[str]:
        """Yield the files in a release's folder that do not belong to it."""
        expected = {MANIFEST, CHECKSUM, f"{YANKED}/{YANKED_FILE}", *(file.path for file in release.files)}
        prefix = f"{entry.reference.folder}/"
        for stored in self._transport.list_files(prefix):
            path = stored.path.removeprefix(prefix)
            if path not in expected and path.partition("/")[0] != SIGNATURE_FOLDER:
                yield path

    def publish(self, bundles: Sequence[Bundle], message: str) -> tuple[list[Published], AddResult]:
        """Add releases, in this order; releases that are published already with the same bytes stay as they are.

        Raises:
            TakenError: a name and version is another release's; nothing was added.
            ReleaseError: the registry cannot be written; complete releases stay, and the same call adds the others.
        """
        by_reference = {bundle.release.reference: bundle for bundle in bundles}
        if len(by_reference) < len({bundle.sha256 for bundle in bundles}):
            raise TakenError(
                "two of the releases have the same name and version; nothing was added. Give one another name or "
                "version with --as OWNER/NAME@VERSION"
            )
        added_folders: set[str] = set()
        while True:
            self._listing.forget()
            existing = {entry.reference: entry for name in by_reference for entry in self._listing.of_name(name)}
            for reference, bundle in by_reference.items():
                _check_taken(bundle, existing.get(reference), self.where)
            missing = {name: bundle for name, bundle in by_reference.items() if name not in existing}
            files = {name.folder: list(bundle.files()) for name, bundle in missing.items()}
            added = AddResult()
            try:
                if files:
                    added = self._transport.add(files, message)
            except TakenError as error:
                # Another publisher was faster; the next iteration compares the release that it added.
                added_folders.update(error.added)
                self._listing.forget()
                if not any(entry.reference in missing for name in missing for entry in self._listing.of_name(name)):
                    raise TakenError(
                        f"{error}, but that folder is not a complete release: a copy is in progress or was "
                        "interrupted; copy it again, or remove the folder"
                    ) from error
                continue
            self._listing.forget()
            added_folders.update(files)
            return [
                Published(bundle.release.reference, bundle.sha256, bundle.release.reference.folder not in added_folders)
                for bundle in bundles
            ], added

    def yank(self, reference: Reference, reason: str) -> AddResult:
        """Yank a release: a name without a version no longer finds it, and users who name its version see the reason.

        Raises:
            UsageError: the reason is missing or too long.
            NotFoundError: there is no such release.
            TakenError: it is yanked already.
        """
        file = yanked_file(reason)
        entry = self.find(reference)
        if entry.unreadable is not None:
            raise ReleaseError(entry.unreadable)
        if entry.yanked is not None:
            raise TakenError(f"{reference} is yanked already: {entry.yanked}")
        folder = f"{entry.reference.folder}/{YANKED}"
        added = self._transport.add({folder: [(YANKED_FILE, file)]}, f"Yank {entry.reference}: {reason}")
        self._listing.forget()
        return added

    def add_signature(self, entry: ReleaseEntry, files: Iterable[tuple[str, bytes]]) -> AddResult:
        """Add a signature of a manifest to a release.

        Raises:
            TakenError: it has a signature.
        """
        added = self._transport.add(
            {f"{entry.reference.folder}/{SIGNATURE_FOLDER}": list(files)}, f"Sign {entry.reference}"
        )
        self._listing.forget()
        return added

    def signature(self, entry: ReleaseEntry, max_bytes: int = 1 << 20) -> dict[str, bytes]:
        """Return the files of a release's signature by name; empty if it is not signed.

        Raises:
            ReleaseError: there are too many files, or one is larger than `max_bytes` bytes.
        """
        prefix = f"{entry.reference.folder}/{SIGNATURE_FOLDER}/"
        paths = [stored.path for stored in islice(self._transport.list_files(prefix), MAX_SIGNATURES + 1)]
        if len(paths) > MAX_SIGNATURES:
            raise ReleaseError(
                f"{entry.reference} in {self.where}: its signature has more than {MAX_SIGNATURES} files; tell its "
                "publisher"
            )
        files = {}
        for path in paths:
            with suppress(NotFoundError):
                files[path.removeprefix(prefix)] = small_file(self._transport.open(path), path, max_bytes)
        return files


def _check_taken(bundle: Bundle, published: ReleaseEntry | None, where: str) -> None:
    """Check that a published release with the same name and version has the same bytes."""
    if published is None:
        return
    if published.unreadable is not None:
        raise ReleaseError(published.unreadable)
    if published.sha256 != bundle.sha256:
        raise TakenError(
            f"{bundle.release.reference} is published in {where} with other content (sha256:{published.sha256[:12]}), "
            f"and a version never changes; publish yours (sha256:{bundle.sha256[:12]}) as another version with --as "
            "OWNER/NAME@VERSION"
        )
