"""Stores the received bytes of uploads. A client sends a file in pieces: consecutive ranges of its bytes.

The server appends each piece to the file `UPLOAD/SHA256.part`. Once this file is complete and has the declared hash,
the server renames it to `UPLOAD/SHA256`. UPLOAD is the id of an upload. So the names contain no text that a client
chose.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO

from runner.base.errors import NotFoundError, ReleaseError, os_errors_as
from runner.base.storage.safe_files import is_still_at, make_folders, open_own, remove_folder
from runner.documents.releases.bundle import PIECE_BYTES

_UPLOAD_FOLDER = re.compile(r"[0-9a-f]{32}(\.old)?")


class OffsetError(ReleaseError):
    """A piece does not start where the stored bytes of its file end."""

    def __init__(self, stored_bytes: int) -> None:
        status = f"the server has {stored_bytes:,} bytes of this file"
        super().__init__(f"{status}; send the bytes after them, Upload-Offset: {stored_bytes}")
        self.stored_bytes = stored_bytes


class DiskFullError(ReleaseError):
    """The server's disk has no space for an upload."""


class BlobWriter:
    """Appends bytes to one blob. The caller must call `close`."""

    def __init__(
        self, file: IO[bytes], partial_path: Path, complete_path: Path, *, stored_bytes: int, size: int
    ) -> None:
        """Append to `file` at `partial_path`. When it has `size` bytes, `finish` moves it to `complete_path`."""
        self._file, self._partial_path, self._complete_path, self._size = file, partial_path, complete_path, size
        self.stored_bytes = stored_bytes

    def write(self, data: bytes | bytearray) -> None:
        """Append bytes.

        Raises:
            ReleaseError: the blob would be longer than declared.
            DiskFullError: the disk is full.
        """
        if self.stored_bytes + len(data) > self._size:
            raise ReleaseError(f"the file has more than the declared {self._size:,} bytes; declare the upload again")
        rest = memoryview(data)
        with _disk_errors():
            while rest:
                written = self._file.write(rest)  # may write only the first bytes
                self.stored_bytes += written
                rest = rest[written:]

    def finish(self) -> None:
        """Flush the received bytes to disk, and check the hash of the blob if it is complete.

        Raises:
            ReleaseError: the hash is not the declared one; the client must send the whole blob again.
            NotFoundError: the client has deleted the upload.
            DiskFullError: the disk is full.
        """
        with _disk_errors():
            os.fsync(self._file.fileno())
            if self.stored_bytes == self._size:
                self._finish_blob()

    def _finish_blob(self) -> None:
        hasher = hashlib.sha256()
        self._file.seek(0)
        while data := self._file.read(PIECE_BYTES):
            hasher.update(data)
        # The lock prevents other writers from changing this file. But if the client has deleted and declared the upload
        # again, the path may belong to a new file.
        if not is_still_at(self._partial_path, self._file.fileno()):
            raise NotFoundError("the upload was deleted while this file was sent; declare the upload again")
        if hasher.hexdigest() != self._complete_path.name:
            self._partial_path.unlink(missing_ok=True)
            name = self._complete_path.name[:12]
            raise ReleaseError(f"the received file does not have the declared hash {name}...; send the file again")
        self._partial_path.rename(self._complete_path)

    def close(self) -> None:
        """Close the file. Received bytes stay, but without `finish` they may be lost in a power failure."""
        self._file.close()


def _disk_errors() -> AbstractContextManager[None]:
    advice = "; publish again later, and ask the server's administrator to free disk space"
    return os_errors_as(DiskFullError, "the server cannot store the file", advice)


class UploadPieces:
    """The received bytes of all uploads, in one folder."""

    def __init__(self, incoming: Path) -> None:
        self._incoming = incoming

    def folder(self, upload_id: str) -> Path:
        return self._incoming / upload_id

    def _partial_path(self, upload_id: str, sha256: str) -> Path:
        return self.folder(upload_id) / f"{sha256}.part"

    def received_bytes(self, upload_id: str, sha256: str) -> int | None:
        """Return the number of received bytes of a blob; None if it is complete and its hash is correct."""
        if self.complete_file(upload_id, sha256) is not None:
            return None
        try:
            return self._partial_path(upload_id, sha256).stat().st_size
        except FileNotFoundError:
            return 0

    def open_writer(self, upload_id: str, sha256: str, size: int, offset: int) -> BlobWriter:
        """Open a writer that appends to the first `offset` bytes of a blob.

        Raises:
            OffsetError: the number of stored bytes is different, or another connection is sending this blob.
            DiskFullError: the file cannot be written.
        """
        path = self._partial_path(upload_id, sha256)
        with _disk_errors():
            make_folders(path.parent)
            descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
            file = os.fdopen(descriptor, "r+b", buffering=0)
        try:
            # The lock allows one writer at a time. A second writer could change the file after its hash is computed.
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OffsetError(file.seek(0, os.SEEK_END)) from None
            received_bytes = file.seek(0, os.SEEK_END)
            if received_bytes != offset or not is_still_at(path, descriptor):
                raise OffsetError(received_bytes)
            complete_path = self.folder(upload_id) / sha256
            return BlobWriter(file, path, complete_path, stored_bytes=received_bytes, size=size)
        except BaseException:
            file.close()
            raise

    def complete_file(self, upload_id: str, sha256: str) -> Path | None:
        """Return the path of a completely received blob, or None."""
        path = self.folder(upload_id) / sha256
        return path if path.is_file() else None

    def folder_names(self) -> Iterator[str]:
        """Yield the names of all folders: the id of an upload, with the suffix `.old` while the folder is removed."""
        with suppress(FileNotFoundError), os.scandir(self._incoming) as entries:
            yield from (entry.name for entry in entries if _UPLOAD_FOLDER.fullmatch(entry.name))

    def total_received_bytes(self, upload_id: str) -> int:
        """Return the total number of received bytes of an upload."""
        total = 0
        with suppress(FileNotFoundError), os.scandir(self.folder(upload_id)) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    total += entry.stat(follow_symlinks=False).st_size
        return total

    def remove(self, upload_id: str) -> None:
        """Remove the received bytes of an upload. A client that is still sending gets an error."""
        folder = self.folder(upload_id)
        with suppress(OSError):  # if this fails, `Uploads.delete_expired` tries again
            # Renamed first, because the client may declare the same upload again during the removal.
            renamed_folder = folder if folder.suffix == ".old" else folder.rename(folder.with_suffix(".old"))
            remove_folder(renamed_folder)

    def free_bytes(self) -> int:
        """Return the free bytes of the disk."""
        make_folders(self._incoming)
        statistics = os.statvfs(self._incoming)
        return statistics.f_bavail * statistics.f_frsize
