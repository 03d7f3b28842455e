"""Read access to the releases that a viewer (the account that sends a request) may see.

`VisibleReleases` implements `Transport`, the interface to the tree of files in a registry. The API sends files from it,
and all other code of the server loads releases through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import IO, Any

from sqlalchemy import ColumnElement, Connection, Row, Select, or_, select
from sqlalchemy.exc import SQLAlchemyError

from runner.base.errors import NotFoundError, UsageError
from runner.documents.releases.bundle import Content
from runner.documents.releases.reference import Reference
from runner.registry.release_errors import RegistryUnavailableError
from runner.registry.transports.interface import AddResult, IndexedRelease, StoredFile
from runner.registry.transports.listing import SIGNATURE_FOLDER, read_small_file
from runner.registry.transports.registry import Registry
from runner.registry.transports.yanks import MAX_YANK_BYTES, YANKED, YANKED_FILE
from runner.server.accounts.accounts import ANYBODY, Viewer
from runner.server.settings import Settings
from runner.server.store.blob_stores import open_blob_store
from runner.server.store.blobs import BlobStore
from runner.server.store.database import Database
from runner.server.store.schema import files, is_release, reference_of, releases

MAX_PAGE_SIZE = 1_000
"""Maximum number of entries of a list in one response."""
_LAST_CHARACTER = "\U0010ffff"


class VisibleReleases:
    """The files of the releases that a viewer may see. Each call reads the current state of the database."""

    def __init__(
        self, database: Database, blobs: BlobStore, viewer: Viewer = ANYBODY, *, address: str = "server:"
    ) -> None:
        self._database, self._blobs, self._viewer = database, blobs, viewer
        self.address = address
        """The name of this registry in error messages: the server's URL, or "server:"."""

    def list_files(self, prefix: str = "") -> Iterator[StoredFile]:
        query = self._visible_files().order_by(files.c.path)
        if prefix:
            query = query.where(files.c.path >= prefix, files.c.path < prefix + _LAST_CHARACTER)
        with _database_errors_as_unavailable(), self._database.reading() as connection:
            rows = connection.execute(query).all()
        yield from (StoredFile(row.path, row.size) for row in rows)

    def open(self, path: str) -> IO[bytes]:
        with _database_errors_as_unavailable():
            hash_and_size = self.find_file(path)
        if hash_and_size is None:
            raise NotFoundError(f"{self.address} has no file {path}; check the path")
        return self._blobs.open(hash_and_size[0])

    def find_file(self, path: str) -> tuple[str, int] | None:
        """Return the hash and size of a file, or None if the viewer sees no such file."""
        return self.find_files([path]).get(path)

    def find_files(self, paths: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Return the hash and size of each of these files that the viewer sees."""
        query = self._visible_files().where(files.c.path.in_([path for path in paths if "\0" not in path]))
        with self._database.reading() as connection:
            return {row.path: (row.sha256, row.size) for row in connection.execute(query)}

    def list_release_page(self, prefix: str, after: str, limit: int) -> list[IndexedRelease]:
        """Return the next releases whose folder starts with `prefix`, after the release in the folder `after`.

        `after` is a folder and not a row id, because row ids would reveal the number of private releases.

        Raises:
            UsageError: the viewer sees no release in the folder `after`.
        """
        columns = (releases.c.kind, releases.c.owner, releases.c.name, releases.c.version)
        *names, partial = prefix.split("/")  # complete names, and the beginning of the next name
        if "\0" in prefix or len(names) > len(columns) or (len(names) == len(columns) and partial):
            return []
        query = select(releases).where(visible_to(self._viewer)).order_by(releases.c.id)
        for column, name in zip(columns, names, strict=False):
            query = query.where(column == name)
        if partial:
            query = query.where(columns[len(names)].startswith(partial, autoescape=True))
        with self._database.reading() as connection:
            if after:
                query = query.where(releases.c.id > self._find_row_id(connection, after))
            rows = connection.execute(query.limit(limit)).all()
            additions = find_added_files(connection, files.c.release_id.in_([row.id for row in rows]))
        return [self._index_entry(row, additions) for row in rows]

    def _find_row_id(self, connection: Connection, folder: str) -> int:
        """Return the row id of a release that the viewer sees; raise UsageError if the folder has none."""
        reference = Reference.of_folder(folder)
        row_id = None
        if reference is not None:
            query = select(releases.c.id).where(visible_to(self._viewer), is_release(reference))
            row_id = connection.execute(query).scalar()
        if row_id is None:
            raise UsageError("`after` names no release that you can see; list the releases again without `after`")
        return int(row_id)

    def _index_entry(self, row: Row[Any], additions: Mapping[tuple[int, str], str]) -> IndexedRelease:
        yanked = None
        if (sha256 := additions.get((row.id, YANKED))) is not None:
            yanked = read_yank(self._blobs, sha256)
        has_signature = (row.id, SIGNATURE_FOLDER) in additions
        return IndexedRelease(reference_of(row).folder, row.sha256, yanked, has_signature)

    def _visible_files(self) -> Select[tuple[str, str, int]]:
        query = select(files.c.path, files.c.sha256, files.c.size).join(releases, releases.c.id == files.c.release_id)
        return query.where(visible_to(self._viewer))

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> AddResult:  # noqa: ARG002
        raise UsageError(f"{self.address} is opened read-only here; publish with `nip-run publish --to URL`")

    def close(self) -> None:
        """Do nothing, because no file or connection stays open."""


@contextmanager
def _database_errors_as_unavailable() -> Iterator[None]:
    """Raise an error of the database in this block as a RegistryUnavailableError."""
    try:
        yield
    except SQLAlchemyError as error:
        raise RegistryUnavailableError("the server's database does not answer; try again in a minute") from error


@contextmanager
def open_registry(settings: Settings, viewer: Viewer) -> Iterator[Registry]:
    """Open a registry of the releases that a viewer may see, with connections to the database of its own."""
    blobs = open_blob_store(settings)
    with closing(Database(settings.database_url)) as database:
        yield Registry(VisibleReleases(database, blobs, viewer, address=settings.address), settings.limits)


def find_added_files(connection: Connection, condition: ColumnElement[bool]) -> dict[tuple[int, str], str]:
    """Return the hash of each yank and signature, by the row id of its release, and `YANKED` or `SIGNATURE_FOLDER`.

    They are files that were added to a release. The column `part` has the name of their folder; other files have "".
    """
    query = select(files.c.release_id, files.c.part, files.c.sha256).where(files.c.part != "", condition)
    return {(row.release_id, row.part): row.sha256 for row in connection.execute(query)}


def read_yank(blobs: BlobStore, sha256: str) -> bytes:
    """Return the content of a `yanked.json`; b"", which is not valid, if its blob is lost.

    So readers refuse this release, and can still list the others.
    """
    try:
        return read_small_file(blobs.open(sha256), YANKED_FILE, MAX_YANK_BYTES)
    except NotFoundError:
        return b""


def visible_to(viewer: Viewer) -> ColumnElement[bool]:
    """Return the SQL condition for releases that a viewer may see. Every query for a viewer must include it."""
    return or_(releases.c.visibility == "public", releases.c.owner.in_(viewer.account_names))
