"""What a server holds, shared by all that it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from runner.server.blobs import Blobs
from runner.server.database import Database
from runner.server.publishing import Publishing
from runner.server.settings import Settings
from runner.server.stores import blobs_of


@dataclass(frozen=True)
class Server:
    """What all requests share."""

    settings: Settings
    database: Database
    blobs: Blobs
    publishing: Publishing

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Raises: UsageError, RunError: its database or blobs cannot be used."""
        database, blobs = Database(settings.database_url), blobs_of(settings)
        return cls(settings, database, blobs, Publishing(settings, database, blobs))
