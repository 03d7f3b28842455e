"""Which lines datasets hold, as digests: few in memory, many in a file of their own, so that memory is bounded."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.errors import RunError
from runner.storage.files import create, make_folders

HELD = 1 << 16
"""How many digests are held in memory before they go to the file."""


def digest(line: bytes) -> bytes:
    """What tells a line from others."""
    return hashlib.sha256(line).digest()[:16]


class DedupIndex:
    """The digests of the lines of many files, until `close`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: dict[tuple[str, bytes], str] | None = {}
        try:
            make_folders(path.parent)
            create(path).close()
            self._db = sqlite3.connect(path.absolute(), isolation_level=None, check_same_thread=False)  # not `file:`
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.execute("PRAGMA journal_mode=OFF")
            self._db.execute(
                "CREATE TABLE seen (scope TEXT, digest BLOB, file TEXT, PRIMARY KEY (scope, digest)) WITHOUT ROWID"
            )
            self._db.execute("BEGIN")  # never committed: the file is gone in the end, and a commit a line is dear
        except (OSError, sqlite3.Error) as error:
            raise RunError(f"cannot write {path.parent}: {error}") from error

    def holder(self, scope: str, key: bytes, file: str) -> str | None:
        """The file of this scope that has the line of this digest; None where it is new, and from now on this one's."""
        if self._held is not None:
            known = self._held.get((scope, key))
            if known is not None:
                return known
            self._held[scope, key] = file
            if len(self._held) >= HELD:
                self._to_file(self._held)
                self._held = None
            return None
        try:
            inserted = self._db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", [scope, key, file])
            if inserted.rowcount == 1:
                return None
            found = self._db.execute("SELECT file FROM seen WHERE scope = ? AND digest = ?", [scope, key])
            return str(found.fetchone()[0])
        except sqlite3.Error as error:
            raise RunError(f"cannot write {self._path.parent}: {error}") from error

    def _to_file(self, held: Mapping[tuple[str, bytes], str]) -> None:
        rows = ((scope, key, file) for (scope, key), file in held.items())
        try:
            self._db.executemany("INSERT INTO seen VALUES (?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise RunError(f"cannot write {self._path.parent}: {error}") from error

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
