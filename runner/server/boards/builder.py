"""The public board into a folder that requests answer from: an index, pieces for pages, files to download.

Nothing in it is a secret, and nothing in it is changed once it has its name.
"""

from __future__ import annotations

import csv
import gzip
import io
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from runner.base.hashing import tagged_hash
from runner.base.storage.safe_files import create
from runner.documents.releases.manifest import Release
from runner.pages.boards.charts import cost_chart
from runner.pages.boards.lists import BoardPage, BoardRow, TaskList, published_board
from runner.pages.boards.page import PIECE, domain_of
from runner.pages.packing import packed
from runner.registry.board.board import Read
from runner.registry.lineage.history import whole_history
from runner.registry.lineage.lineage import Lineage
from runner.registry.lineage.listed_facts import listed_facts
from runner.registry.lineage.sessions import LineageSession
from runner.registry.transports.listing import ReleaseEntry
from runner.results.leaderboard.model import LeaderboardRow
from runner.server.boards.board_file import write_file
from runner.server.boards.public_registry import PublicRegistry
from runner.server.boards.verification_tiers import Vouched

INDEX, FILE = "index.sqlite", "board.duckdb"

_TABLES = """
CREATE TABLE info(key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE tasks(name TEXT PRIMARY KEY, place INTEGER, said TEXT);
CREATE TABLE rows(task TEXT, place INTEGER, release TEXT, said TEXT);
CREATE TABLE releases(reference TEXT PRIMARY KEY, kind TEXT, owner TEXT, name TEXT, version TEXT, place INTEGER,
  sha256 TEXT, created REAL, yanked TEXT, signed INTEGER, task TEXT, words TEXT, said TEXT);
CREATE TABLE links(source TEXT, role TEXT, target TEXT, sha256 TEXT);
CREATE TABLE families(release TEXT, family INTEGER);
CREATE TABLE family(id INTEGER PRIMARY KEY, said TEXT);
"""
_INDEXES = """
CREATE UNIQUE INDEX rows_in_order ON rows(task, place);
CREATE INDEX rows_of_release ON rows(release);
CREATE INDEX releases_by_name ON releases(kind, owner, name, place);
CREATE INDEX releases_by_owner ON releases(owner, kind, name);
CREATE INDEX releases_by_age ON releases(created);
CREATE INDEX links_to ON links(target);
CREATE INDEX links_from ON links(source);
CREATE INDEX family_of ON families(release);
"""


@dataclass(frozen=True)
class Facts:
    """All that a folder is made of."""

    registry: PublicRegistry
    read: Read
    others: Mapping[ReleaseEntry, Release]
    """Releases that are neither runs nor models."""
    vouched: Mapping[str, Vouched]

    @property
    def releases(self) -> Iterator[tuple[ReleaseEntry, Release]]:
        yield from self.read.releases.items()
        yield from self.others.items()


def task_name(row: LeaderboardRow) -> str:
    """Return the name of the page of a row's list, which stays the same while a row of its task exists."""
    return tagged_hash("board-page", [row.benchmark, row.task, None if row.task else row.list])[:12]


def write_folder(facts: Facts, folder: Path) -> None:
    """Write all that requests answer with.

    Raises:
        OSError, sqlite3.Error, duckdb.Error: it cannot be written.
    """
    board = published_board(facts.read.board, name_of=task_name)
    index = sqlite3.connect(folder / INDEX, isolation_level=None)
    try:
        index.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {_TABLES} BEGIN;")
        rows = list(_write_tasks(index, board, facts, folder))
        tasks = {row["release"]: row["page"] for row in rows}
        index.executemany(f"INSERT INTO releases VALUES({','.join('?' * 13)})", list(_releases(facts, tasks)))
        links = sorted(set(_links(facts)), key=lambda one: tuple(map(str, one)))
        index.executemany("INSERT INTO links VALUES(?,?,?,?)", links)
        _write_families(index, facts)
        info = {"revision": facts.registry.revision, "left_out": facts.read.board.left_out,
                "yanked": facts.read.board.yanked, "older": facts.read.board.older}  # fmt: skip
        index.executemany("INSERT INTO info VALUES(?,?)", [(key, _json(value)) for key, value in info.items()])
        index.execute("COMMIT")
        index.executescript(f"{_INDEXES} ANALYZE;")
    finally:
        index.close()
    write_file(folder / FILE, rows, [_release_row(*one, facts) for one in facts.releases], links)


def _write_tasks(index: sqlite3.Connection, board: BoardPage, facts: Facts, folder: Path) -> Iterator[dict[str, Any]]:
    """Write what there is of each list; all of their rows."""
    for place, listed in enumerate(board.lists):
        rows = [_row(row, at, listed, facts) for at, row in enumerate(listed.rows)]
        for number, first in enumerate(range(0, len(rows), PIECE)):
            part = rows[first : first + PIECE]
            names = list(dict.fromkeys(name for row in part for name in row))
            columns = {name: [row.get(name) for row in part] for name in names}
            piece = packed({"first": first, "count": len(part), "columns": columns})
            _write(folder / f"{listed.name}-rows-{number}.json.gz", piece)
        _write(folder / f"{listed.name}.json.gz", packed({"task": _download(listed), "rows": rows}))
        _write(folder / f"{listed.name}.csv.gz", gzip.compress(as_csv(rows).encode(), 5, mtime=0))
        index.execute("INSERT INTO tasks VALUES(?,?,?)", (listed.name, place, _json(_task(listed, rows))))
        told = [(listed.name, at, row["release"], _json(row)) for at, row in enumerate(rows)]
        index.executemany("INSERT INTO rows VALUES(?,?,?,?)", told)
        yield from rows


