"""The stores of blobs. A blob is the content of a file, named by its SHA-256.

A blob is stored once for all releases that contain the file, and never changes. `DiskBlobStore` stores blobs in a
folder, and `runner.server.store.object_store` stores them in S3.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from runner.base.errors import NotFoundError
from runner.base.hashing import SHA256
from runner.base.storage.atomic_files import fsync_dir
from runner.base.storage.safe_files import create_only, hard_link, make_folders, open_to_read
from runner.registry.release_errors import RegistryUnavailableError


class BlobStoreError(RegistryUnavailableError):
    """The blob store failed, for a reason other than the blob's content."""


class BlobStore(Protocol):
    """A blob store. Names of stored files consist only of hashes, never of text that a client sent."""

    def has(self, sha256: str) -> bool:
        """Return whether the complete blob is stored."""

    def put(self, sha256: str, file: Path) -> None:
        """Store a file durably under its hash, which the caller has checked.

        The store may hard-link the file, so the file must not change afterwards.

        Raises:
            BlobStoreError: the file cannot be stored.
        """

    def open(self, sha256: str) -> IO[bytes]:
        """Open a blob for reading.

        Raises:
            NotFoundError: the blob does not exist.
            BlobStoreError: the blob cannot be read.
        """

    def hashes(self) -> Iterator[str]:
        """Yield the hashes of all blobs, in any order."""

    def remove(self, sha256: str) -> None:
        """Remove a blob if it exists."""

    def remove_temporary_files(self) -> None:
        """Remove temporary files that a crash left behind. Call this method only while no server runs."""


class DiskBlobStore:
    """Blobs in a folder, as files `AB/ABCD...` that appear only once they are complete."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        return self._path(sha256).is_file()

    def put(self, sha256: str, file: Path) -> None:
        path = self._path(sha256)
        try:
            make_folders(path.parent)
            with open_to_read(file) as source:
                os.fsync(source.fileno())
                if not path.is_file():
                    self._link_or_copy(source, source_path=file, blob_path=path)
            # Also if the blob existed: the process that stored it may have been killed before this point.
            fsync_dir(path.parent)
            fsync_dir(self._folder)
        except OSError as error:
            message = f"cannot store the blob {sha256[:12]} in {self._folder}: {error.strerror}"
            raise BlobStoreError(f"{message}; ask the server's administrator to check the disk") from error

    @staticmethod
    def _link_or_copy(source: IO[bytes], *, source_path: Path, blob_path: Path) -> None:
        """Hard-link the file into place, or copy it if the file system does not support links."""
        temporary = blob_path.with_name(f".{secrets.token_hex(8)}")
        try:
            if not hard_link(source_path, temporary):
                with os.fdopen(create_only(temporary, os.O_WRONLY), "wb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
                    copy.flush()
                    os.fsync(copy.fileno())
            temporary.rename(blob_path)
        finally:
            # If another thread stored the blob at the same time, both names may be links to one file. A rename then
            # does nothing, and the temporary name remains.
            with suppress(FileNotFoundError):
                temporary.unlink()

    def open(self, sha256: str) -> IO[bytes]:
        try:
            return open_to_read(self._path(sha256))
        except FileNotFoundError as error:
            raise NotFoundError(
                f"the server has lost the blob {sha256[:12]}; tell the server's administrator"
            ) from error
        except OSError as error:
            message = f"cannot read the blob {sha256[:12]}: {error.strerror}"
            raise BlobStoreError(f"{message}; ask the server's administrator to check the disk") from error

    def hashes(self) -> Iterator[str]:
        for folder in sorted(self._folder.glob("[0-9a-f][0-9a-f]")):
            yield from sorted(path.name for path in folder.iterdir() if SHA256.fullmatch(path.name))

    def remove(self, sha256: str) -> None:
        self._path(sha256).unlink(missing_ok=True)

    def remove_temporary_files(self) -> None:
        for path in self._folder.glob("[0-9a-f][0-9a-f]/.*"):
            path.unlink(missing_ok=True)
