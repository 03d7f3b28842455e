"""What a server holds, as one viewer may see it: a place like any other that releases are read from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from sqlalchemy import ColumnElement, Connection, Row, Select, or_, select

from runner.base.errors import NotPublished, UsageError
from runner.documents.releases.bundle import Content
from runner.documents.releases.reference import Reference
from runner.registry.transports.interface import Added, Indexed, Stored
from runner.registry.transports.listing import SIGNATURE, small_file
from runner.registry.transports.yanks import MAX_BYTES, YANKED, YANKED_FILE
from runner.server.accounts.accounts import ANYBODY, Viewer
from runner.server.store.blobs import Blobs
from runner.server.store.database import Database
from runner.server.store.schema import files, is_release, releases

PAGE = 1_000
_AFTER_ALL = "\U0010ffff"


class ServerTree:
    """See `Transport`; to read alone. Each call sees the server as it is then."""

    def __init__(self, database: Database, blobs: Blobs, viewer: Viewer = ANYBODY, *, where: str = "server:") -> None:
        self._database, self._blobs, self._viewer = database, blobs, viewer
        self.where = where

    def stored(self, prefix: str = "") -> Iterator[Stored]:
        after = ""
        while page := self.page(prefix, after, PAGE):
            yield from page
            after = page[-1].path

    def page(self, prefix: str, after: str, most: int) -> list[Stored]:
        """The next files whose path begins so, in the order of their paths."""
        if "\0" in prefix + after:
            return []  # which PostgreSQL takes for an error
        query = self._seen().where(files.c.path > after).order_by(files.c.path).limit(most)
        if prefix:
            query = query.where(files.c.path >= prefix, files.c.path < prefix + _AFTER_ALL)
        with self._database.reading() as connection:
            return [Stored(row.path, row.size) for row in connection.execute(query)]

    def open(self, path: str) -> IO[bytes]:
        found = self.find(path)
        if found is None:
            raise NotPublished(f"{self.where} has no file {path}")
        return self._blobs.open(found[0])

    def find(self, path: str) -> tuple[str, int] | None:
        """The hash and size of a file; None where the viewer sees none."""
        if "\0" in path:
            return None
        with self._database.reading() as connection:
            row = connection.execute(self._seen().where(files.c.path == path)).one_or_none()
        return None if row is None else (row.sha256, row.size)

    def found(self, paths: Sequence[str]) -> dict[str, tuple[str, int]]:
        """The hash and size of each of these files that the viewer sees."""
        query = self._seen().where(files.c.path.in_([path for path in paths if "\0" not in path]))
        with self._database.reading() as connection:
            return {row.path: (row.sha256, row.size) for row in connection.execute(query)}

    def index(self, prefix: str = "") -> Iterator[Indexed]:
        after = ""
        while page := self.index_page(prefix, after, PAGE):
            yield from page
            after = page[-1].folder

    def index_page(self, prefix: str, after: str, most: int) -> list[Indexed]:
        """Return the next releases whose folder's path begins so; `after` is the folder of the last one before them.

        The number of a row is not used as a cursor: it would count the releases that the viewer must not know of.

        Raises:
            UsageError: the viewer sees no release in the folder `after`.
        """
        names = (releases.c.kind, releases.c.owner, releases.c.name, releases.c.version)
        *whole, rest = prefix.split("/")
        if "\0" in prefix or len(whole) > len(names) or (len(whole) == len(names) and rest):
            return []
        query = select(releases).where(seen_by(self._viewer)).order_by(releases.c.id)
        for column, name in zip(names, whole, strict=False):
            query = query.where(column == name)
        if rest:
            query = query.where(names[len(whole)].startswith(rest, autoescape=True))
        with self._database.reading() as connection:
            if after:
                query = query.where(releases.c.id > self._row_id(connection, after))
            rows = connection.execute(query.limit(most)).all()
            of_parts = select(files.c.release_id, files.c.part, files.c.sha256).where(files.c.part != "")
            found = connection.execute(of_parts.where(files.c.release_id.in_([row.id for row in rows])))
            parts = {(row.release_id, row.part): row.sha256 for row in found}
        return [self._indexed(row, parts) for row in rows]

    def _row_id(self, connection: Connection, folder: str) -> int:
        """Return the number of a release that the viewer sees. Raises UsageError: there is none in the folder."""
        reference = Reference.of_folder(folder)
        found = None
        if reference is not None:
            query = select(releases.c.id).where(seen_by(self._viewer), is_release(reference))
            found = connection.execute(query).scalar()
        if found is None:
            raise UsageError("there is no such release to continue after; list the releases again from the start")
        return int(found)

    def _indexed(self, row: Row[Any], parts: Mapping[tuple[int, str], str]) -> Indexed:
        yanked = None
        if (sha256 := parts.get((row.id, YANKED))) is not None:
            yanked = small_file(self._blobs.open(sha256), YANKED_FILE, MAX_BYTES)
        folder = f"{row.kind}/{row.owner}/{row.name}/{row.version}"
        return Indexed(folder, row.sha256, yanked, (row.id, SIGNATURE) in parts)

    def expect(self, paths: Sequence[str]) -> None:
        """They are near."""

    def _seen(self) -> Select[tuple[str, str, int]]:
        found = select(files.c.path, files.c.sha256, files.c.size).join(releases, releases.c.id == files.c.release_id)
        return found.where(seen_by(self._viewer))

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> Added:  # noqa: ARG002
        raise UsageError("what a server holds is added to by uploads")

    def close(self) -> None:
        """Nothing is held open."""


def seen_by(viewer: Viewer) -> ColumnElement[bool]:
    """The releases that a viewer may know of: every query of what is shown has this."""
    return or_(releases.c.visibility == "public", releases.c.owner.in_(viewer.owners))
