"""Stores the pieces of a page's data for the server of `nip-run view`: in memory and, if that is full, in a file.

A piece is a compressed part of the page's data, which the page's script requests by its name. The temporary file has no
name, so it disappears with the process.
"""

from __future__ import annotations

import errno
import os
import threading
from tempfile import TemporaryFile
from typing import IO

from runner.base.errors import RunError

MAX_MEMORY = 64 << 20
"""Maximum bytes of pieces in memory."""

MIN_IN_MEMORY = 4
"""Number of newest pieces that always stay in memory, because the last piece of a list is stored again as it grows."""


class PieceCache:
    """Pieces of data that one thread stores while several threads read them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_memory: dict[str, bytes] = {}
        self._size = self._file_size = 0
        self._on_disk: dict[str, tuple[int, int]] = {}
        self._file: IO[bytes] | None = None

    def store(self, name: str, piece: bytes) -> None:
        """Store a piece, and replace an earlier piece with the same name.

        Raises:
            RunError: the temporary file cannot be written.
        """
        with self._lock:
            self._size += len(piece) - len(self._in_memory.pop(name, b""))
            self._on_disk.pop(name, None)
            self._in_memory[name] = piece
            while self._size > MAX_MEMORY and len(self._in_memory) > MIN_IN_MEMORY:
                self._move_to_disk(next(iter(self._in_memory)))

    def get(self, name: str) -> bytes | None:
        with self._lock:
            piece = self._in_memory.get(name)
            if piece is not None or name not in self._on_disk or self._file is None:
                return piece
            offset, size = self._on_disk[name]
            return os.pread(self._file.fileno(), size, offset)

    def drop(self, beginning: str) -> None:
        """Drop the pieces whose names begin with `beginning`."""
        with self._lock:
            for name in [name for name in self._in_memory if name.startswith(beginning)]:
                self._size -= len(self._in_memory.pop(name))
            for name in [name for name in self._on_disk if name.startswith(beginning)]:
                del self._on_disk[name]
            if self._file is not None and not self._on_disk:
                os.ftruncate(self._file.fileno(), 0)
                self._file_size = 0

    def _move_to_disk(self, name: str) -> None:
        piece = self._in_memory.pop(name)
        self._size -= len(piece)
        try:
            if self._file is None:
                self._file = TemporaryFile(buffering=0, prefix="nip-run-")  # noqa: SIM115 - `close` closes it
            if os.pwrite(self._file.fileno(), piece, self._file_size) != len(piece):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            message = f"cannot write a page's data to a temporary file: {error.strerror}"
            raise RunError(f"{message}; set TMPDIR to a folder with free space") from error
        self._on_disk[name] = self._file_size, len(piece)
        self._file_size += len(piece)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
