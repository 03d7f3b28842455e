"""Writes a board folder, which contains everything that the server shows about its public releases.

A task is a benchmark with a set of datapoints. For each task, the folder has a list: the ranked runs on this task. The
SQLite file `index.sqlite` contains all lists, and facts about all releases, their links and their training histories.
Other files contain the rows of each list, in pieces of up to `PIECE_ROWS` rows for the page of the list, and as JSON
and CSV to download. The board worker writes the folder, and `runner.server.boards.snapshot` reads it. The folder
contains only public data, and does not change after it is complete.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from runner.base.batches import group_pairs
from runner.base.hashing import tagged_hash
from runner.base.storage.safe_files import create, hard_link
from runner.base.text import csv_text
from runner.documents.releases.manifest import Release
from runner.pages.boards.charts import cost_chart
from runner.pages.boards.lists import BoardPage, BoardRow, TaskList, published_board
from runner.pages.boards.page import PIECE_ROWS, domain_of, row_pieces
from runner.pages.packing import compress_json
from runner.registry.board.board import LoadedBoard
from runner.registry.lineage.history import build_full_history
from runner.registry.lineage.lineage import Lineage
from runner.registry.lineage.nodes import LineageNode, listed_facts
from runner.registry.transports.listing import ReleaseEntry
from runner.results.leaderboard.model import LeaderboardRow
from runner.server.boards.board_file import write_board_file
from runner.server.boards.public_registry import PublicRegistry
from runner.server.boards.verification_tiers import RunTier
from runner.version import __version__

INDEX_FILE, BOARD_FILE = "index.sqlite", "board.duckdb"

_TABLES = """
CREATE TABLE info(key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE tasks(name TEXT PRIMARY KEY, place INTEGER, said TEXT);
CREATE TABLE rows(task TEXT, place INTEGER, release TEXT, said TEXT);
CREATE TABLE releases(reference TEXT PRIMARY KEY, kind TEXT, owner TEXT, name TEXT, place INTEGER, created REAL,
  yanked TEXT, task TEXT, words TEXT, said TEXT);
CREATE TABLE links(source TEXT, role TEXT, target TEXT);
CREATE TABLE families(release TEXT, family INTEGER);
CREATE TABLE family(id INTEGER PRIMARY KEY, said TEXT);
"""
"""Columns named `said` contain JSON. `place` is the position on a page, and `words` the text that the search uses."""
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
class BoardInput:
    """The data that a board folder is written from."""

    registry: PublicRegistry
    loaded: LoadedBoard
    components: Mapping[ReleaseEntry, Release]
    """Releases that are neither runs nor models. (`loaded` has the runs and models.)"""
    tiers: Mapping[str, RunTier]

    @cached_property
    def omitted_releases(self) -> frozenset[str]:
        return self.loaded.board.omitted_releases()

    @property
    def releases(self) -> Iterator[tuple[ReleaseEntry, Release]]:
        yield from self.loaded.releases.items()
        yield from self.components.items()


def task_name(row: LeaderboardRow) -> str:
    """Return the name of the page with a row's list.

    The name depends only on the task, so the URL of the page, which contains the name, never changes.
    """
    return tagged_hash("board-page", [row.benchmark, row.task, None if row.task else row.list])[:12]


def write_folder(board_input: BoardInput, folder: Path, earlier: Path | None = None) -> None:
    """Write a board folder. The files of a list that has not changed since the board in `earlier` are links.

    Raises:
        OSError, sqlite3.Error, duckdb.Error: a file cannot be written.
    """
    board = published_board(board_input.loaded.board, name_of=task_name)
    with closing(sqlite3.connect(folder / INDEX_FILE, isolation_level=None)) as index:
        index.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {_TABLES} BEGIN;")
        files = _ListWriter(folder, earlier, _read_list_hashes(earlier))
        rows = list(_write_tasks(index, board, board_input, files))
        pages = {row["release"]: row["page"] for row in rows}
        release_rows = [_build_release_row(entry, release, board_input) for entry, release in board_input.releases]
        values = (_release_values(place, row, pages.get(row["reference"])) for place, row in enumerate(release_rows))
        index.executemany(f"INSERT INTO releases VALUES({','.join('?' * 10)})", values)
        links = sorted(set(_find_links(board_input)), key=lambda link: tuple(map(str, link)))
        index.executemany("INSERT INTO links VALUES(?,?,?)", (link[:3] for link in links))
        _write_families(index, board_input)
        info = {"revision": board_input.registry.revision, "version": __version__,
                "left_out": board_input.loaded.board.left_out, "list_hashes": files.hashes}  # fmt: skip
        index.executemany("INSERT INTO info VALUES(?,?)", [(key, _to_json(value)) for key, value in info.items()])
        index.execute("COMMIT")
        index.executescript(f"{_INDEXES} ANALYZE;")
    write_board_file(folder / BOARD_FILE, rows, release_rows, links)


@dataclass(frozen=True)
class _ListWriter:
    """Writes the files with the rows of lists. It links unchanged files, because compressing them takes much longer."""

    folder: Path
    earlier: Path | None
    earlier_hashes: Mapping[str, str]
    hashes: dict[str, str] = field(default_factory=dict)
    """The hash of each list's content, by the name of the list."""

    def write(self, ranking: TaskList, rows: Sequence[Mapping[str, object]]) -> None:
        """Write a list's rows in pieces, as JSON and as CSV; if the list has not changed, link the earlier files."""
        name, content = ranking.name, {"task": _task_fields(ranking), "rows": rows}
        self.hashes[name] = hashlib.sha256(orjson.dumps([__version__, content])).hexdigest()
        pieces = range(math.ceil(len(rows) / PIECE_ROWS))
        files = [*(f"{name}-rows-{number}.json.gz" for number in pieces), f"{name}.json.gz", f"{name}.csv.gz"]
        if self.earlier_hashes.get(name) == self.hashes[name] and self._link(files):
            return
        contents = (*row_pieces(rows), compress_json(content), gzip.compress(as_csv(rows).encode(), 5, mtime=0))
        for file, data in zip(files, contents, strict=True):
            _write_file(self.folder / file, data)

    def _link(self, files: Iterable[str]) -> bool:
        """Link files of the earlier board; return False if it was removed, or the file system has no hard links."""
        assert self.earlier is not None
        return all(hard_link(self.earlier / file, self.folder / file) for file in files)


def _read_list_hashes(board: Path | None) -> Mapping[str, str]:
    """Return the hash of each list of a board; an empty mapping without a board, or if an earlier version wrote it."""
    if board is not None and (board / INDEX_FILE).is_file():
        with suppress(sqlite3.Error), closing(sqlite3.connect(board / INDEX_FILE)) as index:
            for (value,) in index.execute("SELECT value FROM info WHERE key = 'list_hashes'"):
                hashes: dict[str, str] = orjson.loads(value)
                return hashes
    return {}


def _write_tasks(
    index: sqlite3.Connection, board: BoardPage, board_input: BoardInput, files: _ListWriter
) -> Iterator[dict[str, Any]]:
    """Write each list into the index and into files; yield the rows of all lists."""
    for place, ranking in enumerate(board.lists):
        rows = [_build_row(row, row_place, ranking, board_input) for row_place, row in enumerate(ranking.rows)]
        files.write(ranking, rows)
        index.execute("INSERT INTO tasks VALUES(?,?,?)", (ranking.name, place, _to_json(_task_summary(ranking, rows))))
        values = [(ranking.name, row_place, row["release"], _to_json(row)) for row_place, row in enumerate(rows)]
        index.executemany("INSERT INTO rows VALUES(?,?,?,?)", values)
        yield from rows


def _write_file(path: Path, data: bytes) -> None:
    with create(path) as file:
        file.write(data)


def _build_row(row: BoardRow, place: int, ranking: TaskList, board_input: BoardInput) -> dict[str, Any]:
    """Return a row as pages and downloads show it."""
    values = row.to_json()
    tier = board_input.tiers[values["release_sha256"]]
    kind, _, rest = values["release"].partition("/")
    name, _, version = rest.partition("@")
    return {
        **values,
        "place": place,
        "page": ranking.name,
        "benchmark": ranking.benchmark,
        "href": f"/{kind}/{name}/{version}",
        "tier": tier.tier,
        "tier_words": tier.text,
        "reproduced_by": tier.reproduced_by,
        "owner_runs": tier.owner_runs,
    }


def _task_fields(ranking: TaskList) -> dict[str, object]:
    return {"page": ranking.name, "benchmark": ranking.benchmark, "task": ranking.task, "selection": ranking.selection}


def _task_summary(ranking: TaskList, rows: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Return the facts about a list that pages show above its rows."""
    leader = rows[0] if rows and rows[0]["rank"] is not None else None
    kinds = list(dict.fromkeys(kind for row in rows for kind in row["kinds"]))
    return {
        **_task_fields(ranking),
        "rows": len(rows),
        "ranked": sum(row["rank"] is not None for row in rows),
        "pieces": math.ceil(len(rows) / PIECE_ROWS),
        "domain": domain_of(ranking.rows),
        "leader": leader,
        "chart": cost_chart(ranking),
        "kinds": kinds,
        "owners": len({row["owner"] for row in rows}),
        "newest": max((str(row["finished_at"] or "") for row in rows), default=""),
    }


def as_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows with the same keys as CSV, with texts that a spreadsheet does not run as formulas."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(rows[0])
    writer.writerows([_csv_cell(value) for value in row.values()] for row in rows)
    return text.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        value = "; ".join(map(str, value))
    if isinstance(value, dict):
        value = _to_json(value)
    return csv_text(value) if isinstance(value, str) else value


def _release_values(place: int, row: Mapping[str, object], page: str | None) -> tuple[Any, ...]:
    """Return a row of the table `releases`; `row` is from `_build_release_row`, and `page` the name of its list."""
    searched_texts = (row[name] for name in ("reference", "description", "benchmark", "models", "protocol"))
    return (
        *(row[name] for name in ("reference", "kind", "owner", "name")), place, row["created"], row["yanked"], page,
        " ".join(map(str, searched_texts)).lower(), _to_json(row),
    )  # fmt: skip


def _build_release_row(entry: ReleaseEntry, release: Release, board_input: BoardInput) -> dict[str, Any]:
    """Return the facts about a release. `what` is the kind of a run, such as `benchmark` or `training`.

    The publisher of the release chose its texts, so pages must escape them.
    """
    reference, shown_facts = entry.reference, listed_facts(release)
    # A release with invalid facts has no node. Its accuracy is not read, because it may have any type.
    # The board omits a run whose accuracy does not follow from its records.
    is_omitted = str(reference) in board_input.omitted_releases
    node = None if is_omitted else board_input.loaded.nodes.get(entry.sha256)
    created, tier = board_input.registry.public_releases[reference].created, board_input.tiers.get(entry.sha256)
    tier_facts: dict[str, Any] = {} if tier is None else {
        "tier": tier.tier, "tier_words": tier.text, "owner_runs": tier.owner_runs,
        "reproductions": [reproduction.to_json() for reproduction in tier.reproductions],
    }  # fmt: skip
    return {
        "reference": str(reference), "kind": str(reference.kind), "owner": reference.owner, "name": reference.name,
        "version": reference.version, "sha256": entry.sha256, "created": created,
        "yanked": entry.yanked, "signed": entry.signed, "description": release.description,
        "licence": release.licence, "what": shown_facts["kind"], "benchmark": shown_facts["benchmark"],
        "protocol": shown_facts["protocol"], "models": shown_facts["models"], "pinned": release.facts.get("pinned"),
        **{name: None if node is None else node.facts.get(name) for name in ("run_id", "accuracy")},
        **tier_facts,
    }  # fmt: skip


def _find_links(board_input: BoardInput) -> Iterator[tuple[str, str, str, str | None]]:
    """Yield the source, the role, the target and the target's hash of each link between releases."""
    for entry, release in board_input.releases:
        for link in release.links:
            if link.release is not None:
                yield str(entry.reference), link.role, link.release, link.sha256


def _write_families(index: sqlite3.Connection, board_input: BoardInput) -> None:
    """Write a training history for each family: a set of runs and models that are connected by training."""
    public = [node for node in board_input.loaded.nodes.values() if not node.private]
    for number, family in enumerate(_families(public)):
        history = [row.to_json() for row in build_full_history(family)]
        index.execute("INSERT INTO family VALUES(?,?)", (number, _to_json(history)))
        index.executemany("INSERT INTO families VALUES(?,?)", [(node.key, number) for node in family])


def _families(nodes: Sequence[LineageNode]) -> Iterator[list[LineageNode]]:
    """Yield the families of two or more nodes (runs, and models that runs trained), found with a union-find.

    Two nodes are in one family if one trained a model that the other uses, if one is the parent run of the other, or
    if both belong to the same training run.
    """
    lineage = Lineage(nodes)
    parent_key: dict[str, str] = {}  # the forest of the union-find: maps each node's key to a key in the same family

    def root(key: str) -> str:
        while parent_key.setdefault(key, key) != key:
            parent_key[key] = parent_key[parent_key[key]]
            key = parent_key[key]
        return key

    key_of_run: dict[tuple[str, str | None], str] = {}
    for node in nodes:
        first_key = key_of_run.setdefault((node.run_id, node.owner), node.key)
        if node.trains_models:
            parent_key[root(node.key)] = root(first_key)
        origins = [lineage.origin_of(node, group) for group in node.groups if group.lineage]
        for maker in (maker for origin in origins if origin is not None for maker in origin.makers):
            parent_key[root(node.key)] = root(maker.node.key)
    for node in nodes:
        if node.parent_run_id and (parent := key_of_run.get((node.parent_run_id, node.owner))):
            parent_key[root(node.key)] = root(parent)
    families = group_pairs((root(node.key), node) for node in nodes if node.key in parent_key)
    yield from (family for family in families.values() if len(family) > 1)


def _to_json(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()
