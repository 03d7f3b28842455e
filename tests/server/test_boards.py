"""A board is built from all valid releases, even if others are broken."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, text

from runner.base.storage.duckdb_connections import connect
from runner.base.storage.safe_files import make_folders
from runner.documents.releases.bundle import Bundle
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind, Reference
from runner.registry.release_errors import RegistryUnavailableError
from runner.registry.transports.yanks import YANKED, YANKED_FILE, format_yanked_file
from runner.results.leaderboard.results_folder import Results
from runner.server.accounts.accounts import add_account, add_member
from runner.server.accounts.administration import set_hidden
from runner.server.boards.builder import INDEX_FILE
from runner.server.boards.paths import BoardPaths
from runner.server.boards.snapshot import BoardSnapshot
from runner.server.boards.updates import BoardUpdater
from runner.server.boards.worker import BoardWorker, find_culprits
from runner.server.service import Service
from runner.server.settings import Settings
from runner.server.store.schema import files, releases
from runner.server.visible_releases import VisibleReleases
from runner.version import __version__
from tests.registry.planted import build_planted_release
from tests.support.processes import wait_until
from tests.support.runs import run_spec
from tests.support.server_releases import copy_bundle, insert_releases, run_bundle
from tests.support.specs import SOLO_OVERRIDES, debate_with_hints


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    settings = Settings(folder=tmp_path / "server")
    make_folders(settings.incoming)
    server = Service.open(settings)
    yield server
    server.database.close()


@pytest.fixture
def worker(service: Service) -> Iterator[BoardWorker]:
    with closing(BoardWorker(service.settings)) as opened:
        yield opened


def make_bundle(name: str, facts: dict[str, Any] | None = None, kind: Kind = Kind.DATASET) -> Bundle:
    return Bundle(Release(kind=kind, owner="mallory", name=name, version="1", facts=facts or {}), {})


def build_board(server: Service, folder: Path, worker: BoardWorker | None = None) -> BoardSnapshot:
    make_folders(folder)
    with ExitStack() as stack:
        (worker or stack.enter_context(closing(BoardWorker(server.settings)))).write(folder)
    return BoardSnapshot(folder)


def newest_by_name(snapshot: BoardSnapshot) -> dict[str, Any]:
    return {release["name"]: release for release in snapshot.newest_releases(100)}


@pytest.mark.full
def test_board_is_built_despite_facts_of_any_type_and_size(service: Service, tmp_path: Path) -> None:
    facts: list[dict[str, Any]] = [
        {"benchmark": ["x"]}, {"benchmark": {"a": 1}}, {"task": {"a": 1}}, {"kind": ["x"]}, {"models": [1]},
        {"models": {"a": ["b"]}}, {"accuracy": "x"}, {"accuracy": {"value": "x"}}, {"run_id": 5}, {"protocol": 7},
        {"benchmark": "W" * 900_000}, {"models": {"a": "W" * 900_000}}, {"trained": 5},
    ]  # fmt: skip
    kinds = (Kind.MODEL, Kind.DATASET, Kind.RUN)
    bad = [make_bundle(f"{kind}{number}", row, kind) for number, row in enumerate(facts) for kind in kinds]
    insert_releases(service, [*bad, make_bundle("honest", {"benchmark": "sums"})])
    snapshot = build_board(service, tmp_path / "board")
    by_name = newest_by_name(snapshot)
    assert by_name["honest"]["benchmark"] == "sums"
    assert all(
        isinstance(row["benchmark"], str | None) and isinstance(row["run_id"], str | None) for row in by_name.values()
    )
    assert max(len(str(row)) for row in by_name.values()) < 3_000


@pytest.mark.full  # builds ten boards
def test_release_that_breaks_the_board_is_left_out_and_named(
    service: Service, worker: BoardWorker, tmp_path: Path
) -> None:
    insert_releases(service, [make_bundle(f"one{number}") for number in range(5)])
    with service.database.writing() as connection:
        connection.execute(text("UPDATE releases SET created = 'soon' WHERE name = 'one3'"))
    snapshot = build_board(service, tmp_path / "first", worker)
    assert sorted(newest_by_name(snapshot)) == ["one0", "one1", "one2", "one4"]
    assert [
        release
        for release, reason in snapshot.read_info("left_out")
        if "the board cannot be built with this release" in reason
    ] == ["dataset/mallory/one3@1"]
    insert_releases(service, [make_bundle("another")])
    assert sorted(newest_by_name(build_board(service, tmp_path / "second", worker))) == [
        "another",
        "one0",
        "one1",
        "one2",
        "one4",
    ]


def test_board_is_not_replaced_while_the_stored_files_or_the_database_cannot_be_read(
    service: Service, worker: BoardWorker, tmp_path: Path
) -> None:
    """Otherwise, the new board would lack releases until somebody publishes the next one."""
    insert_releases(service, [make_bundle("stored")])
    blobs = service.settings.folder / "blobs"
    blobs.rename(tmp_path / "moved")
    blobs.write_bytes(b"")
    with pytest.raises(RegistryUnavailableError, match="cannot read the blob"):
        build_board(service, tmp_path / "first", worker)
    blobs.unlink()
    (tmp_path / "moved").rename(blobs)
    with service.database.writing() as connection:
        connection.execute(text("ALTER TABLE files RENAME TO elsewhere"))
    registry = VisibleReleases(service.database, service.blobs)
    with pytest.raises(RegistryUnavailableError, match="database does not answer"):
        registry.open("dataset/mallory/stored/1/release.json")
    with service.database.writing() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO files"))
    assert list(newest_by_name(build_board(service, tmp_path / "second", worker))) == ["stored"]


@pytest.mark.parametrize("statement", ["DELETE FROM info", "UPDATE info SET value = '\"0.1.0\"'"])
def test_board_of_another_version_is_replaced_when_the_server_starts(
    statement: str, service: Service, worker: BoardWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a server would show the numbers of the earlier version until the next publish."""
    paths = BoardPaths(service.settings)
    make_folders(paths.boards)
    with closing(sqlite3.connect(paths.boards / worker.build() / INDEX_FILE)) as index, index:
        index.execute(f"{statement} WHERE key = 'version'")
    updater = BoardUpdater(service.settings, service.database)
    monkeypatch.setattr(updater, "_build", worker.build)
    updater.start()
    wait_until(lambda: updater.newest is not None and updater.newest.version == __version__)
    updater.close()


