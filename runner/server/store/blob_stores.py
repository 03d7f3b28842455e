"""Choice of the blob store that a server's settings name."""

from __future__ import annotations

from runner.server.settings import Settings
from runner.server.store.blobs import Blobs, DiskBlobs


def blobs_of(settings: Settings) -> Blobs:
    """Open the server's blob store; raise UsageError if its URL is not valid."""
    if settings.blobs is None:
        return DiskBlobs(settings.folder / "blobs")
    from runner.server.store.object_store import ObjectBlobs

    return ObjectBlobs(settings.blobs)
