"""Which lines datasets hold, as digests: few in memory, many in a file of their own, so that memory is bounded."""

from __future__ import annotations

import hashlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import RunError
from runner.base.storage.safe_files import create, make_folders

HELD = 1 << 15
"""How many digests are held in memory before they go to the file."""


def digest(line: bytes) -> bytes:
    """What tells a line from others."""
    return hashlib.sha256(line).digest()[:16]


class DedupIndex:
    """The digests of the lines of many files, until `close`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: dict[bytes, str] | None = {}
        self._scopes: dict[str, bytes] = {}
        self._files: dict[str, int] = {}
        try:
            make_folders(path.parent)
            create(path).close()
            self._db = sqlite3.connect(path.absolute(), isolation_level=None, check_same_thread=False)  # not `file:`
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.execute("PRAGMA journal_mode=OFF")
            self._db.execute("CREATE TABLE seen (key BLOB PRIMARY KEY, file INTEGER) WITHOUT ROWID")
            self._db.execute("BEGIN")  # never committed: the file is gone in the end, and a commit a line is dear
        except (OSError, sqlite3.Error) as error:
            raise self._cannot(error) from error

    def holder(self, scope: str, digest: bytes, file: str) -> str | None:
        """The file of this scope that has the line of this digest; None where it is new, and from now on this one's."""
        key = self._scopes.setdefault(scope, len(self._scopes).to_bytes(4, "big")) + digest
        if self._held is None:
            return self._holder_in_file(key, file)
        known = self._held.get(key)
        if known is None:
            self._held[key] = file
        if len(self._held) >= HELD:
            self._to_file(self._held)
            self._held = None
        return known

    def _holder_in_file(self, key: bytes, file: str) -> str | None:
        try:
            if self._db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", [key, self._number(file)]).rowcount == 1:
                return None
            row: tuple[int] = self._db.execute("SELECT file FROM seen WHERE key = ?", [key]).fetchone()
        except sqlite3.Error as error:
            raise self._cannot(error) from error
        return list(self._files)[row[0]]

    def _to_file(self, held: dict[bytes, str]) -> None:
        rows = ((key, self._number(file)) for key, file in sorted(held.items()))
        try:
            self._db.executemany("INSERT INTO seen VALUES (?, ?)", rows)
        except sqlite3.Error as error:
            raise self._cannot(error) from error

    def _number(self, file: str) -> int:
        return self._files.setdefault(file, len(self._files))

    def _cannot(self, error: Exception) -> RunError:
        return RunError(f"cannot write {self._path.parent}: {error}")

    def close(self) -> None:
        self._db.close()
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True)
class ScopedDedup:
    """The lines of some files that may share none: the splits of one dataset."""

    digests: DedupIndex
    scope: str

    def holder(self, key: bytes, file: str) -> str | None:
        return self.digests.holder(self.scope, key, file)
