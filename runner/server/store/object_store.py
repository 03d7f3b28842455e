"""A blob store in S3 or a compatible service, through the library `obstore`; `nip-run serve --blobs URL` selects it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from runner.base.errors import NotFoundError, UsageError
from runner.base.hashing import SHA256
from runner.server.store.blobs import BlobStoreError


class ObjectBlobStore:
    """Stores a blob as the object `AB/ABCD...` under the URL's prefix, where `ABCD...` is its SHA-256."""

    def __init__(self, url: str) -> None:
        """Open the store; raise UsageError if the URL is not valid."""
        try:
            self._store = from_url(url)
        except (BaseError, ValueError) as error:
            raise UsageError(
                f"invalid URL of a blob store in --blobs: {str(error).splitlines()[0]}; write s3://BUCKET/PREFIX"
            ) from error

    @staticmethod
    def _key(sha256: str) -> str:
        return f"{sha256[:2]}/{sha256}"

    def has(self, sha256: str) -> bool:
        with _as_blob_store_error("the blob store does not answer"):
            try:
                obstore.head(self._store, self._key(sha256))
            except FileNotFoundError:
                return False
        return True

    def put(self, sha256: str, file: Path) -> None:
        if self.has(sha256):
            return
        with _as_blob_store_error(f"cannot store the blob {sha256[:12]}"):
            obstore.put(self._store, self._key(sha256), file)

    def open(self, sha256: str) -> IO[bytes]:
        with _as_blob_store_error(f"cannot read the blob {sha256[:12]}"):
            try:
                return io.BufferedReader(_RawReader(obstore.open_reader(self._store, self._key(sha256))))
            except FileNotFoundError as error:
                message = f"the server has lost the blob {sha256[:12]}; tell the server's administrator"
                raise NotFoundError(message) from error

    def hashes(self) -> Iterator[str]:
        with _as_blob_store_error("cannot list the blobs"):
            for entry in chain.from_iterable(obstore.list(self._store)):
                key = str(entry["path"])
                sha256 = key.rpartition("/")[2]
                if SHA256.fullmatch(sha256) and key == self._key(sha256):  # the bucket may have other objects
                    yield sha256

    def remove(self, sha256: str) -> None:
        with _as_blob_store_error(f"cannot remove the blob {sha256[:12]}"):
            obstore.delete(self._store, self._key(sha256))

    def remove_temporary_files(self) -> None:
        """Do nothing, because the object store itself discards incomplete objects."""


@contextmanager
def _as_blob_store_error(problem: str) -> Iterator[None]:
    """Convert errors of the object store and of local files in the `with` block to a BlobStoreError."""
    try:
        yield
    except (BaseError, OSError) as error:
        raise BlobStoreError(f"{problem} ({error}); check --blobs and its credentials") from error


class _RawReader(io.RawIOBase):
    """Adapts an `obstore` reader to the interface of Python's files."""

    def __init__(self, reader: obstore.ReadableFile) -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        with _as_blob_store_error("cannot read a blob"):
            return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        with _as_blob_store_error("cannot read a blob"):
            data = bytes(self._reader.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)
