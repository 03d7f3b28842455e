"""The class `Registry`: find, read, check, publish, yank and sign releases at any kind of address.

The rest of nip-run accesses registries only through this class, which `locations.connect` creates. It checks the hash
of each manifest and file that it reads.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Self

from runner.base.errors import NewerFormatError, NotFoundError, ReleaseError, TakenError, UsageError
from runner.base.text import did_you_mean, in_one_line, shortened
from runner.documents.releases.bundle import Bundle, check_content, unpack
from runner.documents.releases.limits import DEFAULT_LIMITS, MAX_MANIFEST, Limits
from runner.documents.releases.manifest import CHECKSUM, MANIFEST, Release, digest
from runner.documents.releases.reference import Digest, Kind, Reference, version_order
from runner.registry.transports.interface import AddResult, BulkTransport, Transport
from runner.registry.transports.listing import (
    MAX_SIGNATURE_BYTES,
    SIGNATURE_FILE,
    SIGNATURE_FOLDER,
    Listing,
    ReleaseEntry,
    read_small_file,
)
from runner.registry.transports.yanks import YANKED, YANKED_FILE, format_yanked_file

__all__ = ("PublishResult", "Registry", "ReleaseEntry", "version_order")

MAX_UNEXPECTED_FILES = 20
"""Maximum number of files that `find_problems` reports because they do not belong to the release."""


@dataclass(frozen=True)
class PublishResult:
    """The result of publishing one release."""

    reference: Reference
    sha256: str
    already_existed: bool
    """Whether the registry already had the same release: from an earlier publish, even if that was interrupted, or from
    another publisher at the same time.

    If two publishers push the same git commit (same content, same second), this is False for both."""


class Registry:
    """The releases at one address. The list of releases is read once, when it is first needed."""

    def __init__(self, transport: Transport, limits: Limits = DEFAULT_LIMITS) -> None:
        self._transport = transport
        self.limits = limits
        self._listing = Listing(transport)

    @property
    def address(self) -> str:
        return self._transport.address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def entries(self, kind: Kind | None = None) -> list[ReleaseEntry]:
        """Return all releases, sorted by kind, owner, name and version (oldest first).

        Raises:
            ReleaseError: the registry cannot be read.
        """
        return self._listing.releases(kind)

    def publication_order(self) -> dict[str, int]:
        """Return the position of each release in the order of publication, by its hash; empty if the order is unknown.

        Only a server knows the order.

        Raises:
            ReleaseError: the registry cannot be read.
        """
        return self._listing.publication_order()

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
            if len(matches) > 1:  # the same files under several names: use the name that is in the manifest
                matches = [entry for entry in matches if self._has_own_name(entry)] or matches
        elif reference.version is not None:
            matches = [entry for entry in self._listing.versions(reference) if entry.reference == reference]
        else:
            versions = self._listing.versions(reference)
            matches = [entry for entry in versions if entry.yanked is None]
            if versions and not matches:
                newest = versions[-1]
                raise NotFoundError(
                    f"all versions of {reference} in {self.address} were yanked; the newest, {newest.reference}, "
                    f"because: {newest.yanked}. To use the newest anyway, name its version"
                )
        if matches:
            return matches[-1]
        raise NotFoundError(
            f"{self.address} has no {shortened(str(reference), 200)} (to list its releases: "
            f"{shlex.join(['nip-run', 'search', '--from', self.address])}){self._suggest(reference)}"
        )

    def _has_own_name(self, entry: ReleaseEntry) -> bool:
        """Return whether a release can be read, and is listed under the name that is in its manifest."""
        try:
            self.read_manifest(entry)
        except (ReleaseError, NewerFormatError):
            return False
        return True

    @contextmanager
    def _prefix_errors(self, entry: ReleaseEntry) -> Iterator[None]:
        """Prefix the errors in a `with` block with the release and the registry."""
        try:
            yield
        except (ReleaseError, NewerFormatError) as error:
            raise type(error)(f"{entry.reference} in {self.address}: {error}") from error

    def _suggest(self, reference: Reference | Digest) -> str:
        """Return a hint with the nearest name."""
        has_version = "@" in str(reference)
        names = [str(entry.reference if has_version else entry.reference.unversioned) for entry in self.entries()]
        return did_you_mean(str(reference), names) if names else "; nothing is published there"

    def read_manifest(self, entry: ReleaseEntry) -> tuple[Release, bytes]:
        """Read the manifest of a release, and return it with its bytes.

        Raises:
            ReleaseError: the manifest is damaged, does not match its name or checksum, or is too large.
            NewerFormatError: a newer version of nip-run wrote the manifest.
        """
        if entry.unreadable is not None:
            raise ReleaseError(entry.unreadable)
        with self._prefix_errors(entry):
            data = read_small_file(self.open(entry, MANIFEST), MANIFEST, MAX_MANIFEST)
            if digest(data) != entry.sha256:
                raise ReleaseError(f"{MANIFEST} or {CHECKSUM} is damaged: the hash differs; tell the release's owner")
            release = Release.from_bytes(data, self.limits)
        if release.reference != entry.reference:
            raise ReleaseError(
                f"{entry.reference} in {self.address} is damaged: its {MANIFEST} is that of {release.reference}"
            )
        return release, data

    def plan_prefetch(self, files: Iterable[tuple[ReleaseEntry, str]]) -> None:
        """State which files the caller will read soon, in this order, so that the transport can fetch them together.

        The caller still reads each file with the other methods; this call only saves requests.
        """
        if isinstance(self._transport, BulkTransport):
            self._transport.plan_prefetch([f"{entry.reference.folder}/{path}" for entry, path in files])

    def open(self, entry: ReleaseEntry, path: str) -> IO[bytes]:
        """Open a file of a release to read. The caller checks its hash, for example with `check_content`.

        Raises:
            ReleaseError: the file is missing, or cannot be read.
        """
        try:
            return self._transport.open(f"{entry.reference.folder}/{path}")
        except NotFoundError as error:
            raise ReleaseError(
                f"{path} is missing; the release is incomplete. If this registry is a copy, copy it again"
            ) from error

    def unpack(self, entry: ReleaseEntry, target: Path, *, extra_files: Mapping[str, bytes] | None = None) -> Release:
        """Check a release and write it into a folder; see `runner.documents.releases.bundle.unpack`."""
        release, manifest = self.read_manifest(entry)
        with self._prefix_errors(entry):
            unpack(release, manifest, lambda path: self.open(entry, path), target, extra_files=extra_files)
        return release

    def find_problems(self, entry: ReleaseEntry) -> Iterator[str]:
        """Yield a message for each damaged file of a release, and for each other file in its folder."""
        try:
            release, _ = self.read_manifest(entry)
        except (ReleaseError, NewerFormatError) as error:
            yield str(error)
            return
        for file in release.files:
            try:
                with self.open(entry, file.path) as source:
                    check_content(source, file)
            except ReleaseError as error:
                yield f"{entry.reference} in {self.address}: {error}"
        unexpected = list(islice(self._unexpected_files(entry, release), MAX_UNEXPECTED_FILES + 1))
        for path in unexpected[:MAX_UNEXPECTED_FILES]:
            shown_path = in_one_line(shortened(path, 300))
            yield f"{entry.reference} in {self.address}: {shown_path} is not a file of the release"
        if len(unexpected) > MAX_UNEXPECTED_FILES:
            yield f"{entry.reference} in {self.address}: more files, which are not listed, are not files of the release"

    def _unexpected_files(self, entry: ReleaseEntry, release: Release) -> Iterator[str]:
        """Yield the files in a release's folder that do not belong to it."""
        if isinstance(self._transport, BulkTransport):
            return  # a server has only files of releases
        optional_files = {f"{YANKED}/{YANKED_FILE}", f"{SIGNATURE_FOLDER}/{SIGNATURE_FILE}"}
        expected = {MANIFEST, CHECKSUM, *optional_files, *(file.path for file in release.files)}
        prefix = f"{entry.reference.folder}/"
        for stored_file in self._transport.list_files(prefix):
            path = stored_file.path.removeprefix(prefix)
            if path not in expected:
                yield path

    def publish(self, bundles: Sequence[Bundle], message: str) -> tuple[list[PublishResult], AddResult]:
        """Add releases one after the other. Releases that the registry already has with the same content do not change.

        Raises:
            TakenError: the registry has another release with the same name and version; nothing was added.
            ReleaseError: the registry cannot be written; complete releases stay, and the same call adds the others.
        """
        bundles_by_reference = {bundle.release.reference: bundle for bundle in bundles}
        if len(bundles_by_reference) < len({bundle.sha256 for bundle in bundles}):
            raise TakenError(
                "two of the releases have the same name and version; nothing was added. Give one another name or "
                "version with --as OWNER/NAME@VERSION"
            )
        added_folders: set[str] = set()
        while True:
            existing = self._find_existing(bundles_by_reference)
            for reference, bundle in bundles_by_reference.items():
                _check_same_content(bundle, existing.get(reference), self.address)
            missing = {name: bundle for name, bundle in bundles_by_reference.items() if name not in existing}
            files = {name.folder: list(bundle.files()) for name, bundle in missing.items()}
            try:
                result = self._transport.add(files, message) if files else AddResult()
                break
            except TakenError as error:
                # Another publisher added one of the releases first; the next iteration compares it with this one.
                added_folders.update(error.added)
                if self._find_existing(bundles_by_reference).keys() == existing.keys():
                    raise TakenError(
                        f"{error}, but that folder is not a complete release: a copy is in progress or was "
                        "interrupted; copy it again, or remove the folder"
                    ) from error
        self._listing.clear()
        added_folders.update(files)
        return [
            PublishResult(bundle.release.reference, bundle.sha256, bundle.release.reference.folder not in added_folders)
            for bundle in bundles
        ], result

    def _find_existing(self, references: Collection[Reference]) -> dict[Reference, ReleaseEntry]:
        """List the registry again, and return the releases that have one of these references."""
        self._listing.clear()
        entries = (entry for reference in references for entry in self._listing.versions(reference))
        return {entry.reference: entry for entry in entries if entry.reference in references}

    def yank(self, reference: Reference, reason: str) -> AddResult:
        """Yank (withdraw) a release: only users who name its version still find it, and they see the reason.

        Raises:
            UsageError: the reason is missing or too long.
            NotFoundError: there is no such release.
            TakenError: it is yanked already.
        """
        file = format_yanked_file(reason)
        entry = self.find(reference)
        if entry.unreadable is not None:
            raise ReleaseError(entry.unreadable)
        if entry.yanked is not None:
            raise TakenError(f"{reference} is yanked already: {entry.yanked}")
        folder = f"{entry.reference.folder}/{YANKED}"
        result = self._transport.add({folder: [(YANKED_FILE, file)]}, f"Yank {entry.reference}: {reason}")
        self._listing.clear()
        return result

    def add_signature(self, entry: ReleaseEntry, signature: bytes) -> AddResult:
        """Add a signature of a manifest to a release.

        Raises:
            TakenError: the release has a signature already.
        """
        result = self._transport.add(
            {f"{entry.reference.folder}/{SIGNATURE_FOLDER}": [(SIGNATURE_FILE, signature)]}, f"Sign {entry.reference}"
        )
        self._listing.clear()
        return result

    def read_signature(self, entry: ReleaseEntry) -> bytes:
        """Return the signature of a release's manifest.

        Raises:
            ReleaseError: the file is missing, too large, or cannot be read.
        """
        path = f"{entry.reference.folder}/{SIGNATURE_FOLDER}/{SIGNATURE_FILE}"
        try:
            return read_small_file(self._transport.open(path), path, MAX_SIGNATURE_BYTES)
        except NotFoundError as error:
            raise ReleaseError("the file is missing; ask the publisher to sign the release again") from error


def _check_same_content(bundle: Bundle, existing: ReleaseEntry | None, address: str) -> None:
    """Check that a published release with the same name and version has the same bytes."""
    if existing is None:
        return
    if existing.unreadable is not None:
        raise ReleaseError(existing.unreadable)
    if existing.sha256 != bundle.sha256:
        raise TakenError(
            f"{bundle.release.reference} is published in {address} with other content "
            f"(sha256:{existing.sha256[:12]}), and a version never changes; publish yours "
            f"(sha256:{bundle.sha256[:12]}) as another version with --as OWNER/NAME@VERSION"
        )
