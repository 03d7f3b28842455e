"""List the releases of a registry with their hashes, for the class `Registry`.

A listing reads only file names, checksum files and the reasons of yanked (withdrawn) releases, or a server's list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import IO

from runner.base.errors import ReleaseError, os_errors_as
from runner.documents.releases.manifest import CHECKSUM, read_checksum
from runner.documents.releases.reference import Kind, Reference, VersionKey, version_order
from runner.registry.transports.interface import BulkTransport, IndexedRelease, Transport
from runner.registry.transports.yanks import MAX_YANK_BYTES, YANKED, YANKED_FILE, parse_yanked_file

SIGNATURE_FOLDER, SIGNATURE_FILE = "signature", "release.json.sig"
MAX_SIGNATURE_BYTES = 1 << 20
_FOLDER_NAMES = 4
"""The number of folders in the path of a release: kind, owner, name, version."""


@dataclass(frozen=True)
class ReleaseEntry:
    """An entry in the list of a registry's releases. The release's files are not read or checked yet."""

    reference: Reference
    sha256: str
    """The hash of the manifest according to the checksum file. `Registry.read_manifest` checks the manifest."""
    yanked: str | None = None
    """The reason why the release was yanked; None if it was not yanked."""
    signed: bool = False
    tier: str = field(default="", compare=False)
    """The level of verification that the registry states for a run, without proof; empty if it states none."""
    unreadable: str | None = None
    """The error message if the release could not be listed, for example because its checksum file is damaged. With such
    a message, `sha256` is empty, and `Registry.read_manifest` raises an error with this message."""


class Listing:
    """The releases of one registry, from a cache after the first request."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._entries_by_prefix: dict[str, dict[Reference, ReleaseEntry]] = {}
        """The cache: the releases below each path that was listed; the empty path stands for the complete registry."""

    def clear(self) -> None:
        """Clear the cache, so that the next request lists the releases again."""
        self._entries_by_prefix.clear()

    def releases(self, kind: Kind | None) -> list[ReleaseEntry]:
        """Return the releases of a kind, or of all kinds, sorted by kind, owner, name and version (oldest first)."""
        return self._releases_below("" if kind is None else f"{kind}/")

    def publication_order(self) -> dict[str, int]:
        """Return the position of each release in a server's list, by its hash; empty if the registry is no server."""
        if not isinstance(self._transport, BulkTransport):
            return {}
        self._releases_below("")
        hashes = [entry.sha256 for entry in self._entries_by_prefix[""].values() if entry.unreadable is None]
        return {sha256: position for position, sha256 in enumerate(hashes)}

    def versions(self, reference: Reference) -> list[ReleaseEntry]:
        """Return all versions of a release, oldest first, without listing the rest of the registry."""
        return self._releases_below(f"{reference.kind}/{reference.owner}/{reference.name}/")

    def _releases_below(self, prefix: str) -> list[ReleaseEntry]:
        entries_below = self._entries_by_prefix.get("", self._entries_by_prefix.get(prefix))
        if entries_below is None:
            entries_below = self._entries_by_prefix[prefix] = self._list_entries(prefix)
        entries_with_prefix = [entry for entry in entries_below.values() if entry.reference.folder.startswith(prefix)]
        return sorted(entries_with_prefix, key=lambda entry: _sort_key(entry.reference))

    def _list_entries(self, prefix: str) -> dict[Reference, ReleaseEntry]:
        """List the releases whose paths start with a prefix, and return them by reference."""
        if isinstance(self._transport, BulkTransport):
            return {
                reference: self._indexed_entry(reference, item)
                for item in self._transport.list_releases(prefix)
                if (reference := Reference.of_folder(item.folder)) is not None
            }
        references: list[Reference] = []
        yanked_or_signed: set[tuple[str, str]] = set()  # the folder of a release, and YANKED or SIGNATURE_FOLDER
        for stored_file in self._transport.list_files(prefix):
            parts = stored_file.path.split("/", _FOLDER_NAMES + 2)
            folder, path_inside = "/".join(parts[:_FOLDER_NAMES]), parts[_FOLDER_NAMES:]
            if path_inside == [CHECKSUM] and (reference := Reference.of_folder(folder)) is not None:
                references.append(reference)
            elif path_inside in ([YANKED, YANKED_FILE], [SIGNATURE_FOLDER, SIGNATURE_FILE]):
                yanked_or_signed.add((folder, path_inside[0]))
        return {reference: self._entry(reference, yanked_or_signed) for reference in references}

    def _indexed_entry(self, reference: Reference, item: IndexedRelease) -> ReleaseEntry:
        """Return the entry of a release in a server's list."""
        try:
            yanked = None if item.yanked is None else parse_yanked_file(item.yanked)
        except ReleaseError as error:
            return ReleaseEntry(reference, "", unreadable=f"{reference} in {self._transport.address}: {error}")
        return ReleaseEntry(reference, item.sha256, yanked, item.signed, item.tier)

    def _entry(self, reference: Reference, yanked_or_signed: set[tuple[str, str]]) -> ReleaseEntry:
        """Return the entry of a release from its checksum file and, if it is yanked, the reason."""
        folder, yanked = reference.folder, None
        try:
            sha256 = read_checksum(self._read_small(f"{folder}/{CHECKSUM}", 1_000))
            if (folder, YANKED) in yanked_or_signed:
                yanked = parse_yanked_file(self._read_small(f"{folder}/{YANKED}/{YANKED_FILE}", MAX_YANK_BYTES))
        except ReleaseError as error:
            return ReleaseEntry(reference, "", unreadable=f"{reference} in {self._transport.address}: {error}")
        return ReleaseEntry(reference, sha256, yanked, (folder, SIGNATURE_FOLDER) in yanked_or_signed)

    def _read_small(self, path: str, max_bytes: int) -> bytes:
        return read_small_file(self._transport.open(path), path, max_bytes)


def read_small_file(file: IO[bytes], path: str, max_bytes: int) -> bytes:
    """Return the content of an open file of a registry, and close the file. Messages show `path`.

    Raises:
        ReleaseError: the file cannot be read, or has more than `max_bytes` bytes.
    """
    with file, os_errors_as(ReleaseError, f"cannot read {path}"):
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ReleaseError(f"{path} is larger than {max_bytes:,} bytes, the maximum for this file")
    return data


def _sort_key(reference: Reference) -> tuple[str, str, str, VersionKey]:
    return reference.kind, reference.owner, reference.name, version_order(reference.version or "")
