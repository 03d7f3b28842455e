"""A board that was made, as requests read it: what is public at one revision, and nothing else."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import RunError
from runner.server.boards.builder import FILE, INDEX

_IS_PART = (
    "EXISTS (SELECT 1 FROM links l JOIN releases whole ON whole.reference = l.source"
    " WHERE l.target = r.reference AND l.role IN ('part', 'output') AND whole.owner = r.owner)"
)
"""Whether a release `r` came with a training run of the same owner: nobody makes a part of what is another's."""
_OF_NAME = "l.target >= ? AND l.target < ? AND l.role != 'reproduces'"


def _of_name(kind: str, owner: str, name: str) -> tuple[str, str]:
    """Between what all versions of a name stand."""
    return f"{kind}/{owner}/{name}@", f"{kind}/{owner}/{name}A"


class BoardSnapshot:
    """Read by several threads at once."""

    def __init__(self, folder: Path) -> None:
        """Raises: RunError: the folder is no board."""
        self.folder = folder
        self._local = threading.local()
        if not (folder / INDEX).is_file():
            raise RunError(f"there is no board in {folder}")
        self.revision = int(self.info("revision"))
        self.tasks = [orjson.loads(row[0]) for row in self._all("SELECT said FROM tasks ORDER BY place")]
        """What is said of each list."""
        self.counts = {
            str(kind): int(count) for kind, count in self._all("SELECT kind, count(*) FROM releases GROUP BY 1")
        }
        self.rows = lru_cache(maxsize=256)(self._rows)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def file(self) -> Path:
        """The whole board as a DuckDB file."""
        return self.folder / FILE

    def info(self, key: str) -> Any:
        return orjson.loads(self._all("SELECT value FROM info WHERE key = ?", key)[0][0])

    def listed(self) -> frozenset[tuple[str, bool]]:
        """Each release that it tells of, with whether that stands: a yanked one is on no list."""
        found = self._all("SELECT reference, yanked IS NULL FROM releases")
        return frozenset((str(reference), bool(stands)) for reference, stands in found)

    def task(self, name: str) -> dict[str, Any] | None:
        return next((one for one in self.tasks if one["page"] == name), None)

    def _rows(self, task: str, first: int, most: int) -> tuple[dict[str, Any], ...]:
        query = "SELECT said FROM rows WHERE task = ? AND place >= ? AND place < ? ORDER BY place"
        return tuple(orjson.loads(row[0]) for row in self._all(query, task, first, first + most))

    def row_of(self, reference: str) -> dict[str, Any] | None:
        """The row of a release on its board."""
        return next(
            (orjson.loads(row[0]) for row in self._all("SELECT said FROM rows WHERE release = ?", reference)), None
        )

    def release(self, reference: str) -> dict[str, Any] | None:
        found = self._all("SELECT said, task FROM releases WHERE reference = ?", reference)
        return {**orjson.loads(found[0][0]), "page": found[0][1]} if found else None

    def tiers(self, references: Sequence[str]) -> dict[str, str]:
        """How far each of these runs is checked, of those that are public."""
        query = "SELECT reference, json_extract(said, '$.tier_words') FROM releases WHERE reference IN"
        rows = self._all(f"{query} ({','.join('?' * len(references))})", *references)
        return {str(reference): str(tier) for reference, tier in rows if tier is not None}

    def releases_of(self, kind: str, owner: str, name: str) -> list[dict[str, Any]]:
        """All versions of a release, the newest first."""
        query = "SELECT said FROM releases WHERE kind = ? AND owner = ? AND name = ? ORDER BY place DESC"
        return self._said(query, kind, owner, name)

    def newest(self, most: int) -> list[dict[str, Any]]:
        """What was published last; of a training run not its parts and models, which came with it."""
        query = (
            f"SELECT said FROM releases r WHERE yanked IS NULL AND NOT {_IS_PART} ORDER BY created DESC, place LIMIT ?"
        )
        return self._said(query, most)

    def of_owner(self, owner: str, first: int, most: int) -> list[tuple[dict[str, Any], bool]]:
        """Runs first, then what they are made of, then parts of trainings; each with whether it is one of these."""
        query = (
            f"SELECT said, {_IS_PART} part FROM releases r WHERE owner = ?"
            " ORDER BY part, kind != 'run', kind, name, place DESC LIMIT ? OFFSET ?"
        )
        return [(orjson.loads(said), bool(part)) for said, part in self._all(query, owner, most, first)]

    def count_of_owner(self, owner: str) -> int:
        return int(self._all("SELECT count(*) FROM releases WHERE owner = ?", owner)[0][0])

    def found(self, words: Sequence[str], first: int, most: int) -> list[dict[str, Any]]:
        """Releases that have all of these words in what is said of them, the newest first."""
        test = " AND ".join(["instr(words, ?) > 0"] * len(words))
        query = f"SELECT said FROM releases WHERE {test} ORDER BY created DESC, place LIMIT ? OFFSET ?"
        return self._said(query, *words, most, first)

    def users_of(self, kind: str, owner: str, name: str, first: int, most: int) -> list[tuple[dict[str, Any], str]]:
        """Releases that were made with a version of a component, each with that."""
        query = (
            "SELECT DISTINCT r.said, l.target FROM links l JOIN releases r ON r.reference = l.source"
            f" WHERE {_OF_NAME} ORDER BY r.created DESC, r.place, l.target LIMIT ? OFFSET ?"
        )
        found = self._all(query, *_of_name(kind, owner, name), most, first)
        return [(orjson.loads(said), str(target).rpartition("@")[2]) for said, target in found]

    def uses_of(self, kind: str, owner: str, name: str) -> dict[str, int]:
        """By how many releases each version of a component is used."""
        query = (
            "SELECT l.target, count(DISTINCT l.source) FROM links l JOIN releases r ON r.reference = l.source"
            f" WHERE {_OF_NAME} GROUP BY 1"
        )
        found = self._all(query, *_of_name(kind, owner, name))
        return {str(target).rpartition("@")[2]: int(count) for target, count in found}

    def links_from(self, reference: str) -> list[tuple[str, str, bool]]:
        """Role, release, and whether that is public here."""
        query = (
            "SELECT l.role, l.target, r.reference IS NOT NULL FROM links l"
            " LEFT JOIN releases r ON r.reference = l.target"
            " WHERE l.source = ? ORDER BY l.role, l.target"
        )
        return [(str(role), str(target), bool(there)) for role, target, there in self._all(query, reference)]

    def family_of(self, reference: str) -> list[dict[str, Any]]:
        """The sessions that a run's or a model's training is connected with, as `nip-run history` has them."""
        query = "SELECT said FROM family WHERE id = (SELECT family FROM families WHERE release = ?)"
        found = self._all(query, reference)
        rows: list[dict[str, Any]] = orjson.loads(found[0][0]) if found else []
        return rows

    def _said(self, query: str, *values: Any) -> list[dict[str, Any]]:
        return [orjson.loads(row[0]) for row in self._all(query, *values)]

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = sqlite3.connect(self.folder / INDEX, check_same_thread=False)
            connection.execute("PRAGMA query_only = ON")
        return connection.execute(query, values).fetchall()