def test_damaged_board_is_replaced_when_the_server_starts(
    service: Service, worker: BoardWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = BoardPaths(service.settings)
    make_folders(paths.boards)
    index = paths.boards / worker.build() / INDEX_FILE
    index.write_bytes(b"damaged" * 1_000)
    updater = BoardUpdater(service.settings, service.database)
    monkeypatch.setattr(updater, "_build", worker.build)
    updater.start()
    wait_until(lambda: updater.newest is not None and not index.exists())
    updater.close()


@pytest.mark.parametrize("bad", [(), (3,), (0, 9), (4, 5, 6), tuple(range(10))])
def test_find_culprits_returns_exactly_the_failing_items(bad: tuple[int, ...]) -> None:
    assert find_culprits(range(10), lambda batch: not set(batch) & set(bad)) == list(bad)


@pytest.mark.gate
def test_debate_with_hints_for_provers_shares_the_page_of_the_lone_verifier(service: Service, tmp_path: Path) -> None:
    path, results = debate_with_hints(tmp_path / "spec"), tmp_path / "results"
    runs = [
        run_spec(path, results, *overrides, run_id=name)
        for name, overrides in (("debate", ()), ("alone", SOLO_OVERRIDES))
    ]
    insert_releases(service, [build_planted_release(run.folder, Results(results), "acme") for run in runs])
    snapshot = build_board(service, tmp_path / "board")
    (task,) = snapshot.tasks
    assert task["ranked"] == 2
    assert snapshot.task(task["page"]) == task


def read_board_contents(folder: Path) -> dict[str, Any]:
    """Return all contents of a board, independent of the bytes of its database files."""
    contents: dict[str, Any] = {path.name: gzip.decompress(path.read_bytes()) for path in folder.glob("*.gz")}
    with closing(sqlite3.connect(folder / "index.sqlite")) as index:
        for (table,) in index.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        ):
            contents[f"index {table}"] = sorted(index.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
    with connect() as connection:
        connection.execute(f"ATTACH '{folder / 'board.duckdb'}' AS board (READ_ONLY)")
        for table in ("about", "runs", "releases", "links"):
            contents[f"file {table}"] = connection.execute(f"FROM board.{table}").fetchall()
    return contents


def yank_release(server: Service, reference: Reference, folder: Path) -> None:
    data = format_yanked_file("a leak")
    sha256 = hashlib.sha256(data).hexdigest()
    (folder / "yanked").write_bytes(data)
    server.blobs.put(sha256, folder / "yanked")
    with server.database.writing() as connection:
        query = select(releases.c.id).where(releases.c.owner == reference.owner, releases.c.name == reference.name)
        path = f"{reference.folder}/{YANKED}/{YANKED_FILE}"
        row = {"path": path, "release_id": connection.execute(query).scalar_one(), "part": YANKED}
        connection.execute(insert(files), {**row, "sha256": sha256, "size": len(data)})
        server.database.increment_revision(connection)


@pytest.mark.full
@pytest.mark.parametrize("order", [1, -1])
def test_incrementally_updated_board_equals_a_rebuilt_one(
    service: Service, worker: BoardWorker, tmp_path: Path, order: int
) -> None:
    first, second = (run_bundle(tmp_path / f"run{seed}", seed=seed) for seed in (1, 2))
    other_task = run_bundle(tmp_path / "other", question="Another task: ")
    paths = BoardPaths(service.settings)
    yanked = copy_bundle(first, owner="mallory", name="leaked")

    def hide(*, hidden: bool) -> None:
        with service.database.writing() as connection:
            set_hidden(connection, Reference(Kind.RUN, "bob", "second", "1"), hidden=hidden)
            service.database.increment_revision(connection)

    def add_organization() -> None:
        with service.database.writing() as connection:
            add_account(connection, "lab", 0.0, is_organization=True)
            add_member(connection, "lab", "bob")
            service.database.increment_revision(connection)

    uploads: list[Callable[[], None]] = [
        lambda: insert_releases(service, [copy_bundle(first, owner="alice", name="first")]),
        lambda: insert_releases(service, [copy_bundle(second, owner="bob", name="second")]),
        lambda: insert_releases(service, [copy_bundle(other_task, owner="bob", name="other")]),
        lambda: insert_releases(service, [yanked]),
    ]
    changes: list[Callable[[], None]] = [
        lambda: yank_release(service, yanked.release.reference, tmp_path),
        lambda: hide(hidden=True),
        lambda: insert_releases(
            service, [copy_bundle(second, owner="alice", name="first", version="2"), make_bundle("rows")]
        ),
        add_organization,
        lambda: hide(hidden=False),
    ]
    inodes: dict[str, int] = {}
    unchanged_files: list[set[str]] = []
    for change in [*uploads[::order], *changes]:
        change()
        folder = paths.boards / worker.build()
        new_inodes = {path.name: path.stat().st_ino for path in folder.glob("*.gz")}
        unchanged_files.append(
            {name.partition(".")[0] for name, inode in new_inodes.items() if inodes.get(name) == inode}
        )
        inodes = new_inodes
        moved = paths.root.rename(tmp_path / "aside")
        rebuilt = build_board(service, tmp_path / "anew")  # with an empty cache, and no earlier board
        assert read_board_contents(moved / folder.relative_to(paths.root)) == read_board_contents(rebuilt.folder)
        shutil.rmtree(rebuilt.folder)
        shutil.rmtree(paths.root)
        moved.rename(paths.root)
    (page,) = (task["page"] for task in rebuilt.tasks if task["rows"] == 1)
    assert all(page in names for names in unchanged_files[4:7])  # no change affected this list
