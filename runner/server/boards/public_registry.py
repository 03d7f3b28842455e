"""The public releases of a server, as the board worker reads them, and the worker's cache.

`PublicRegistry` lists all public releases with a few queries. `MemoryBoardCache` caches manifests and checked runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Self

from sqlalchemy import select

from runner.base.errors import ReleaseError
from runner.documents.releases.limits import Limits
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind, Reference, version_order
from runner.registry.board.cache import BoardCache, CachedRun
from runner.registry.lineage.nodes import LineageNode
from runner.registry.transports.listing import SIGNATURE_FOLDER, ReleaseEntry
from runner.registry.transports.registry import Registry
from runner.registry.transports.yanks import YANKED, parse_yanked_file
from runner.server.store.blobs import BlobStore
from runner.server.store.database import Database
from runner.server.store.schema import files, reference_of, releases
from runner.server.visible_releases import VisibleReleases, find_added_files, read_yank


@dataclass(frozen=True)
class PublicRelease:
    """Columns of a public release in the database."""

    id: int
    publisher_id: int
    """Row id of the account that published the release."""
    created: float


class PublicRegistry(Registry):
    """The public releases of a server at one revision of its database."""

    def __init__(self, database: Database, blobs: BlobStore, address: str, limits: Limits) -> None:
        super().__init__(VisibleReleases(database, blobs, address=address), limits)
        self._blobs = blobs
        self.public_releases: dict[Reference, PublicRelease] = {}
        with database.reading() as connection:
            self.revision = database.revision(connection)
            is_public = releases.c.visibility == "public"
            rows = connection.execute(select(releases).where(is_public)).all()
            parts = find_added_files(connection, files.c.release_id.in_(select(releases.c.id).where(is_public)))
        entries = []
        for row in rows:
            reference = reference_of(row)
            self.public_releases[reference] = PublicRelease(row.id, row.publisher_id, row.created)
            yank_sha256, signed = parts.get((row.id, YANKED)), (row.id, SIGNATURE_FOLDER) in parts
            entries.append(self._build_entry(reference, row.sha256, yank_sha256, signed))
        self._entries = sorted(entries, key=_sort_key)

    def publication_order(self) -> dict[str, int]:
        """Return each release's position in the order of publication (its row id), by the release's hash."""
        return {entry.sha256: self.public_releases[entry.reference].id for entry in self._entries}

    def restricted_to(self, entries: Iterable[ReleaseEntry]) -> Self:
        """Return a copy of this registry that has only these releases."""
        subset, selected = copy(self), set(entries)
        subset._entries = [entry for entry in self._entries if entry in selected]  # noqa: SLF001 - same class
        return subset

    def _build_entry(self, reference: Reference, sha256: str, yank_sha256: str | None, signed: bool) -> ReleaseEntry:
        if yank_sha256 is None:
            return ReleaseEntry(reference, sha256, None, signed)
        try:
            reason = parse_yanked_file(read_yank(self._blobs, yank_sha256))
        except ReleaseError as error:
            return ReleaseEntry(reference, "", unreadable=f"{reference}: {error}")
        return ReleaseEntry(reference, sha256, reason, signed)

    def entries(self, kind: Kind | None = None) -> list[ReleaseEntry]:
        """Return the releases, or those of one kind, sorted by name and version."""
        return [entry for entry in self._entries if kind in (None, entry.reference.kind)]


def _sort_key(entry: ReleaseEntry) -> tuple[Any, ...]:
    reference = entry.reference
    return reference.kind, reference.owner, reference.name, version_order(reference.version or "")


@dataclass(frozen=True)
class MemoryBoardCache(BoardCache):
    """A cache on disk and in memory, so that each board reads only the releases that are new since the last board."""

    _releases: dict[str, Release] = field(default_factory=dict)
    _runs: dict[str, CachedRun] = field(default_factory=dict)
    _checked_training: set[str] = field(default_factory=set)
    """Hashes of the training runs that have been checked."""
    _nodes: dict[tuple[str, str | None], LineageNode] = field(default_factory=dict)
    """Lineage nodes, by the hash of the release and the reason if it is yanked."""
    _datapoint_hashes: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)
    """Lists of datapoints' hashes. Runs on the same datapoints share one list, to save memory."""

    def load_release(self, registry: Registry, entry: ReleaseEntry) -> Release:
        """Return a release's manifest, from memory if possible."""
        if entry.sha256 not in self._releases:
            release = super().load_release(registry, entry)
            hashes = release.facts.get("datapoints_sha256")
            if isinstance(hashes, list):
                shared_hashes = self._datapoint_hashes.setdefault(tuple(map(str, hashes)), hashes)
                release = replace(release, facts={**release.facts, "datapoints_sha256": shared_hashes})
            self._releases[entry.sha256] = release
        return self._releases[entry.sha256]

    def lineage_node(self, entry: ReleaseEntry, release: Release) -> LineageNode:
        """Return the node of a run or model in the lineage graph, from memory if possible."""
        key = (entry.sha256, entry.yanked)
        if key not in self._nodes:
            self._nodes[key] = super().lineage_node(entry, release)
        return self._nodes[key]

    def load_run(self, registry: Registry, entry: ReleaseEntry, release: Release) -> CachedRun:
        """Return a run after checking its metrics, from memory if possible."""
        if entry.sha256 not in self._runs:
            self._runs[entry.sha256] = super().load_run(registry, entry, release)
        return self._runs[entry.sha256]

    def check_training(self, registry: Registry, entry: ReleaseEntry, release: Release) -> None:
        """Check a training run, unless it has been checked before."""
        if entry.sha256 not in self._checked_training:
            super().check_training(registry, entry, release)
            self._checked_training.add(entry.sha256)

    def keep_only(self, public_hashes: set[str]) -> None:
        """Remove all releases from memory except the public ones, whose hashes are in `public_hashes`."""
        for cache in (self._releases, self._runs):
            for sha256 in cache.keys() - public_hashes:
                del cache[sha256]
        self._checked_training.intersection_update(public_hashes)
        for key in [key for key in self._nodes if key[0] not in public_hashes]:
            del self._nodes[key]