def _write(path: Path, data: bytes) -> None:
    with create(path) as file:
        file.write(data)


def _row(row: BoardRow, place: int, listed: TaskList, facts: Facts) -> dict[str, Any]:
    """A row as pages, files and scripts have it."""
    values = row.to_json()
    known = facts.vouched[values["release_sha256"]]
    kind, _, rest = values["release"].partition("/")
    name, _, version = rest.partition("@")
    return {
        **values,
        "place": place,
        "page": listed.name,
        "benchmark": listed.benchmark,
        "href": f"/{kind}/{name}/{version}",
        "tier": known.tier,
        "tier_words": known.words,
        "reproduced_by": known.by,
        "owner_runs": known.owner_runs,
    }


def _download(listed: TaskList) -> dict[str, Any]:
    return {"page": listed.name, "benchmark": listed.benchmark, "task": listed.task, "selection": listed.selection}


def _task(listed: TaskList, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the pages say of a list as a whole."""
    leader = rows[0] if rows and rows[0]["rank"] is not None else None
    kinds = list(dict.fromkeys(kind for row in rows for kind in row["kinds"]))
    return {
        **_download(listed),
        "rows": len(rows),
        "ranked": sum(row["rank"] is not None for row in rows),
        "pieces": -(-len(rows) // PIECE),
        "domain": domain_of(listed.rows),
        "leader": leader,
        "chart": cost_chart(listed),
        "kinds": kinds,
        "owners": len({row["owner"] for row in rows}),
        "newest": max((str(row["finished_at"] or "") for row in rows), default=""),
    }


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows for a spreadsheet: a text that it would take for a formula begins with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    names: list[str] = []
    for row in rows:
        if not names:
            names = list(row)
            writer.writerow(names)
        writer.writerow([_cell(row.get(name)) for name in names])
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, (int, float)) or (isinstance(value, str) and value[:1].isalnum()):
        return value  # as most of them
    if isinstance(value, (list, tuple)):
        value = "; ".join(map(str, value))
    if isinstance(value, dict):
        value = _json(value)
    if isinstance(value, str) and value.lstrip(" \x00\n").startswith(_FORMULA):
        return f"'{value}"
    return value


def _releases(facts: Facts, tasks: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
    for place, (entry, release) in enumerate(facts.releases):
        where, said = entry.reference, _release_row(entry, release, facts)
        known = facts.vouched.get(entry.sha256)
        if known is not None:
            said |= {"tier": known.tier, "tier_words": known.words, "owner_runs": known.owner_runs,
                     "reproductions": [one.to_json() for one in known.reproductions]}  # fmt: skip
        words = " ".join(map(str, (where, release.description, said["benchmark"], said["models"], said["protocol"])))
        yield (
            str(where), str(where.kind), where.owner, where.name, where.version, place, entry.sha256, said["created"],
            entry.yanked, entry.signed, tasks.get(str(where)), words.lower(), _json(said),
        )  # fmt: skip


def _release_row(entry: ReleaseEntry, release: Release, facts: Facts) -> dict[str, Any]:
    """What lists say of a release; its texts are its publisher's."""
    where, told = entry.reference, listed_facts(release)
    session = facts.read.sessions.get(entry.sha256)  # without one no fact has a type that can be relied on
    return {
        "reference": str(where), "kind": str(where.kind), "owner": where.owner, "name": where.name,
        "version": where.version, "sha256": entry.sha256, "created": facts.registry.listed[where].created,
        "yanked": entry.yanked, "signed": entry.signed, "description": release.description,
        "licence": release.licence, "what": told["kind"], "benchmark": told["benchmark"],
        "protocol": told["protocol"], "models": told["models"], "pinned": release.facts.get("pinned"),
        **{name: None if session is None else session.facts.get(name) for name in ("run_id", "accuracy")},
    }  # fmt: skip


def _links(facts: Facts) -> Iterator[tuple[str, str, str, str | None]]:
    for entry, release in facts.releases:
        for link in release.links:
            if link.release is not None:
                yield str(entry.reference), link.role, link.release, link.sha256


def _write_families(index: sqlite3.Connection, facts: Facts) -> None:
    """The histories of what was trained: each connected set of runs and models once."""
    public = [one for one in facts.read.sessions.values() if not one.private]
    for number, family in enumerate(_families(public)):
        told = [row.to_json() for row in whole_history(family)]
        index.execute("INSERT INTO family VALUES(?,?)", (number, _json(told)))
        index.executemany("INSERT INTO families VALUES(?,?)", [(one.key, number) for one in family])


def _families(sessions: Sequence[LineageSession]) -> Iterator[list[LineageSession]]:
    """Sessions that models lead from one to another, in sets of more than one; found in one pass over the links."""
    lineage = Lineage(sessions)
    head: dict[str, str] = {}

    def top(key: str) -> str:
        while head.setdefault(key, key) != key:
            head[key] = head[head[key]]
            key = head[key]
        return key

    by_run: dict[tuple[str, str | None], str] = {}
    for one in sessions:
        first = by_run.setdefault((one.run_id, one.owner), one.key)
        if one.trains:
            head[top(one.key)] = top(first)
        origins = [lineage.origin_of(one, group) for group in one.groups if group.lineage]
        for maker in (maker for origin in origins if origin is not None for maker in origin.makers):
            head[top(one.key)] = top(maker.session.key)
    for one in sessions:
        if one.parent_run_id and (parent := by_run.get((one.parent_run_id, one.owner))):
            head[top(one.key)] = top(parent)
    sets: dict[str, list[LineageSession]] = {}
    for one in sessions:
        if one.key in head:
            sets.setdefault(top(one.key), []).append(one)
    yield from (family for family in sets.values() if len(family) > 1)


def _json(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()
