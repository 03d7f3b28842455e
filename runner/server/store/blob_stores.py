"""Opens the blob store that a server's settings select."""

from __future__ import annotations

from runner.server.settings import Settings
from runner.server.store.blobs import BlobStore, DiskBlobStore


def open_blob_store(settings: Settings) -> BlobStore:
    """Open the server's blob store; raise UsageError if its URL is not valid."""
    if settings.blobs is None:
        return DiskBlobStore(settings.folder / "blobs")
    from runner.server.store.object_store import ObjectBlobStore

    return ObjectBlobStore(settings.blobs)
