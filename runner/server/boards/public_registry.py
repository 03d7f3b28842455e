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
from runner.documents.releases.reference import Kind, Reference
from runner.documents.releases.versions import version_order
from runner.registry.board.cache import ROLLOUTS, BoardCache, CachedRun
from runner.registry.lineage.nodes import LineageNode
from runner.registry.transports.listing import SIGNATURE_FOLDER, ReleaseEntry, read_small_file
from runner.registry.transports.registry import Registry
from runner.registry.transports.yanks import MAX_BYTES, YANKED, YANKED_FILE, parse_yanked_file
from runner.server.store.blobs import BlobStore
from runner.server.store.database import Database
from runner.server.store.schema import files, reference_of, releases
from runner.server.visible_tree import ServerTree, find_parts


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
        super().__init__(ServerTree(database, blobs, address=address), limits)
        self._blobs = blobs
        self.public_releases: dict[Reference, PublicRelease] = {}
        with database.reading() as connection:
            self.revision = database.revision(connection)
            is_public = releases.c.visibility == "public"
            rows = connection.execute(select(releases).where(is_public)).all()
            parts = find_parts(connection, files.c.release_id.in_(select(releases.c.id).where(is_public)))
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
            reason = parse_yanked_file(read_small_file(self._blobs.open(yank_sha256), YANKED_FILE, MAX_BYTES))
        except ReleaseError as error:
            return ReleaseEntry(reference, "", unreadable=f"{reference}: {error}")
        return ReleaseEntry(reference, sha256, reason, signed)

    def entries(self, kind: Kind | None = None) -> list[ReleaseEntry]:
        """Return the releases, or those of one kind, sorted by name and version."""
        return [entry for entry in self._entries if kind in (None, entry.reference.kind)]


def _sort_key(entry: ReleaseEntry) -> tuple[Any, ...]:
    reference = entry.reference
    return reference.kind, reference.owner, reference.name, version_order(reference.version or "")


_WEIGHTS = "weights/"
"""The folder of a model release with the model's weights."""


@dataclass(frozen=True)
class MemoryBoardCache(BoardCache):
    """A cache on disk and in memory, so that each board reads only the releases that are new since the last board.

    The manifests in memory are incomplete (`_trim`). Methods that need a complete one call `full_release`.
    """

    _releases: dict[str, Release] = field(default_factory=dict)
    _runs: dict[str, CachedRun] = field(default_factory=dict)
    _checked_training: set[str] = field(default_factory=set)
    """Hashes of the training runs that have been checked."""
    _nodes: dict[tuple[str, str | None], LineageNode] = field(default_factory=dict)
    """Lineage nodes, by the hash of the release and the reason if it is yanked."""
    _datapoint_hashes: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)
    """Lists of datapoints' hashes. Runs on the same datapoints share one list, to save memory."""

    def load_release(self, registry: Registry, entry: ReleaseEntry) -> Release:
        """Return a release's manifest, without the files that boards do not need."""
        if entry.sha256 not in self._releases:
            self._releases[entry.sha256] = self._trim(super().load_release(registry, entry))
        return self._releases[entry.sha256]

    def full_release(self, registry: Registry, entry: ReleaseEntry) -> Release:
        """Return the complete manifest of a release, which is cached only on disk."""
        return super().load_release(registry, entry)

    def lineage_node(self, entry: ReleaseEntry, release: Release) -> LineageNode:
        """Return the node of a run or model in the lineage graph, from memory if possible."""
        key = (entry.sha256, entry.yanked)
        if key not in self._nodes:
            self._nodes[key] = super().lineage_node(entry, release)
        return self._nodes[key]

    def load_run(self, registry: Registry, entry: ReleaseEntry, release: Release) -> CachedRun:
        """Return the data of a run that a board needs, cached."""
        del release
        if entry.sha256 not in self._runs:
            self._runs[entry.sha256] = super().load_run(registry, entry, self.full_release(registry, entry))
        return self._runs[entry.sha256]

    def check_training(self, registry: Registry, entry: ReleaseEntry, release: Release) -> None:
        """Check a training run, unless it has been checked before."""
        del release
        if entry.sha256 not in self._checked_training:
            super().check_training(registry, entry, self.full_release(registry, entry))
            self._checked_training.add(entry.sha256)

    def load_datapoints(self, registry: Registry, entry: ReleaseEntry, release: Release) -> frozenset[str] | None:
        """Return the content hashes of a run's datapoints."""
        del release
        return super().load_datapoints(registry, entry, self.full_release(registry, entry))

    def keep_only(self, public: set[str]) -> None:
        """Remove all releases from memory except the public ones, whose hashes are in `public`."""
        for cached in (self._releases, self._runs):
            for sha256 in cached.keys() - public:
                del cached[sha256]
        self._checked_training.intersection_update(public)
        for key in [key for key in self._nodes if key[0] not in public]:
            del self._nodes[key]

    def _trim(self, release: Release) -> Release:
        """Return a release that takes less memory: with fewer files, and with a list of datapoints that runs share."""
        needed = [file for file in release.files if file.path == ROLLOUTS or file.path.startswith(_WEIGHTS)]
        facts = dict(release.facts)
        hashes = facts.get("datapoints_sha256")
        if isinstance(hashes, list):
            facts["datapoints_sha256"] = self._datapoint_hashes.setdefault(tuple(map(str, hashes)), hashes)
        return replace(release, files=tuple(needed), facts=facts)
