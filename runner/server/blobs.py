"""Files by the SHA-256 of their bytes: kept once, however many releases have them, and never changed."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from runner.errors import NotPublished, ReleaseError
from runner.releases.bundle import PIECE
from runner.storage.atomic import fsync_dir
from runner.storage.files import create, make_folders, open_to_read, same_file


class Blobs(Protocol):
    """Where blobs are. No name is ever made of what somebody sent: only of a hash."""

    def has(self, sha256: str) -> bool:
        """Whether it is there, whole."""

    def put(self, sha256: str, file: Path) -> None:
        """Keep a file, whose bytes have this hash; it may be moved away. Once this returns, it stays.

        Raises:
            ReleaseError: it cannot be kept.
        """

    def open(self, sha256: str) -> IO[bytes]:
        """Raises:
        NotPublished: it is not there.
        ReleaseError: it cannot be read.
        """

    def stored(self) -> Iterator[str]:
        """The hashes of all that are there, in any order."""

    def remove(self, sha256: str) -> None:
        """Forget one, if it is there."""


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
        if place.is_file():
            return
        try:
            make_folders(place.parent)
            beside = place.with_name(f".{secrets.token_hex(8)}")
            with open_to_read(file) as source:
                os.fsync(source.fileno())
            try:
                if not same_file(file, beside):
                    _copy(file, beside)
                beside.rename(place)
            finally:
                with suppress(FileNotFoundError):
                    beside.unlink()
            fsync_dir(place.parent)
        except OSError as error:
            raise ReleaseError(f"a file of the upload cannot be kept: {error.strerror}") from error

    def open(self, sha256: str) -> IO[bytes]:
        try:
            return open_to_read(self._place(sha256))
        except FileNotFoundError as error:
            raise NotPublished(f"no blob {sha256[:12]} is there") from error
        except OSError as error:
            raise ReleaseError(f"the blob {sha256[:12]} cannot be read: {error.strerror}") from error

    def stored(self) -> Iterator[str]:
        for folder in sorted(self._folder.glob("[0-9a-f][0-9a-f]")):
            yield from sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))

    def remove(self, sha256: str) -> None:
        self._place(sha256).unlink(missing_ok=True)


def _copy(file: Path, target: Path) -> None:
    with open_to_read(file) as source, create(target) as copy:
        shutil.copyfileobj(source, copy, PIECE)
        copy.flush()
        os.fsync(copy.fileno())
