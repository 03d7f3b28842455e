"""A registry: releases by name and by hash, wherever it lives, with every byte checked on the way."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Self

from runner.base.errors import NewerFormatError, NotPublished, ReleaseError, TakenError, UsageError
from runner.base.text import did_you_mean, in_one_line, shortened
from runner.documents.releases.bundle import Bundle, checked_copy, unpack
from runner.documents.releases.limits import MAX_MANIFEST, USUAL, Limits
from runner.documents.releases.manifest import CHECKSUM, MANIFEST, Release, digest
from runner.documents.releases.reference import Digest, Kind, Reference
from runner.documents.releases.versions import version_order
from runner.registry.transports.interface import Added, Swift, Transport
from runner.registry.transports.listing import SIGNATURE, Listing, ReleaseEntry, small_file
from runner.registry.transports.yanks import YANKED, YANKED_FILE, yanked_file

__all__ = ("Published", "Registry", "ReleaseEntry", "version_order")

MAX_SIGNATURES = 16
MAX_STRAY = 20
"""The most files of no release that are told, of one release."""


@dataclass(frozen=True)
class Published:
    """What became of one release of a publish."""

    reference: Reference
    sha256: str
    was_there: bool
    """Whether the registry had the very same release when this publish came to add it: from an earlier one, which may
    have been one's own that broke off, or from somebody who was quicker.

    Two who make the very same commit of a git repository, within one second, have both added it."""


class Registry:
    """The releases at one place. What is listed is read once, when it is first asked for."""

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
        """All releases, by kind, owner, name, and version from the oldest.

        Raises:
            ReleaseError: the registry cannot be read.
        """
        return self._listing.of_kind(kind)

    def publication_order(self) -> dict[str, int]:
        """Return each release's place in the order of publication, by its hash; empty if the place does not know."""
        return {}

    def find(self, named: Reference | Digest) -> ReleaseEntry:
        """The release that is meant: of a name without a version, the newest that is not yanked.

        Raises:
            NotPublished: there is none, with the nearest name; or all versions of it are yanked.
            UsageError: the first digits of a hash are those of several.
        """
        if isinstance(named, Digest):
            found = [entry for entry in self.entries() if entry.sha256.startswith(named.hex)]
            if len({entry.sha256 for entry in found}) > 1:
                raise UsageError(f"{named} is the start of {len(found)} releases; give more digits")
            if len(found) > 1:  # one of them lies: a manifest says which release it is
                found = [entry for entry in found if self._is_itself(entry)] or found
        elif named.version is not None:
            found = [entry for entry in self._listing.of_name(named) if entry.reference == named]
        else:
            of_name = self._listing.of_name(named)
            found = [entry for entry in of_name if entry.yanked is None]
            if of_name and not found:
                last = of_name[-1]
                raise NotPublished(
                    f"{self.where} has no {named} that is not yanked; {last.reference} was yanked: {last.yanked}. "
                    "Name that version to have it all the same"
                )
        if found:
            return found[-1]
        raise NotPublished(
            f"{self.where} has no {shortened(str(named), 200)}{self._nearest(named)}; what there is: "
            f"{shlex.join(['nip-run', 'search', '--from', self.where])}"
        )

    def _is_itself(self, entry: ReleaseEntry) -> bool:
        try:
            self.read(entry)
        except (ReleaseError, NewerFormatError):
            return False
        return True

    def _nearest(self, named: Reference | Digest) -> str:
        known = [
            str(entry.reference if "@" in str(named) else entry.reference.at("")).rstrip("@")
            for entry in self.entries()
        ]
        return did_you_mean(str(named), known) if known else "; nothing is published there"

    def read(self, entry: ReleaseEntry) -> tuple[Release, bytes]:
        """A release's manifest, and its bytes.

        Raises:
            ReleaseError: it is damaged, is another than its name or its checksum says, or is larger than is taken.
            NewerFormatError: a newer nip-run wrote it.
        """
        if entry.unreadable is not None:
            raise ReleaseError(entry.unreadable)
        where = f"{entry.reference} in {self.where}"
        try:
            data = small_file(self.open(entry, MANIFEST), MANIFEST, MAX_MANIFEST)
            if digest(data) != entry.sha256:
                raise ReleaseError(
                    f"{MANIFEST} is damaged, or {CHECKSUM} is: the hash in this is not that of the other"
                )
            release = Release.from_bytes(data, self.limits)
        except (ReleaseError, NewerFormatError) as error:
            raise type(error)(f"{where}: {error}") from error
        if release.reference != entry.reference:
            raise ReleaseError(f"{where} says that it is {release.reference}")
        return release, data

    def expect(self, wanted: Iterable[tuple[ReleaseEntry, str]]) -> None:
        """Say which files of releases are read soon, in this order; where the place can, they come many at a time."""
        if isinstance(self._transport, Swift):
            self._transport.expect([f"{entry.reference.folder}/{path}" for entry, path in wanted])

    def open(self, entry: ReleaseEntry, path: str) -> IO[bytes]:
        """A file of a release to read; nothing is checked, see `checked_copy`.

        Raises:
            ReleaseError: it is not there, or cannot be read.
        """
        try:
            return self._transport.open(f"{entry.reference.folder}/{path}")
        except NotPublished as error:
            raise ReleaseError(
                f"{path} is missing; the release is not whole here, as when a copy of the registry has not ended"
            ) from error

    def content(self, entry: ReleaseEntry, release: Release, path: str, most: int) -> bytes:
        """A small file of a release, checked.

        Raises:
            NotPublished: it has none of this name.
            ReleaseError: it is damaged, or larger than `most` bytes.
        """
        file = release.file(path)
        if file is None:
            raise NotPublished(f"{entry.reference} has no file {path}")
        if file.size > most:
            raise ReleaseError(f"{entry.reference}: {path} has {file.size:,} bytes; at most {most:,} are read")
        pieces: list[bytes] = []
        try:
            with self.open(entry, path) as source:
                checked_copy(source, file, pieces.append)
        except ReleaseError as error:
            raise type(error)(f"{entry.reference} in {self.where}: {error}") from error
        return b"".join(pieces)

    def unpack(self, entry: ReleaseEntry, target: Path, *, also: Mapping[str, bytes] | None = None) -> Release:
        """Write a release into a folder, checked; see `runner.documents.releases.bundle.unpack`."""
        release, manifest = self.read(entry)
        try:
            unpack(release, manifest, lambda path: self.open(entry, path), target, also=also)
        except ReleaseError as error:
            raise type(error)(f"{entry.reference} in {self.where}: {error}") from error
        return release

    def wrong(self, entry: ReleaseEntry) -> Iterator[str]:
        """Everything that is wrong with a release's files: each damaged one by name, and those of no release."""
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
        stray = list(islice(self._stray(entry, release), MAX_STRAY + 1))
        for path in stray[:MAX_STRAY]:
            yield f"{entry.reference} in {self.where}: {in_one_line(shortened(path, 300))} is no file of the release"
        if len(stray) > MAX_STRAY:
            yield f"{entry.reference} in {self.where}: and there are more files that are none of the release"

    def _stray(self, entry: ReleaseEntry, release: Release) -> Iterator[str]:
        """The files in a release's folder that are none of its own."""
        known = {MANIFEST, CHECKSUM, f"{YANKED}/{YANKED_FILE}", *(file.path for file in release.files)}
        prefix = f"{entry.reference.folder}/"
        for stored in self._transport.stored(prefix):
            path = stored.path.removeprefix(prefix)
            if path not in known and path.partition("/")[0] != SIGNATURE:
                yield path

    def publish(self, bundles: Sequence[Bundle], message: str) -> tuple[list[Published], Added]:
        """Add releases, in this order; those that are there with the very same bytes are left as they are.

        Raises:
            TakenError: a name and version is another release's; nothing was added.
            ReleaseError: the registry cannot be written; what was added whole stays, and the same call finishes.
        """
        if len({bundle.release.reference for bundle in bundles}) < len({bundle.sha256 for bundle in bundles}):
            raise TakenError("two releases that are to be published have one name and version; nothing was added")
        ours: set[str] = set()
        while True:
            self._listing.forget()
            there = {
                one.reference: one for bundle in bundles for one in self._listing.of_name(bundle.release.reference)
            }
            for bundle in bundles:
                _check_taken(bundle, there.get(bundle.release.reference), self.where)
            missing = {bundle.release.reference: bundle for bundle in bundles if bundle.release.reference not in there}
            files = {reference.folder: list(bundle.files()) for reference, bundle in missing.items()}
            added = Added()
            try:
                if files:
                    added = self._transport.add(files, message)
            except TakenError as error:
                # Somebody else was quicker: with the same release, or with another, which the next turn finds.
                ours.update(error.added)
                self._listing.forget()
                if not any(one.reference in missing for ref in missing for one in self._listing.of_name(ref)):
                    raise TakenError(
                        f"{error}, and no release can be read there: one that is being copied, or a copy that has not "
                        "ended; copy it again, or remove the folder"
                    ) from error
                continue
            self._listing.forget()
            ours.update(files)
            return [
                Published(bundle.release.reference, bundle.sha256, bundle.release.reference.folder not in ours)
                for bundle in bundles
            ], added

    def yank(self, reference: Reference, reason: str) -> Added:
        """Have a release be passed over by those who ask for the newest; who asks for it by version is told why.

        Raises:
            UsageError: no reason is given, or too long a one.
            NotPublished: there is no such release.
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

    def add_signature(self, entry: ReleaseEntry, files: Iterable[tuple[str, bytes]]) -> Added:
        """Put a signature of a manifest beside it.

        Raises:
            TakenError: it has one.
        """
        added = self._transport.add({f"{entry.reference.folder}/{SIGNATURE}": list(files)}, f"Sign {entry.reference}")
        self._listing.forget()
        return added

    def signature(self, entry: ReleaseEntry, most: int = 1 << 20) -> dict[str, bytes]:
        """The files of a release's signature, by name; none where it has none.

        Raises:
            ReleaseError: there are more than any signature has, or one is larger than `most` bytes.
        """
        prefix = f"{entry.reference.folder}/{SIGNATURE}/"
        paths = [stored.path for stored in islice(self._transport.stored(prefix), MAX_SIGNATURES + 1)]
        if len(paths) > MAX_SIGNATURES:
            raise ReleaseError(f"{entry.reference} in {self.where}: more than {MAX_SIGNATURES} files are its signature")
        found = {}
        for path in paths:
            with suppress(NotPublished):
                found[path.removeprefix(prefix)] = small_file(self._transport.open(path), path, most)
        return found


def _check_taken(bundle: Bundle, there: ReleaseEntry | None, where: str) -> None:
    if there is None:
        return
    if there.unreadable is not None:
        raise ReleaseError(there.unreadable)
    if there.sha256 != bundle.sha256:
        raise TakenError(
            f"{bundle.release.reference} is published in {where} with other content (sha256:{there.sha256[:12]}, and "
            f"this is sha256:{bundle.sha256[:12]}), and a version never changes; publish this as another version"
        )
