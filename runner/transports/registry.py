"""A registry: releases by name and by hash, wherever it lives, with every byte checked on the way."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from runner.errors import NotPublished, ReleaseError, TakenError, UsageError
from runner.releases.bundle import Bundle, checked_copy, unpack
from runner.releases.limits import MAX_MANIFEST, USUAL, Limits
from runner.releases.manifest import CHECKSUM, MANIFEST, Release, digest, read_checksum
from runner.releases.reference import Digest, Kind, Reference
from runner.text import did_you_mean
from runner.transports.base import Added, Transport

YANKED = "yanked"
YANKED_FILE = "yanked.json"
SIGNATURE = "signature"
MAX_REASON = 1_000
MAX_SIGNATURES = 16


@dataclass(frozen=True)
class Entry:
    """A release that a registry lists."""

    reference: Reference
    sha256: str
    """Of its manifest, as its checksum says; whoever reads the manifest compares them."""
    yanked: str | None = None
    """Why it was yanked; None where it was not."""
    signed: bool = False


@dataclass(frozen=True)
class Published:
    """What became of one release of a publish."""

    reference: Reference
    sha256: str
    was_there: bool
    """Whether the registry had the very same release already."""


class Registry:
    """The releases at one place. What is listed is read once, when it is first asked for."""

    def __init__(self, transport: Transport, limits: Limits = USUAL) -> None:
        self._transport = transport
        self.limits = limits
        self._listed: dict[Reference, Entry] | None = None

    @property
    def where(self) -> str:
        return self._transport.where

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def entries(self, kind: Kind | None = None) -> list[Entry]:
        """All releases, by kind, owner, name, and version from the oldest.

        Raises:
            ReleaseError: the registry cannot be read, or what it lists is damaged.
        """
        if self._listed is None:
            self._listed = self._read_list()
        found = [entry for entry in self._listed.values() if kind in (None, entry.reference.kind)]
        return sorted(found, key=lambda entry: _order(entry.reference))

    def _read_list(self) -> dict[Reference, Entry]:
        paths = {stored.path for stored in self._transport.stored()}
        listed = {}
        for path in sorted(paths):
            folder, _, name = path.rpartition("/")
            reference = Reference.of_folder(folder) if name == CHECKSUM else None
            if reference is None:
                continue
            why = self._why_yanked(reference) if f"{folder}/{YANKED}/{YANKED_FILE}" in paths else None
            signed = any(other.startswith(f"{folder}/{SIGNATURE}/") for other in paths)
            listed[reference] = Entry(reference, self._checksum(reference), why, signed)
        return listed

    def _checksum(self, reference: Reference) -> str:
        try:
            return read_checksum(self._small(f"{reference.folder}/{CHECKSUM}", 1_000))
        except ReleaseError as error:
            raise type(error)(f"{reference} in {self.where}: {error}") from error

    def _why_yanked(self, reference: Reference) -> str:
        data = self._small(f"{reference.folder}/{YANKED}/{YANKED_FILE}", 4 * MAX_REASON + 1_000)
        try:
            said = json.loads(data)
            if yanked_file(said["reason"]) != data:
                raise ValueError("its bytes are not those that nip-run writes")
        except (ValueError, KeyError, TypeError) as error:
            raise ReleaseError(f"{reference} in {self.where}: {YANKED}/{YANKED_FILE} is damaged: {error}") from error
        return str(said["reason"])

    def _small(self, path: str, most: int) -> bytes:
        with self._transport.open(path) as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise ReleaseError(f"{path} is larger than {most:,} bytes")
        return data

    def find(self, named: Reference | Digest) -> Entry:
        """The release that is meant: of a name without a version, the newest that is not yanked.

        Raises:
            NotPublished: there is none; with the nearest name.
            UsageError: the first digits of a hash are those of several.
        """
        if isinstance(named, Digest):
            found = [entry for entry in self.entries() if entry.sha256.startswith(named.hex)]
            if len({entry.sha256 for entry in found}) > 1:
                raise UsageError(f"{named} is the start of {len(found)} releases; give more digits")
        elif named.version is not None:
            found = [entry for entry in self.entries(named.kind) if entry.reference == named]
        else:
            of_name = [entry for entry in self.entries(named.kind) if entry.reference.at("") == named.at("")]
            found = [entry for entry in of_name if entry.yanked is None] or of_name
        if found:
            return found[-1]
        known = [
            str(entry.reference if "@" in str(named) else entry.reference.at("")).rstrip("@")
            for entry in self.entries()
        ]
        raise NotPublished(f"{self.where} has no {named}{did_you_mean(str(named), known)}")

    def read(self, entry: Entry) -> tuple[Release, bytes]:
        """A release's manifest, and its bytes.

        Raises:
            ReleaseError: it is damaged, is another than its name or its checksum says, or is larger than is taken.
        """
        where = f"{entry.reference} in {self.where}"
        try:
            data = self._small(f"{entry.reference.folder}/{MANIFEST}", MAX_MANIFEST)
            if digest(data) != entry.sha256:
                raise ReleaseError(f"{MANIFEST} is damaged: its bytes are not those of its hash in {CHECKSUM}")
            release = Release.from_bytes(data, self.limits)
        except ReleaseError as error:
            raise type(error)(f"{where}: {error}") from error
        if release.reference != entry.reference:
            raise ReleaseError(f"{where} says that it is {release.reference}")
        return release, data

    def open(self, entry: Entry, path: str) -> IO[bytes]:
        """A file of a release to read; nothing is checked, see `checked_copy`."""
        return self._transport.open(f"{entry.reference.folder}/{path}")

    def content(self, entry: Entry, release: Release, path: str, most: int) -> bytes:
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

    def unpack(self, entry: Entry, target: Path, *, also: Mapping[str, bytes] | None = None) -> Release:
        """Write a release into a folder, checked; see `runner.releases.bundle.unpack`."""
        release, manifest = self.read(entry)
        try:
            unpack(release, manifest, lambda path: self.open(entry, path), target, also=also)
        except ReleaseError as error:
            raise type(error)(f"{entry.reference} in {self.where}: {error}") from error
        return release

    def wrong(self, entry: Entry) -> Iterator[str]:
        """Everything that is wrong with a release's files: each damaged one by name, and those of no release."""
        try:
            release, _ = self.read(entry)
        except ReleaseError as error:
            yield str(error)
            return
        for file in release.files:
            try:
                with self.open(entry, file.path) as source:
                    checked_copy(source, file, lambda _: None)
            except ReleaseError as error:
                yield f"{entry.reference} in {self.where}: {error}"
        known = {MANIFEST, CHECKSUM, *(file.path for file in release.files)}
        prefix = f"{entry.reference.folder}/"
        for stored in self._transport.stored(prefix):
            path = stored.path.removeprefix(prefix)
            if path not in known and path.partition("/")[0] not in (YANKED, SIGNATURE):
                yield f"{entry.reference} in {self.where}: {path} is no file of the release"

    def publish(self, bundles: Sequence[Bundle], message: str) -> tuple[list[Published], Added]:
        """Add releases, in this order; those that are there with the very same bytes are left as they are.

        Raises:
            TakenError: a name and version is another release's; nothing was added.
            ReleaseError: the registry cannot be written; what was added whole stays, and the same call finishes.
        """
        while True:
            self._listed = None
            there = {entry.reference: entry for entry in self.entries()}
            for bundle in bundles:
                _check_taken(bundle, there.get(bundle.release.reference), self.where)
            missing = [bundle for bundle in bundles if bundle.release.reference not in there]
            files = {bundle.release.reference.folder: list(bundle.files()) for bundle in missing}
            added = Added()
            try:
                if files:
                    added = self._transport.add(files, message)
            except TakenError:
                # Somebody else was quicker: with the same release, or with another, which the next turn finds.
                self._listed = None
                if not {bundle.release.reference for bundle in missing} & {one.reference for one in self.entries()}:
                    raise
                continue
            self._listed = None
            return [
                Published(bundle.release.reference, bundle.sha256, bundle not in missing) for bundle in bundles
            ], added

    def yank(self, reference: Reference, reason: str) -> Added:
        """Have a release be passed over by those who ask for the newest; who asks for it by version is told why.

        Raises:
            UsageError: no reason is given, or too long a one.
            NotPublished: there is no such release.
            TakenError: it is yanked already.
        """
        if not reason.strip() or len(reason) > MAX_REASON:
            raise UsageError(f"why is it yanked? Give a reason of at most {MAX_REASON:,} characters")
        entry = self.find(reference)
        if entry.yanked is not None:
            raise TakenError(f"{reference} is yanked already: {entry.yanked}")
        folder = f"{entry.reference.folder}/{YANKED}"
        added = self._transport.add({folder: [(YANKED_FILE, yanked_file(reason))]}, f"Yank {entry.reference}: {reason}")
        self._listed = None
        return added

    def add_signature(self, entry: Entry, files: Iterable[tuple[str, bytes]]) -> Added:
        """Put a signature of a manifest beside it.

        Raises:
            TakenError: it has one.
        """
        added = self._transport.add({f"{entry.reference.folder}/{SIGNATURE}": list(files)}, f"Sign {entry.reference}")
        self._listed = None
        return added

    def signature(self, entry: Entry, most: int = 1 << 20) -> dict[str, bytes]:
        """The files of a release's signature, by name; none where it has none.

        Raises:
            ReleaseError: there are more of them, or larger ones, than any signature has.
        """
        prefix = f"{entry.reference.folder}/{SIGNATURE}/"
        found: dict[str, bytes] = {}
        for stored in self._transport.stored(prefix):
            if len(found) == MAX_SIGNATURES:
                raise ReleaseError(f"{entry.reference} in {self.where} has more than {MAX_SIGNATURES} signature files")
            with suppress(NotPublished):
                found[stored.path.removeprefix(prefix)] = self._small(stored.path, most)
        return found


