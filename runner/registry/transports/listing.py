"""List the releases of a registry with their hashes, from its file names and checksum files only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import IO

from runner.base.errors import ReleaseError
from runner.documents.releases.manifest import CHECKSUM, read_checksum
from runner.documents.releases.reference import Kind, Reference
from runner.documents.releases.versions import Key, version_order
from runner.registry.transports.interface import BulkTransport, IndexedRelease, Transport
from runner.registry.transports.yanks import MAX_BYTES, YANKED, YANKED_FILE, read_yanked

SIGNATURE_FOLDER = "signature"
_FOLDER_NAMES = 4
"""The number of names in the path of a release: kind, owner, name, version."""


@dataclass(frozen=True)
class ReleaseEntry:
    """A release that a registry lists."""

    reference: Reference
    sha256: str
    """The hash of its manifest according to its checksum file; `Registry.read` checks that the manifest has it."""
    yanked: str | None = None
    """The reason why it was yanked; None if it was not yanked."""
    signed: bool = False
    tier: str = field(default="", compare=False)
    """The level of verification that the registry states for a run, without proof; empty if it states none."""
    unreadable: str | None = None
    """The reason why the release cannot be read, such as a damaged checksum file; None if it can be read. An unreadable
    release is listed without a hash, and `Registry.read` raises the reason."""


class Listing:
    """The releases of one registry, as they were at the first request."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._listed: dict[str, dict[Reference, ReleaseEntry]] = {}
        """The listed releases by the prefix of their paths; the empty prefix is the complete registry."""

    def forget(self) -> None:
        """Discard the listed releases, so that the next request lists them again."""
        self._listed.clear()

    def of_kind(self, kind: Kind | None) -> list[ReleaseEntry]:
        """Return the releases, of one kind or of all, by kind, owner, name, and version from the oldest."""
        return self._releases_below("" if kind is None else f"{kind}/")

    def of_name(self, reference: Reference) -> list[ReleaseEntry]:
        """Return all versions of a release, from the oldest, without listing the rest of the registry."""
        return self._releases_below(f"{reference.kind}/{reference.owner}/{reference.name}/")

    def _releases_below(self, prefix: str) -> list[ReleaseEntry]:
        complete = self._listed.get("")
        listed = self._listed.get(prefix) if complete is None else complete
        if listed is None:
            listed = self._listed[prefix] = self._read(prefix)
        entries = [entry for entry in listed.values() if entry.reference.folder.startswith(prefix)]
        return sorted(entries, key=lambda entry: _sort_key(entry.reference))

    def _read(self, prefix: str) -> dict[Reference, ReleaseEntry]:
        """List the releases whose paths start with a prefix, and return them by reference."""
        if isinstance(self._transport, BulkTransport):
            items = ((Reference.of_folder(item.folder), item) for item in self._transport.index(prefix))
            return {
                reference: self._entry_of_index(reference, item) for reference, item in items if reference is not None
            }
        references: list[Reference] = []
        yanked_or_signed: set[tuple[str, str]] = set()
        for stored in self._transport.list_files(prefix):
            parts = stored.path.split("/", _FOLDER_NAMES + 2)
            folder, inside = "/".join(parts[:_FOLDER_NAMES]), parts[_FOLDER_NAMES:]
            if inside == [CHECKSUM] and (reference := Reference.of_folder(folder)) is not None:
                references.append(reference)
            elif inside == [YANKED, YANKED_FILE] or (len(inside) > 1 and inside[0] == SIGNATURE_FOLDER):
                yanked_or_signed.add((folder, inside[0]))
        return {reference: self._entry(reference, yanked_or_signed) for reference in references}

    def _entry_of_index(self, reference: Reference, item: IndexedRelease) -> ReleaseEntry:
        try:
            yanked = None if item.yanked is None else read_yanked(item.yanked)
        except ReleaseError as error:
            return ReleaseEntry(reference, "", unreadable=f"{reference} in {self._transport.where}: {error}")
        return ReleaseEntry(reference, item.sha256, yanked, item.signed, item.tier)

    def _entry(self, reference: Reference, yanked_or_signed: set[tuple[str, str]]) -> ReleaseEntry:
        folder, yanked = reference.folder, None
        try:
            sha256 = read_checksum(self._read_small(f"{folder}/{CHECKSUM}", 1_000))
            if (folder, YANKED) in yanked_or_signed:
                yanked = read_yanked(self._read_small(f"{folder}/{YANKED}/{YANKED_FILE}", MAX_BYTES))
        except ReleaseError as error:
            return ReleaseEntry(reference, "", unreadable=f"{reference} in {self._transport.where}: {error}")
        return ReleaseEntry(reference, sha256, yanked, (folder, SIGNATURE_FOLDER) in yanked_or_signed)

    def _read_small(self, path: str, max_bytes: int) -> bytes:
        return small_file(self._transport.open(path), path, max_bytes)


def small_file(file: IO[bytes], path: str, max_bytes: int) -> bytes:
    """Return the content of a file of a registry, and close the file; `path` is its name in messages.

    Raises:
        ReleaseError: the file cannot be read, or has more than `max_bytes` bytes.
    """
    with file:
        try:
            data = file.read(max_bytes + 1)
        except OSError as error:
            raise ReleaseError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > max_bytes:
        raise ReleaseError(f"{path} is larger than {max_bytes:,} bytes, the maximum for this file")
    return data


def _sort_key(reference: Reference) -> tuple[str, str, str, Key]:
    return reference.kind, reference.owner, reference.name, version_order(reference.version or "")
