"""The files of a registry into the releases that it lists, each with its hash; nothing of a release itself is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import IO

from runner.base.errors import ReleaseError
from runner.documents.releases.manifest import CHECKSUM, read_checksum
from runner.documents.releases.reference import Kind, Reference
from runner.documents.releases.versions import Key, version_order
from runner.registry.transports.interface import Indexed, Swift, Transport
from runner.registry.transports.yanks import MAX_BYTES, YANKED, YANKED_FILE, read_yanked

SIGNATURE = "signature"
_FOLDER = 4
"""Names that lead to a release: kind, owner, name, version."""


@dataclass(frozen=True)
class ReleaseEntry:
    """A release that a registry lists."""

    reference: Reference
    sha256: str
    """Of its manifest, as its checksum says; whoever reads the manifest compares them."""
    yanked: str | None = None
    """Why it was yanked; None where it was not."""
    signed: bool = False
    vouched: str = field(default="", compare=False)
    """How far the place says that it has checked a run, which is its word alone; "": it says nothing."""
    unreadable: str | None = None
    """Why nothing of it can be read, as where its checksum is damaged: it is listed nevertheless, without a hash, and
    `Registry.read` raises this. One release that is damaged keeps nobody from the others."""


class Listing:
    """The releases of one place, as they were when they were first asked for."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._listed: dict[str, dict[Reference, ReleaseEntry]] = {}
        """By the prefix of the paths that were looked at; the empty one is the whole registry."""

    def forget(self) -> None:
        """Look again when next asked."""
        self._listed.clear()

    def of_kind(self, kind: Kind | None) -> list[ReleaseEntry]:
        """All releases, or those of a kind, by kind, owner, name, and version from the oldest."""
        return self._below("" if kind is None else f"{kind}/")

    def of_name(self, reference: Reference) -> list[ReleaseEntry]:
        """All versions of a release, from the oldest. Nothing else of the registry is looked at."""
        return self._below(f"{reference.kind}/{reference.owner}/{reference.name}/")

    def _below(self, prefix: str) -> list[ReleaseEntry]:
        whole = self._listed.get("")
        listed = self._listed.get(prefix) if whole is None else whole
        if listed is None:
            listed = self._listed[prefix] = self._read(prefix)
        found = [entry for entry in listed.values() if entry.reference.folder.startswith(prefix)]
        return sorted(found, key=lambda entry: _order(entry.reference))

    def _read(self, prefix: str) -> dict[Reference, ReleaseEntry]:
        if isinstance(self._transport, Swift):
            known = ((Reference.of_folder(one.folder), one) for one in self._transport.index(prefix))
            return {reference: self._of_index(reference, one) for reference, one in known if reference is not None}
        there: list[Reference] = []
        marks: set[tuple[str, str]] = set()
        for stored in self._transport.stored(prefix):
            parts = stored.path.split("/", _FOLDER + 2)
            folder, inside = "/".join(parts[:_FOLDER]), parts[_FOLDER:]
            if inside == [CHECKSUM] and (reference := Reference.of_folder(folder)) is not None:
                there.append(reference)
            elif inside == [YANKED, YANKED_FILE] or (len(inside) > 1 and inside[0] == SIGNATURE):
                marks.add((folder, inside[0]))
        return {reference: self._entry(reference, marks) for reference in there}

    def _of_index(self, reference: Reference, one: Indexed) -> ReleaseEntry:
        try:
            yanked = None if one.yanked is None else read_yanked(one.yanked)
        except ReleaseError as error:
            return ReleaseEntry(reference, "", unreadable=f"{reference} in {self._transport.where}: {error}")
        return ReleaseEntry(reference, one.sha256, yanked, one.signed, one.vouched)

    def _entry(self, reference: Reference, marks: set[tuple[str, str]]) -> ReleaseEntry:
        folder, yanked = reference.folder, None
        try:
            sha256 = read_checksum(self._small(f"{folder}/{CHECKSUM}", 1_000))
            if (folder, YANKED) in marks:
                yanked = read_yanked(self._small(f"{folder}/{YANKED}/{YANKED_FILE}", MAX_BYTES))
        except ReleaseError as error:
            return ReleaseEntry(reference, "", unreadable=f"{reference} in {self._transport.where}: {error}")
        return ReleaseEntry(reference, sha256, yanked, (folder, SIGNATURE) in marks)

    def _small(self, path: str, most: int) -> bytes:
        return small_file(self._transport.open(path), path, most)


def small_file(file: IO[bytes], path: str, most: int) -> bytes:
    """All of a file of a registry that has at most so many bytes; it is closed.

    Raises:
        ReleaseError: it cannot be read, or is larger.
    """
    with file:
        try:
            data = file.read(most + 1)
        except OSError as error:
            raise ReleaseError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > most:
        raise ReleaseError(f"{path} is larger than {most:,} bytes")
    return data


def _order(reference: Reference) -> tuple[str, str, str, Key]:
    return reference.kind, reference.owner, reference.name, version_order(reference.version or "")