def yanked_file(reason: str) -> bytes:
    """What stands in `yanked.json`: the reason, and its hash, by which damage is found."""
    return json.dumps({"reason": reason, "sha256": digest(reason.encode())}, indent=2).encode() + b"\n"


def _check_taken(bundle: Bundle, there: Entry | None, where: str) -> None:
    if there is not None and there.sha256 != bundle.sha256:
        raise TakenError(
            f"{bundle.release.reference} is published in {where} with other content (sha256:{there.sha256[:12]}, and "
            f"this is sha256:{bundle.sha256[:12]}), and a version never changes; publish this as another version"
        )


_PART = re.compile(r"[0-9]+|[^0-9.]+")


def version_order(version: str) -> tuple[tuple[int, int, str], ...]:
    """Versions in the order of their numbers: 1.2 before 1.10, and 1.0-rc1 before 1.0."""
    release, _, pre = version.partition("-")
    return (
        *((1, int(p), "") if p.isdigit() else (0, 0, p) for p in _PART.findall(release)),
        *(((-1, 0, pre),) if pre else ((0, 0, ""),)),
    )


def _order(reference: Reference) -> tuple[str, str, str, tuple[tuple[int, int, str], ...]]:
    return reference.kind, reference.owner, reference.name, version_order(reference.version or "")
