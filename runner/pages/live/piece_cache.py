"""The data of a page, by name, as a server keeps them: in memory, and what is beyond that in a file without a name."""

from __future__ import annotations

import os
import threading
from tempfile import TemporaryFile
from typing import IO

from runner.base.errors import RunError

MEMORY = 64 << 20
"""Bytes of pieces in memory."""

NEWEST = 4
"""So many pieces stay there: the last of a list grows, and is kept again and again."""


class PieceCache:
    """Pieces of data, which several threads ask for while one keeps them."""

    def __init__(self, memory: int = MEMORY) -> None:
        self._most = memory
        self._lock = threading.Lock()
        self._held: dict[str, bytes] = {}
        self._size = self._end = 0
        self._aside: dict[str, tuple[int, int]] = {}
        self._file: IO[bytes] | None = None

    def keep(self, name: str, piece: bytes) -> None:
        """Keep a piece, in the place of the one that had its name.

        Raises:
            RunError: there is no room for it.
        """
        with self._lock:
            self._size += len(piece) - len(self._held.pop(name, b""))
            self._aside.pop(name, None)
            self._held[name] = piece
            while self._size > self._most and len(self._held) > NEWEST:
                self._put_aside(next(iter(self._held)))

    def get(self, name: str) -> bytes | None:
        with self._lock:
            found = self._held.get(name)
            if found is not None or name not in self._aside or self._file is None:
                return found
            offset, size = self._aside[name]
            return os.pread(self._file.fileno(), size, offset)

    def drop(self, beginning: str) -> None:
        """Forget the pieces whose names begin so."""
        with self._lock:
            for name in [name for name in self._held if name.startswith(beginning)]:
                self._size -= len(self._held.pop(name))
            for name in [name for name in self._aside if name.startswith(beginning)]:
                del self._aside[name]
            if self._file is not None and not self._aside:
                os.ftruncate(self._file.fileno(), 0)
                self._end = 0

    def _put_aside(self, name: str) -> None:
        piece = self._held.pop(name)
        self._size -= len(piece)
        try:
            if self._file is None:
                self._file = TemporaryFile(buffering=0, prefix="nip-run-")  # noqa: SIM115 - `close` closes it
            if os.pwrite(self._file.fileno(), piece, self._end) != len(piece):
                raise OSError(28, "no room for it")
        except OSError as error:
            raise RunError(f"cannot keep the pages in a temporary file: {error.strerror}; set TMPDIR") from error
        self._aside[name] = self._end, len(piece)
        self._end += len(piece)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
