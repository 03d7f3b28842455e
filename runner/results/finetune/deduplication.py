"""Find duplicate lines of datasets by digests, which move to a temporary database if memory would grow too much."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import AbstractContextManager
from pathlib import Path

from runner.base.errors import RunError, errors_as
from runner.base.storage.safe_files import create, make_folders

MAX_IN_MEMORY = 1 << 15
"""The number of digests at which all digests move from memory to disk."""


def digest(line: bytes) -> bytes:
    """Return a digest that identifies a line."""
    return hashlib.sha256(line).digest()[:16]


class DedupIndex:
    """The digests of the lines of many files. `close` deletes them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._in_memory: dict[bytes, str] | None = {}
        self._scopes: dict[str, bytes] = {}
        self._files: dict[str, int] = {}
        with self._write_errors():
            make_folders(path.parent)
            create(path).close()
            # An absolute path, since SQLite reads `file:` as a URL.
            self._db = sqlite3.connect(path.absolute(), isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.execute("PRAGMA journal_mode=OFF")
            self._db.execute("CREATE TABLE seen (key BLOB PRIMARY KEY, file INTEGER) WITHOUT ROWID")
            self._db.execute("BEGIN")  # never committed: the file is temporary, and commits are slow

    def add(self, scope: str, digest: bytes, file: str) -> str | None:
        """Record that a file has a line, and return None. If a file of the scope has the line, only return this file.

        A scope is a set of files that must not have a line in common, such as the splits of one dataset.
        """
        key = self._scopes.setdefault(scope, len(self._scopes).to_bytes(4, "big")) + digest
        if self._in_memory is None:
            return self._add_on_disk(key, file)
        first_file = self._in_memory.get(key)
        if first_file is None:
            self._in_memory[key] = file
        if len(self._in_memory) >= MAX_IN_MEMORY:
            self._move_to_disk(self._in_memory)
            self._in_memory = None
        return first_file

    def _add_on_disk(self, key: bytes, file: str) -> str | None:
        with self._write_errors():
            insert = "INSERT OR IGNORE INTO seen VALUES (?, ?)"
            if self._db.execute(insert, [key, self._file_number(file)]).rowcount == 1:
                return None
            row: tuple[int] = self._db.execute("SELECT file FROM seen WHERE key = ?", [key]).fetchone()
        return list(self._files)[row[0]]

    def _move_to_disk(self, digests: dict[bytes, str]) -> None:
        rows = ((key, self._file_number(file)) for key, file in sorted(digests.items()))
        with self._write_errors():
            self._db.executemany("INSERT INTO seen VALUES (?, ?)", rows)

    def _file_number(self, file: str) -> int:
        return self._files.setdefault(file, len(self._files))

    def _write_errors(self) -> AbstractContextManager[None]:
        return errors_as(RunError, f"cannot write to {self._path.parent}", OSError, sqlite3.Error)

    def close(self) -> None:
        self._db.close()
        self._path.unlink(missing_ok=True)
