"""Blobs in an object store, such as S3 or what speaks its language, through `obstore`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from runner.base.errors import NotPublished, UsageError
from runner.server.store.blobs import BlobsError


class ObjectBlobs:
    """See `Blobs`. `AB/ABCD...` below the URL's prefix; an object is there whole, or not at all."""

    def __init__(self, url: str) -> None:
        """Raises:
        UsageError: no store is named so.
        """
        try:
            self._store = from_url(url)
        except (BaseError, ValueError) as error:
            raise UsageError(
                f"no place for blobs is named so: {str(error).splitlines()[0]}; write s3://BUCKET/PREFIX"
            ) from error

    @staticmethod
    def _key(sha256: str) -> str:
        return f"{sha256[:2]}/{sha256}"

    def has(self, sha256: str) -> bool:
        try:
            obstore.head(self._store, self._key(sha256))
        except FileNotFoundError:
            return False
        except BaseError as error:
            raise BlobsError(f"the store of blobs does not answer: {error}") from error
        return True

    def put(self, sha256: str, file: Path) -> None:
        if self.has(sha256):
            return
        try:
            obstore.put(self._store, self._key(sha256), file)
        except (BaseError, OSError) as error:
            raise BlobsError(f"a file of the upload cannot be kept: {error}") from error

    def open(self, sha256: str) -> IO[bytes]:
        try:
            return io.BufferedReader(_Raw(obstore.open_reader(self._store, self._key(sha256))))
        except FileNotFoundError as error:
            raise NotPublished(f"no blob {sha256[:12]} is there") from error
        except BaseError as error:
            raise BlobsError(f"the blob {sha256[:12]} cannot be read: {error}") from error

    def stored(self) -> Iterator[str]:
        for batch in obstore.list(self._store):
            yield from (str(one["path"]).rpartition("/")[2] for one in batch)

    def remove(self, sha256: str) -> None:
        obstore.delete(self._store, self._key(sha256))

    def tidy(self) -> None:
        """An object that was not sent whole is none."""


class _Raw(io.RawIOBase):
    """A reader of `obstore` as Python's own files are."""

    def __init__(self, reader: obstore.ReadableFile) -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = bytes(self._reader.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)
