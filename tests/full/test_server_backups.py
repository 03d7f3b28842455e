"""Backup, restore and rebuild of a server: nothing lost, and the public board's file is equal.

A server has runs, of which some are private, hidden or yanked, and a competition with submissions. Its records go into
a backup and from there into SQLite and into PostgreSQL, where all releases are checked again. Each time all rows are as
they were, and so is the board's DuckDB file, made anew. Then backups are made while publishers go on: each has all that
was acknowledged before it began, and nothing half. All of that with SQLite, and then with a PostgreSQL of its own; or
with the one database that is named.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from runner.documents.releases.reference import Kind
from runner.server.settings import Settings
from runner.server.store.backup import find_missing_blobs
from runner.server.store.blob_stores import open_blob_store
from runner.server.store.database import Database
from tests.support.claims import Claims
from tests.support.filled import PUBLISHED, SUBMISSIONS, fill
from tests.support.kept import board, rows
from tests.support.postgresql import cluster
from tests.support.processes import nip_run, until
from tests.support.registries import bundle
from tests.support.serving import Served, serving

BACKUPS = 3


@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
def test_a_server_is_backed_up_restored_and_rebuilt_without_a_loss(
    tmp_path: Path, claims: Claims, database: str
) -> None:
    with cluster() as made:
        kept = Kept(claims, tmp_path, made() if database == "PostgreSQL" else None, made)
        kept.moved()
        kept.under_load()


class Kept:
    """A server, and its records elsewhere."""

    def __init__(self, claims: Claims, here: Path, database: str | None, made: Callable[[], str]) -> None:
        self._claims, self._here, self._made = claims, here, made
        self._settings = Settings(folder=here / "server", database=database)
        fill(self._settings, here)
        self._rows, self._board = rows(self._settings.database_url), board(self._settings)
        counts = {name: len(told) for name, told in self._rows.items()}
        on_board = [len(self._board[name]) - 1 for name in ("runs", "releases")]
        claims(
            counts["releases"] == len(PUBLISHED) + SUBMISSIONS + 1 and counts["submissions"] == SUBMISSIONS
            and all(on_board) and on_board[1] < counts["releases"],
            f"a server has {counts}; {on_board[0]} rows on its board, {on_board[1]} public releases",
        )  # fmt: skip

    def _new(self, name: str, database: str | None, *, of: Settings | None = None) -> Settings:
        """Another server, with the same files."""
        settings = Settings(folder=self._here / name, database=database)
        shutil.copytree((of or self._settings).folder / "blobs", settings.folder / "blobs")
        return settings

    def _of_its_kind(self) -> str | None:
        return None if self._settings.database is None else self._made()

    def _do(self, *words: str | Path, on: Settings) -> subprocess.CompletedProcess[str]:
        where = () if on.database is None else ("--database", on.database)
        return nip_run(*words, *where, cwd=self._here, timeout=600)

    def _same(self, settings: Settings, what: str) -> None:
        self._claims(rows(settings.database_url) == self._rows, f"{what}: every row of every table is as it was")
        self._claims(board(settings) == self._board, f"{what}: the board's file is as it was")

    def moved(self) -> None:
        file = self._here / "moved.backup"
        done = self._do("server", "backup", self._settings.folder, file, on=self._settings)
        self._claims(done.returncode == 0, f"a backup has {done.stdout.strip()} {done.stderr.strip()}")
        for name, database in (("SQLite", None), ("PostgreSQL", self._made())):
            new = self._new(f"moved-{name}", database)
            done = self._do("server", "restore", new.folder, file, on=new)
            self._claims(done.returncode == 0, f"restored into {name}: {done.stderr.strip()}")
            self._same(new, f"restored into {name}")
            done = self._do("serve", new.folder, "--rebuild", "--collect", on=new)
            self._claims(done.returncode == 0, f"checked there: {done.stdout.strip()} {done.stderr.strip()[:300]}")
            self._same(new, "checked")

    def under_load(self) -> None:
        busy, stopped = Settings(folder=self._here / "busy", database=self._of_its_kind()), threading.Event()
        acknowledged: set[str] = set()
        taken: list[tuple[Path, set[str]]] = []

        def publish(served: Served, who: str) -> None:
            number = 0
            while not stopped.is_set():
                made = bundle(f"{who}-{number}", {"data.txt": who.encode() * 9_000}, kind=Kind.DATASET)
                served.publish(who, made)
                acknowledged.add(str(made.release.reference))
                number += 1

        with serving(busy.folder, database=busy.database) as served:
            threads = [threading.Thread(target=publish, args=(served, who)) for who in ("alice", "bob")]
            for thread in threads:
                thread.start()
            for number in range(BACKUPS):
                wanted = 3 * (number + 1)
                until(lambda wanted=wanted: len(acknowledged) >= wanted)  # type: ignore[misc]
                known, file = set(acknowledged), self._here / f"busy-{number}.backup"
                done = self._do("server", "backup", busy.folder, file, on=busy)
                self._claims(done.returncode == 0, f"a backup while others publish: {done.stdout.strip()}")
                taken.append((file, known))
            stopped.set()
            for thread in threads:
                thread.join()
        for number, (file, known) in enumerate(taken):
            self._whole(self._new(f"busy-{number}", self._of_its_kind(), of=busy), file, known, len(acknowledged))

    def _whole(self, new: Settings, file: Path, known: set[str], in_all: int) -> None:
        """Nothing that a backup must have is missing, and what it has is whole."""
        done = self._do("server", "restore", new.folder, file, on=new)
        there = rows(new.database_url)["releases"]
        names = {f"{row[1]}/{row[2]}/{row[3]}@{row[4]}" for row in there}
        with closing(Database(new.database_url)) as opened:
            missing = find_missing_blobs(opened, open_blob_store(new))
        again = self._do("serve", new.folder, "--rebuild", on=new)
        is_whole = again.returncode == 0 and "checked" in again.stdout
        self._claims(
            done.returncode == 0 and known <= names and len(names) == len(there) and not missing and is_whole,
            f"it has all {len(known)} that were acknowledged before, {len(names)} of {in_all} in all, each whole: "
            f"{again.stdout.strip()} {sorted(known - names)[:2]} {missing[:2]} {done.stderr.strip()[:200]}",
        )
