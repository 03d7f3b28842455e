"""Where a server's blobs are, by what its settings say."""

from __future__ import annotations

from runner.server.settings import Settings
from runner.server.store.blobs import Blobs, DiskBlobs


def blobs_of(settings: Settings) -> Blobs:
    """Raises: UsageError: no place for blobs is named so."""
    if settings.blobs is None:
        return DiskBlobs(settings.folder / "blobs")
    from runner.server.store.object_store import ObjectBlobs

    return ObjectBlobs(settings.blobs)
