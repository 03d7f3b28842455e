"""The releases on a server that one viewer may see, as a read-only `Transport`: the interface to a registry's files.

The API serves its files, and everything on the server that loads a release reads it from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from sqlalchemy import ColumnElement, Connection, Row, Select, or_, select

from runner.base.errors import NotFoundError, UsageError
from runner.documents.releases.bundle import Content
from runner.documents.releases.reference import Reference
from runner.registry.transports.interface import AddResult, IndexedRelease, StoredFile
from runner.registry.transports.listing import SIGNATURE_FOLDER, read_small_file
from runner.registry.transports.registry import Registry
from runner.registry.transports.yanks import MAX_BYTES, YANKED, YANKED_FILE
from runner.server.accounts.accounts import ANYBODY, Viewer
from runner.server.settings import Settings
from runner.server.store.blob_stores import open_blob_store
from runner.server.store.blobs import BlobStore
from runner.server.store.database import Database
from runner.server.store.schema import files, is_release, reference_of, releases

MAX_PAGE_SIZE = 1_000
"""Maximum number of entries of a list in one response."""
_LAST_CHARACTER = "\U0010ffff"


class ServerTree:
    """A read-only `Transport` for the releases that a viewer may see. Each call reads the current database."""

    def __init__(
        self, database: Database, blobs: BlobStore, viewer: Viewer = ANYBODY, *, address: str = "server:"
    ) -> None:
        self._database, self._blobs, self._viewer = database, blobs, viewer
        self.address = address

    def list_files(self, prefix: str = "") -> Iterator[StoredFile]:
        query = self._visible_files().order_by(files.c.path)
        if prefix:
            query = query.where(files.c.path >= prefix, files.c.path < prefix + _LAST_CHARACTER)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        yield from (StoredFile(row.path, row.size) for row in rows)

    def open(self, path: str) -> IO[bytes]:
        file = self.find(path)
        if file is None:
            raise NotFoundError(f"{self.address} has no file {path}; check the path")
        return self._blobs.open(file[0])

    def find(self, path: str) -> tuple[str, int] | None:
        """Return the hash and size of a file, or None if the viewer sees no such file."""
        return self.find_all([path]).get(path)

    def find_all(self, paths: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Return the hash and size of each of these files that the viewer sees."""
        query = self._visible_files().where(files.c.path.in_([path for path in paths if "\0" not in path]))
        with self._database.reading() as connection:
            return {row.path: (row.sha256, row.size) for row in connection.execute(query)}

    def page_of_releases(self, prefix: str, after: str, limit: int) -> list[IndexedRelease]:
        """Return the next releases whose folder starts with `prefix`, after the release in the folder `after`.

        `after` is a folder and not a row id, because row ids would reveal the number of private releases.

        Raises:
            UsageError: the viewer sees no release in the folder `after`.
        """
        names = (releases.c.kind, releases.c.owner, releases.c.name, releases.c.version)
        *complete, partial = prefix.split("/")
        if "\0" in prefix or len(complete) > len(names) or (len(complete) == len(names) and partial):
            return []
        query = select(releases).where(visible_to(self._viewer)).order_by(releases.c.id)
        for column, name in zip(names, complete, strict=False):
            query = query.where(column == name)
        if partial:
            query = query.where(names[len(complete)].startswith(partial, autoescape=True))
        with self._database.reading() as connection:
            if after:
                query = query.where(releases.c.id > self._row_id(connection, after))
            rows = connection.execute(query.limit(limit)).all()
            of_parts = select(files.c.release_id, files.c.part, files.c.sha256).where(files.c.part != "")
            part_rows = connection.execute(of_parts.where(files.c.release_id.in_([row.id for row in rows])))
            parts = {(row.release_id, row.part): row.sha256 for row in part_rows}
        return [self._indexed(row, parts) for row in rows]

    def _row_id(self, connection: Connection, folder: str) -> int:
        """Return the row id of a release that the viewer sees; raise UsageError if the folder has none."""
        reference = Reference.of_folder(folder)
        row_id = None
        if reference is not None:
            query = select(releases.c.id).where(visible_to(self._viewer), is_release(reference))
            row_id = connection.execute(query).scalar()
        if row_id is None:
            raise UsageError("`after` names no release that you can see; list the releases again without `after`")
        return int(row_id)

    def _indexed(self, row: Row[Any], parts: Mapping[tuple[int, str], str]) -> IndexedRelease:
        yanked = None
        if (sha256 := parts.get((row.id, YANKED))) is not None:
            yanked = read_small_file(self._blobs.open(sha256), YANKED_FILE, MAX_BYTES)
        return IndexedRelease(reference_of(row).folder, row.sha256, yanked, (row.id, SIGNATURE_FOLDER) in parts)

    def announce_files(self, paths: Sequence[str]) -> None:
        """Do nothing. Prefetching would not help, because the blob store is local."""

    def _visible_files(self) -> Select[tuple[str, str, int]]:
        query = select(files.c.path, files.c.sha256, files.c.size).join(releases, releases.c.id == files.c.release_id)
        return query.where(visible_to(self._viewer))

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> AddResult:  # noqa: ARG002
        raise UsageError(f"{self.address} is opened read-only here; publish with `nip-run publish --to URL`")

    def close(self) -> None:
        """Do nothing, because no file or connection stays open."""


def open_registry(settings: Settings, viewer: Viewer) -> Registry:
    """Return a registry of the releases that a viewer may see, in a process without a `Service`."""
    tree = ServerTree(Database(settings.database_url), open_blob_store(settings), viewer, address=settings.address)
    return Registry(tree, settings.limits)


def visible_to(viewer: Viewer) -> ColumnElement[bool]:
    """Return the SQL condition for releases that a viewer may see. Every query for a viewer must include it."""
    return or_(releases.c.visibility == "public", releases.c.owner.in_(viewer.owners))
