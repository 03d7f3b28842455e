"""What was sent of uploads, on a disk: each blob a file, as long as what is there of it, and renamed once it is whole.

No name is made of what somebody sent: only of an upload's id and of a hash.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from runner.base.errors import NotPublished, ReleaseError
from runner.base.storage.safe_files import is_there, make_folders, open_own, open_to_read, remove_folder
from runner.documents.releases.bundle import PIECE

_UPLOAD = re.compile(r"[0-9a-f]{32}(\.old)?")


class OffsetError(ReleaseError):
    """A piece does not follow what is there."""

    def __init__(self, have: int) -> None:
        super().__init__(f"{have:,} bytes are there; send what follows them")
        self.have = have


class NoRoomError(ReleaseError):
    """The server has no room for it now."""


class Receiving:
    """Takes the next bytes of one blob, and no more than it has. Whoever has one closes it."""

    def __init__(self, file: IO[bytes], part: Path, whole: Path, have: int, size: int) -> None:
        self._file, self._part, self._whole, self._size = file, part, whole, size
        self.have = have

    def write(self, data: bytes | bytearray) -> None:
        """Raises:
        ReleaseError: the blob is longer than was declared.
        NoRoomError: the disk is full.
        """
        if self.have + len(data) > self._size:
            raise ReleaseError(f"more was sent than the {self._size:,} bytes that were declared")
        rest = memoryview(data)
        try:
            while rest:
                written = self._file.write(rest)
                self.have += written
                rest = rest[written:]
        except OSError as error:
            raise NoRoomError(f"the server cannot keep it: {error.strerror}; send the rest later") from error

    def end(self) -> None:
        """Have what came stay there. Of a blob that is whole, its hash is looked at.

        Raises:
            ReleaseError: it is another than was declared; it is to be sent anew.
            NoRoomError: the disk is full.
        """
        try:
            os.fsync(self._file.fileno())
            if self.have == self._size:
                self._end_blob()
        except OSError as error:
            raise NoRoomError(f"the server cannot keep it: {error.strerror}; send the rest later") from error

    def _end_blob(self) -> None:
        hashed = hashlib.sha256()
        self._file.seek(0)
        while data := self._file.read(PIECE):
            hashed.update(data)
        # The file is locked, and written to by whoever has the lock alone; it must be the one that stands there, too.
        if not is_there(self._part, self._file.fileno()):
            raise NotPublished("the upload was given up in the meantime; declare it again")
        if hashed.hexdigest() != self._whole.name:
            self._part.unlink(missing_ok=True)
            raise ReleaseError(f"what was sent as {self._whole.name[:12]} has another hash; send it again")
        self._part.rename(self._whole)

    def close(self) -> None:
        """What came stays, though not through a power cut, unless it was ended."""
        self._file.close()


class UploadPieces:
    """The pieces of all uploads, below one folder."""

    def __init__(self, incoming: Path) -> None:
        self._incoming = incoming

    def folder(self, upload: str) -> Path:
        return self._incoming / upload

    def _part(self, upload: str, sha256: str) -> Path:
        return self.folder(upload) / f"{sha256}.part"

    def have(self, upload: str, sha256: str) -> int | None:
        """How many bytes of a blob are there; None: all of them, and they are what was declared."""
        if (self.folder(upload) / sha256).is_file():
            return None
        try:
            return self._part(upload, sha256).stat().st_size
        except FileNotFoundError:
            return 0

    def receive(self, upload: str, sha256: str, size: int, offset: int) -> Receiving:
        """What takes the bytes of a blob that follow the first `offset`.

        Raises:
            OffsetError: something else is there; or a piece of it is being sent, by another connection.
            NoRoomError: nothing can be written.
        """
        part = self._part(upload, sha256)
        try:
            make_folders(part.parent)
            descriptor = open_own(part, os.O_RDWR | os.O_CREAT)
            file = os.fdopen(descriptor, "r+b", buffering=0)
        except OSError as error:
            raise NoRoomError(f"the server cannot keep it: {error.strerror}; send it later") from error
        try:
            # One writer at a time: what was hashed must not be written to by another who is still there.
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OffsetError(file.seek(0, os.SEEK_END)) from None
            have = file.seek(0, os.SEEK_END)
            if have != offset or not is_there(part, descriptor):
                raise OffsetError(have)
            return Receiving(file, part, self.folder(upload) / sha256, have, size)
        except BaseException:
            file.close()
            raise

    def open(self, upload: str, sha256: str) -> IO[bytes] | None:
        """A blob that was sent whole; None where it was not."""
        try:
            return open_to_read(self.folder(upload) / sha256)
        except FileNotFoundError:
            return None

    def whole(self, upload: str, sha256: str) -> Path | None:
        """Where a blob is that was sent whole."""
        path = self.folder(upload) / sha256
        return path if path.is_file() else None

    def stored(self) -> Iterator[tuple[str, float]]:
        """The uploads of which anything is there, and when something was last added to or taken from each."""
        with suppress(FileNotFoundError), os.scandir(self._incoming) as found:
            for entry in found:
                if _UPLOAD.fullmatch(entry.name):
                    with suppress(OSError):
                        yield entry.name, entry.stat(follow_symlinks=False).st_mtime

    def sent(self, upload: str) -> int:
        """Bytes that are there of all blobs of an upload."""
        found = 0
        with suppress(FileNotFoundError), os.scandir(self.folder(upload)) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found += entry.stat(follow_symlinks=False).st_size
        return found

    def clear(self, upload: str) -> None:
        """Remove what was sent of an upload. Whoever still sends to it is told, and nothing of it comes back."""
        folder = self.folder(upload)
        with suppress(OSError):  # what is left is removed when what is nobody's is looked for
            gone = folder if folder.suffix == ".old" else folder.rename(folder.with_suffix(".old"))
            remove_folder(gone)

    def room(self) -> int:
        """Bytes that the disk takes."""
        make_folders(self._incoming)
        found = os.statvfs(self._incoming)
        return found.f_bavail * found.f_frsize
