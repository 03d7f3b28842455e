"""What a server holds, as one viewer may see it: a place like any other that releases are read from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from sqlalchemy import ColumnElement, Select, or_, select

from runner.errors import NotPublished, UsageError
from runner.releases.bundle import Content
from runner.server.accounts import ANYBODY, Viewer
from runner.server.blobs import Blobs
from runner.server.database import Database
from runner.server.schema import files, releases
from runner.transports.base import Added, Stored

PAGE = 1_000
_AFTER_ALL = "\U0010ffff"


class ServerTree:
    """See `Transport`; to read alone. Each call sees the server as it is then."""

    def __init__(self, database: Database, blobs: Blobs, viewer: Viewer = ANYBODY, *, where: str = "server:") -> None:
        self._database, self._blobs, self._viewer = database, blobs, viewer
        self._where = where

    @property
    def where(self) -> str:
        return self._where

    def stored(self, prefix: str = "") -> Iterator[Stored]:
        after = ""
        while page := self.page(prefix, after, PAGE):
            yield from page
            after = page[-1].path

    def page(self, prefix: str, after: str, most: int) -> list[Stored]:
        """The next files whose path begins so, in the order of their paths."""
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
        with self._database.reading() as connection:
            row = connection.execute(self._seen().where(files.c.path == path)).one_or_none()
        return None if row is None else (row.sha256, row.size)

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
