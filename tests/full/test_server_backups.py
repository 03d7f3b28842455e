"""Backup, restore and rebuild of a server, with its data in SQLite and in PostgreSQL."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runner.documents.releases.reference import Kind
from runner.server.settings import Settings
from runner.server.store.backup import find_missing_blobs
from runner.server.store.blob_stores import open_blob_store
from runner.server.store.database import Database
from tests.support.populated_server import PUBLISHED_RUNS, SUBMISSIONS, populate_server
from tests.support.postgresql import run_postgresql
from tests.support.processes import nip_run, wait_until
from tests.support.registry_locations import bundle
from tests.support.server_contents import build_board_tables, read_tables
from tests.support.server_process import ServerProcess, run_server
from tests.support.soft_assertions import SoftAssertions

BACKUPS = 3


@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
def test_restored_server_has_the_same_rows_and_board(tmp_path: Path, check: SoftAssertions, database: str) -> None:
    with run_postgresql() as create_database:
        original = Settings(
            folder=tmp_path / "server", database=create_database() if database == "PostgreSQL" else None
        )
        populate_server(original, tmp_path)
        tables, board = read_tables(original.database_url), build_board_tables(original)
        check_is_populated(check, tables, board)

        file = tmp_path / "server.backup"
        backup = run_command(original, "server", "backup", original.folder, file)
        check(backup.returncode == 0, f"the backup succeeds: {backup.stdout.strip()} {backup.stderr.strip()}")
        for target, url in (("SQLite", None), ("PostgreSQL", create_database())):
            copy = copy_blobs(original, Settings(folder=tmp_path / f"restored-{target}", database=url))
            restored = run_command(copy, "server", "restore", copy.folder, file)
            check(restored.returncode == 0, f"the restore into {target} succeeds: {restored.stderr.strip()}")
            check(read_tables(copy.database_url) == tables, f"every table in {target} has the same rows")
            check(build_board_tables(copy) == board, f"the board from {target} is the same")

            rebuilt = run_command(copy, "serve", copy.folder, "--rebuild", "--collect")
            output = f"{rebuilt.stdout.strip()} {rebuilt.stderr.strip()[:300]}"
            check(rebuilt.returncode == 0, f"the rebuild with {target} succeeds: {output}")
            check(read_tables(copy.database_url) == tables, f"the rebuild with {target} changes no row")
            check(build_board_tables(copy) == board, f"the board after the rebuild with {target} is the same")


def check_is_populated(check: SoftAssertions, tables: dict[str, list[Any]], board: dict[str, list[Any]]) -> None:
    """Check that all releases and submissions are there, and that only some of the releases are public."""
    counts = {name: len(rows) for name, rows in tables.items()}
    runs, public_releases = (len(board[name]) - 1 for name in ("runs", "releases"))  # without the names of columns
    check(
        counts["releases"] == len(PUBLISHED_RUNS) + SUBMISSIONS + 1
        and counts["submissions"] == SUBMISSIONS
        and runs > 0
        and 0 < public_releases < counts["releases"],
        f"the server has {counts}, and its board has {runs} runs and {public_releases} public releases",
    )


@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
def test_backup_during_publishes_has_all_releases_acknowledged_before(
    tmp_path: Path, check: SoftAssertions, database: str
) -> None:
    with run_postgresql() as create_postgresql:

        def create_database() -> str | None:
            return create_postgresql() if database == "PostgreSQL" else None

        original = Settings(folder=tmp_path / "busy", database=create_database())
        backups, published = back_up_while_publishing(check, original, tmp_path)
        for file, acknowledged in backups:
            copy = copy_blobs(original, Settings(folder=tmp_path / file.stem, database=create_database()))
            check_restored_backup(check, copy, file, acknowledged, published)


def back_up_while_publishing(
    check: SoftAssertions, settings: Settings, folder: Path
) -> tuple[list[tuple[Path, set[str]]], int]:
    """Make backups of a server while two accounts publish continuously.

    Return each backup with the releases whose publication was acknowledged before the backup started, and the number of
    all published releases.
    """
    acknowledged: set[str] = set()
    stopped = threading.Event()
    backups: list[tuple[Path, set[str]]] = []
    with run_server(settings.folder, database=settings.database) as server:
        threads = [
            threading.Thread(target=publish_until, args=(stopped, server, account, acknowledged.add))
            for account in ("alice", "bob")
        ]
        for thread in threads:
            thread.start()
        for number in range(BACKUPS):
            count = 3 * (number + 1)
            wait_until(lambda count=count: len(acknowledged) >= count)  # type: ignore[misc]
            before, file = set(acknowledged), folder / f"busy-{number}.backup"
            done = run_command(settings, "server", "backup", settings.folder, file)
            check(done.returncode == 0, f"a backup during publishes succeeds: {done.stdout.strip()}")
            backups.append((file, before))
        stopped.set()
        for thread in threads:
            thread.join()
    return backups, len(acknowledged)


def publish_until(
    stopped: threading.Event, server: ServerProcess, account: str, on_acknowledged: Callable[[str], None]
) -> None:
    """Publish one release after another, until `stopped` is set."""
    number = 0
    while not stopped.is_set():
        release = bundle(f"{account}-{number}", {"data.txt": account.encode() * 9_000}, kind=Kind.DATASET)
        server.publish(account, release)
        on_acknowledged(str(release.release.reference))
        number += 1


def check_restored_backup(
    check: SoftAssertions, copy: Settings, file: Path, acknowledged: set[str], published: int
) -> None:
    """Restore a backup; check that it has the acknowledged releases, and that all its releases are complete."""
    restored = run_command(copy, "server", "restore", copy.folder, file)
    rows = read_tables(copy.database_url)["releases"]
    names = {f"{row[1]}/{row[2]}/{row[3]}@{row[4]}" for row in rows}
    with closing(Database(copy.database_url)) as database:
        missing_blobs = find_missing_blobs(database, open_blob_store(copy))
    rebuilt = run_command(copy, "serve", copy.folder, "--rebuild")
    check(restored.returncode == 0, f"the restore of {file.name} succeeds: {restored.stderr.strip()[:200]}")
    check(
        acknowledged <= names and len(names) == len(rows),
        f"{file.name} has {len(names)} of {published} releases, each once, with all {len(acknowledged)} acknowledged "
        f"before the backup; missing: {sorted(acknowledged - names)[:2]}",
    )
    check(not missing_blobs, f"{file.name} refers to no missing blob: {missing_blobs[:2]}")
    check(
        rebuilt.returncode == 0 and "checked" in rebuilt.stdout,
        f"every release in {file.name} passes the checks of a rebuild: {rebuilt.stdout.strip()}",
    )


def copy_blobs(original: Settings, copy: Settings) -> Settings:
    """Copy the blobs of a server to the folder of another one, as an administrator does before a restore."""
    shutil.copytree(original.folder / "blobs", copy.folder / "blobs")
    return copy


def run_command(settings: Settings, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line with the database of a server."""
    database = () if settings.database is None else ("--database", settings.database)
    return nip_run(*arguments, *database, cwd=settings.folder.parent, timeout=600)
