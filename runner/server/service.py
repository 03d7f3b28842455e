"""The state of a server that all requests share."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

from runner.server.settings import Settings
from runner.server.store.backup import back_up
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
        """Open the database and the blobs. A database of an earlier version is backed up, then upgraded.

        Raises:
            UsageError, RunError: the database or the blobs cannot be used.
        """

        def back_up_first(database: Database, schema: int) -> None:
            file_name = f"before-upgrade-{schema}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.backup"
            back_up(database, settings.folder / file_name, schema)

        database, blobs = Database(settings.database_url, before_upgrade=back_up_first), open_blob_store(settings)
        return cls(settings, database, blobs, Publishing(settings, database, blobs))
