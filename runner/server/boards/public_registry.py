"""The public releases of a server, as the registry that the board worker reads, and the worker's cache of their data.

`PublicRegistry` lists all releases with a few queries. `MemoryBoardCache` stores what it has read from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Self

from sqlalchemy import Select, select

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
from runner.server.visible_tree import ServerTree


@dataclass(frozen=True)
class PublicRelease:
    """Columns of a public release in the database."""

    id: int
    publisher: int
    """Id of the account that published the release."""
    created: float


class PublicRegistry(Registry):
    """The public releases of a server at one revision of its database."""

    def __init__(self, database: Database, blobs: BlobStore, address: str, limits: Limits) -> None:
        super().__init__(ServerTree(database, blobs, address=address), limits)
        self._blobs = blobs
        self.listed: dict[Reference, PublicRelease] = {}
        with database.reading() as connection:
            self.revision = database.revision(connection)
            parts = {(row.release_id, row.part): row.sha256 for row in connection.execute(_select_parts())}
            rows = connection.execute(select(releases).where(releases.c.visibility == "public")).all()
        entries = []
        for row in rows:
            reference = reference_of(row)
            self.listed[reference] = PublicRelease(row.id, row.publisher_id, row.created)
            yanked, signed = parts.get((row.id, YANKED)), (row.id, SIGNATURE_FOLDER) in parts
            entries.append(self._entry(reference, row.sha256, yanked, signed))
        self._entries = sorted(entries, key=_sort_key)

    def publication_order(self) -> dict[str, int]:
        """Return each release's position in the order of publication (its row id), by the release's hash."""
        return {entry.sha256: self.listed[entry.reference].id for entry in self._entries}

    def restricted_to(self, entries: Iterable[ReleaseEntry]) -> Self:
        """Return a copy of this registry that has only these releases."""
        subset, selected = copy(self), set(entries)
        subset._entries = [entry for entry in self._entries if entry in selected]  # noqa: SLF001 - its own class
        return subset

    def _entry(self, reference: Reference, sha256: str, yanked: str | None, signed: bool) -> ReleaseEntry:
        try:
            data = None if yanked is None else read_small_file(self._blobs.open(yanked), YANKED_FILE, MAX_BYTES)
            reason = None if data is None else parse_yanked_file(data)
        except ReleaseError as error:
            return ReleaseEntry(reference, "", unreadable=f"{reference}: {error}")
        return ReleaseEntry(reference, sha256, reason, signed)

    def entries(self, kind: Kind | None = None) -> list[ReleaseEntry]:
        """Return the releases, or those of one kind, sorted by name and version."""
        return [entry for entry in self._entries if kind in (None, entry.reference.kind)]


def _select_parts() -> Select[Any]:
    """Return a query for the hashes of the yanks and signatures of public releases."""
    public = releases.c.visibility == "public"
    query = select(files.c.release_id, files.c.part, files.c.sha256).join(releases, releases.c.id == files.c.release_id)
    return query.where(public, files.c.part != "")


def _sort_key(entry: ReleaseEntry) -> tuple[Any, ...]:
    reference = entry.reference
    return reference.kind, reference.owner, reference.name, version_order(reference.version or "")


_WEIGHTS = "weights/"


@dataclass(frozen=True)
class MemoryBoardCache(BoardCache):
    """A cache on disk and in memory, so that a new board reads only new releases."""

    _releases: dict[str, Release] = field(default_factory=dict)
    _runs: dict[str, CachedRun] = field(default_factory=dict)
    _checked_training: set[str] = field(default_factory=set)
    """Hashes of the training runs that have been checked."""
    _nodes: dict[tuple[str, str | None], LineageNode] = field(default_factory=dict)
    """Lineage nodes, by the hash of the release and the reason if it is yanked."""
    _datapoint_hashes: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)
    """Lists of datapoints' hashes. Runs on the same datapoints share one list, to save memory."""

    def load_release(self, registry: Registry, entry: ReleaseEntry) -> Release:
        """Return a release's manifest. To save memory, it lacks the files that boards do not need."""
        if entry.sha256 not in self._releases:
            self._releases[entry.sha256] = self._trim(super().load_release(registry, entry))
        return self._releases[entry.sha256]

    def full_release(self, registry: Registry, entry: ReleaseEntry) -> Release:
        """Return the complete manifest of a release."""
        return super().load_release(registry, entry)

    def lineage_node(self, entry: ReleaseEntry, release: Release) -> LineageNode:
        """Return the node of a run or model in the lineage graph, from memory if possible."""
        key = (entry.sha256, entry.yanked)
        if key not in self._nodes:
            self._nodes[key] = super().lineage_node(entry, release)
        return self._nodes[key]

    def files_to_read(self, entry: ReleaseEntry, release: Release) -> list[str]:
        """Return the files to prefetch for a run: none if the run is cached."""
        return [] if entry.sha256 in self._runs else super().files_to_read(entry, release)

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
        """Return the content hashes of a run's datapoints, from files that only the complete manifest lists."""
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
        """Return a release without the files that boards do not need, and with a shared list of datapoints."""
        needed = [file for file in release.files if file.path == ROLLOUTS or file.path.startswith(_WEIGHTS)]
        facts = dict(release.facts)
        hashes = facts.get("datapoints_sha256")
        if isinstance(hashes, list):
            facts["datapoints_sha256"] = self._datapoint_hashes.setdefault(tuple(map(str, hashes)), hashes)
        return replace(release, files=tuple(needed), facts=facts)
