"""Reads a board folder: everything that pages show about public releases, at one revision of the database.

`runner.server.boards.builder` writes the folder, and explains its content. The pages and the API query it with
`BoardSnapshot`. Its methods return dictionaries from JSON that the builder stored: rows of lists, summaries of lists,
and facts about releases.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import RunError
from runner.server.boards.builder import BOARD_FILE, INDEX_FILE

_IS_PART = (
    "EXISTS (SELECT 1 FROM links l JOIN releases whole ON whole.reference = l.source"
    " WHERE l.target = r.reference AND l.role IN ('part', 'output') AND whole.owner = r.owner)"
)
"""SQL condition: release `r` is a part or model of a training run of the same owner."""
_USES_COMPONENT = "l.target >= ? AND l.target < ? AND l.role != 'reproduces'"
"""SQL condition: link `l` shows that its source uses a version of a component; `_version_bounds` returns its values."""


def _version_bounds(kind: str, owner: str, name: str) -> tuple[str, str]:
    """Return the values of `_USES_COMPONENT` for all versions of a name. In ASCII, "A" follows "@"."""
    return f"{kind}/{owner}/{name}@", f"{kind}/{owner}/{name}A"


class BoardSnapshot:
    """The content of a board folder. Several threads may read it at once."""

    def __init__(self, folder: Path) -> None:
        """Open a board; raise RunError if the folder has none."""
        self.folder = folder
        self._idle_connections: list[sqlite3.Connection] = []
        weakref.finalize(self, _close_all, self._idle_connections)
        if not (folder / INDEX_FILE).is_file():
            raise RunError(f"the folder {folder} contains no board: it has no {INDEX_FILE}")
        self.revision = int(self.read_info("revision"))
        self.version = self.read_info("version")
        """The version of nip-run that wrote the board; None if it did not record this."""
        self.tasks = self._query_json("SELECT said FROM tasks ORDER BY place")
        """The summaries of the lists. Pages show the lists in this order."""
        self.counts = {
            str(kind): int(count) for kind, count in self._query("SELECT kind, count(*) FROM releases GROUP BY 1")
        }

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def file(self) -> Path:
        """The board as a DuckDB file."""
        return self.folder / BOARD_FILE

    def read_info(self, key: str) -> Any:
        """Return the value of a key in the table `info`; None if the board was written without it."""
        rows = self._query("SELECT value FROM info WHERE key = ?", key)
        return orjson.loads(rows[0][0]) if rows else None

    def list_releases(self) -> frozenset[tuple[str, bool]]:
        """Return the reference of each release of the board, with True if the release is not yanked."""
        rows = self._query("SELECT reference, yanked IS NULL FROM releases")
        return frozenset((str(reference), bool(is_valid)) for reference, is_valid in rows)

    def task(self, name: str) -> dict[str, Any] | None:
        """Return the summary of the list on the page with this name."""
        return next((task for task in self.tasks if task["page"] == name), None)

    def rows(self, task: str, first: int, limit: int) -> list[dict[str, Any]]:
        """Return up to `limit` rows of a list, from the position `first` on."""
        query = "SELECT said FROM rows WHERE task = ? AND place >= ? AND place < ? ORDER BY place"
        return self._query_json(query, task, first, first + limit)

    def row_of(self, reference: str) -> dict[str, Any] | None:
        """Return the row of a run on its list, or None."""
        return next(iter(self._query_json("SELECT said FROM rows WHERE release = ?", reference)), None)

    def release(self, reference: str) -> dict[str, Any] | None:
        """Return the facts about a release and the name of the page with its row; None if the board has neither."""
        rows = self._query("SELECT said, task FROM releases WHERE reference = ?", reference)
        return {**orjson.loads(rows[0][0]), "page": rows[0][1]} if rows else None

    def find_tiers(self, references: Sequence[str]) -> dict[str, str]:
        """Return the text of each run's verification tier, by reference. Runs that are not on the board are omitted."""
        query = "SELECT reference, json_extract(said, '$.tier_words') FROM releases WHERE reference IN"
        rows = self._query(f"{query} ({','.join('?' * len(references))})", *references)
        return {str(reference): str(tier) for reference, tier in rows if tier is not None}

    def releases_of(self, kind: str, owner: str, name: str) -> list[dict[str, Any]]:
        """Return all versions of a release, newest first."""
        query = "SELECT said FROM releases WHERE kind = ? AND owner = ? AND name = ? ORDER BY place DESC"
        return self._query_json(query, kind, owner, name)

    def newest_releases(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest releases, without the parts and models of training runs."""
        query = (
            f"SELECT said FROM releases r WHERE yanked IS NULL AND NOT {_IS_PART} ORDER BY created DESC, place LIMIT ?"
        )
        return self._query_json(query, limit)

    def releases_of_owner(self, owner: str, first: int, limit: int) -> list[tuple[dict[str, object], bool]]:
        """Return an owner's releases, each with True if it is a part or model of a training run.

        Runs come first, then components and models, then the parts and models of training runs.
        """
        query = (
            f"SELECT said, {_IS_PART} part FROM releases r WHERE owner = ?"
            " ORDER BY part, kind != 'run', kind, name, place DESC LIMIT ? OFFSET ?"
        )
        return [(orjson.loads(release), bool(is_part)) for release, is_part in self._query(query, owner, limit, first)]

    def count_releases_of_owner(self, owner: str) -> int:
        return int(self._query("SELECT count(*) FROM releases WHERE owner = ?", owner)[0][0])

    def search(self, terms: Sequence[str], first: int, limit: int) -> list[dict[str, Any]]:
        """Return the releases whose name, description or facts contain all of these terms, newest first."""
        condition = " AND ".join(["instr(words, ?) > 0"] * len(terms))
        query = f"SELECT said FROM releases WHERE {condition} ORDER BY created DESC, place LIMIT ? OFFSET ?"
        return self._query_json(query, *terms, limit, first)

    def dependents_of(
        self, kind: str, owner: str, name: str, first: int, limit: int
    ) -> list[tuple[dict[str, Any], str]]:
        """Return the releases that use a component, each with the component's version."""
        query = (
            "SELECT DISTINCT r.said, l.target FROM links l JOIN releases r ON r.reference = l.source"
            f" WHERE {_USES_COMPONENT} ORDER BY r.created DESC, r.place, l.target LIMIT ? OFFSET ?"
        )
        rows = self._query(query, *_version_bounds(kind, owner, name), limit, first)
        return [(orjson.loads(release), str(target).rpartition("@")[2]) for release, target in rows]

    def count_uses(self, kind: str, owner: str, name: str) -> dict[str, int]:
        """Return the number of releases that use each version of a component."""
        query = (
            "SELECT l.target, count(DISTINCT l.source) FROM links l JOIN releases r ON r.reference = l.source"
            f" WHERE {_USES_COMPONENT} GROUP BY 1"
        )
        rows = self._query(query, *_version_bounds(kind, owner, name))
        return {str(target).rpartition("@")[2]: int(count) for target, count in rows}

    def links_from(self, reference: str) -> list[tuple[str, str, bool]]:
        """Return each link of a release: its role, the linked release, and whether that release is public here."""
        query = (
            "SELECT l.role, l.target, r.reference IS NOT NULL FROM links l"
            " LEFT JOIN releases r ON r.reference = l.target"
            " WHERE l.source = ? ORDER BY l.role, l.target"
        )
        return [(str(role), str(target), bool(is_public)) for role, target, is_public in self._query(query, reference)]

    def family_of(self, reference: str) -> list[dict[str, object]]:
        """Return the rows of the training history of a run or model, as `nip-run history` shows them."""
        query = "SELECT said FROM family WHERE id = (SELECT family FROM families WHERE release = ?)"
        rows = self._query(query, reference)
        history: list[dict[str, Any]] = orjson.loads(rows[0][0]) if rows else []
        return history

    def _query_json(self, query: str, *values: Any) -> list[dict[str, Any]]:
        return [orjson.loads(row[0]) for row in self._query(query, *values)]

    def _query(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            connection = self._idle_connections.pop()
        except IndexError:
            connection = sqlite3.connect(self.folder / INDEX_FILE, check_same_thread=False)
            connection.execute("PRAGMA query_only = ON")
        try:
            return connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            message = f"the board in {self.folder} is damaged ({error}); restart nip-run serve to build it again"
            raise RunError(message) from error
        finally:
            self._idle_connections.append(connection)


def _close_all(connections: Iterable[sqlite3.Connection]) -> None:
    for connection in connections:
        connection.close()
