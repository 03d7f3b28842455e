"""Files by the SHA-256 of their bytes: kept once, however many releases have them, and never changed."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from runner.base.errors import NotPublished, ReleaseError
from runner.base.storage.atomic_files import fsync_dir
from runner.base.storage.safe_files import create_only, make_folders, open_to_read, same_file

_HASH = re.compile(r"[0-9a-f]{64}")


class BlobsError(ReleaseError):
    """What keeps the blobs does not do as it should, for no reason of what they are."""


class Blobs(Protocol):
    """Where blobs are. No name is ever made of what somebody sent: only of a hash."""

    def has(self, sha256: str) -> bool:
        """Whether it is there, whole."""

    def put(self, sha256: str, file: Path) -> None:
        """Keep a file, whose bytes have this hash; it may be moved away. Once this returns, it stays.

        Raises:
            BlobsError: it cannot be kept.
        """

    def open(self, sha256: str) -> IO[bytes]:
        """Raises:
        NotPublished: it is not there.
        BlobsError: it cannot be read.
        """

    def stored(self) -> Iterator[str]:
        """The hashes of all that are there, in any order."""

    def remove(self, sha256: str) -> None:
        """Forget one, if it is there."""

    def tidy(self) -> None:
        """Remove what killed servers left; while none runs."""


class DiskBlobs:
    """See `Blobs`. `AB/ABCD...` below a folder, each moved to its place whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _place(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        return self._place(sha256).is_file()

    def put(self, sha256: str, file: Path) -> None:
        place = self._place(sha256)
        try:
            make_folders(place.parent)
            with open_to_read(file) as source:
                os.fsync(source.fileno())
                if not place.is_file():
                    self._link(source, file, place)
            # Also where it was there: whoever put it may not have come so far.
            fsync_dir(place.parent)
            fsync_dir(self._folder)
        except OSError as error:
            raise BlobsError(f"a file of the upload cannot be kept: {error.strerror}") from error

    @staticmethod
    def _link(source: IO[bytes], file: Path, place: Path) -> None:
        """Give a file its place as its second name; where the disk has no such names, or is another one, copy it."""
        beside = place.with_name(f".{secrets.token_hex(8)}")
        try:
            if not same_file(file, beside):
                with os.fdopen(create_only(beside, os.O_WRONLY), "wb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
                    copy.flush()
                    os.fsync(copy.fileno())
            beside.rename(place)
        finally:
            # A rename onto another name of the same file does nothing.
            with suppress(FileNotFoundError):
                beside.unlink()

    def open(self, sha256: str) -> IO[bytes]:
        try:
            return open_to_read(self._place(sha256))
        except FileNotFoundError as error:
            raise NotPublished(f"no blob {sha256[:12]} is there") from error
        except OSError as error:
            raise BlobsError(f"the blob {sha256[:12]} cannot be read: {error.strerror}") from error

    def stored(self) -> Iterator[str]:
        for folder in sorted(self._folder.glob("[0-9a-f][0-9a-f]")):
            yield from sorted(path.name for path in folder.iterdir() if _HASH.fullmatch(path.name))

    def remove(self, sha256: str) -> None:
        self._place(sha256).unlink(missing_ok=True)

    def tidy(self) -> None:
        for left in self._folder.glob("[0-9a-f][0-9a-f]/.*"):
            left.unlink(missing_ok=True)
