"""The state of a server that all requests share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from runner.server.settings import Settings
from runner.server.store.blob_stores import open_blob_store
from runner.server.store.blobs import BlobStore
from runner.server.store.database import Database
from runner.server.uploads.publishing import Publishing


@dataclass(frozen=True)
class Service:
    """The settings, database, blobs and publishing of one server."""

    settings: Settings
    database: Database
    blobs: BlobStore
    publishing: Publishing

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Open the database and the blobs.

        Raises:
            UsageError, RunError: the database or the blobs cannot be used.
        """
        database, blobs = Database(settings.database_url), open_blob_store(settings)
        return cls(settings, database, blobs, Publishing(settings, database, blobs))
