"""Backup, restore and upgrade: nothing that is nowhere else is lost, and a damaged file changes nothing."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect

from runner.base.errors import RunError, UsageError
from runner.documents.releases.reference import Kind
from runner.server.store.backup import back_up, find_missing_blobs, restore
from runner.server.store.blobs import DiskBlobStore
from runner.server.store.database import Database
from runner.server.store.schema import VERSION
from tests.server.test_keeping import keep
from tests.support.kept import rows
from tests.support.paths import ROOT
from tests.support.registries import bundle
from tests.support.serving import Served, serving

SCHEMA_1 = (ROOT / "tests" / "fixtures" / "server" / "schema_1.sql").read_text("utf-8")
"""A server's database as the first schema had it, with an account, a token and a release."""
SCHEMA_2 = (ROOT / "tests" / "fixtures" / "server" / "schema_2.sql").read_text("utf-8")
"""As the second had it, with a competition, a label and a submission that waits."""


def seen(served: Served, who: str | None) -> list[tuple[str, str]]:
    with served.registry(who) as registry:
        return sorted((str(entry.reference), entry.sha256) for entry in registry.entries())


@pytest.mark.full
def test_a_restored_server_has_all_and_goes_on(served: Served, tmp_path: Path) -> None:
    served.publish("alice", bundle("council", kind=Kind.DATASET), bundle("jury", kind=Kind.DATASET))
    keep(served.folder, "hide", "dataset/acme/jury@1")
    keep(served.folder, "backup", tmp_path / "file")
    new = tmp_path / "new"
    new.mkdir()
    shutil.copytree(served.folder / "blobs", new / "blobs")
    keep(new, "restore", tmp_path / "file")
    assert rows(f"sqlite:///{new / 'registry.sqlite'}") == rows(f"sqlite:///{served.folder / 'registry.sqlite'}")
    assert keep(new, "check") == {"missing": []}
    with serving(new, people=False) as running:
        again = replace(running, tokens=served.tokens)
        for who in (None, "alice", "mallory"):
            assert seen(again, who) == seen(served, who)
        again.publish("bob", bundle("council", {"a": b"b"}, kind=Kind.DATASET, version="2"))
        assert len(seen(again, None)) == len(seen(served, None)) + 1


def made(path: Path, statements: str = SCHEMA_1) -> str:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)
    return f"sqlite:///{path}"


def test_a_database_of_the_schema_before_is_upgraded_once_it_is_backed_up(tmp_path: Path) -> None:
    url = made(tmp_path / "old.sqlite")
    with pytest.raises(RunError, match="start `nip-run serve` once to upgrade the database"):
        Database(url)
    Database(url, before_upgrade=lambda database, found: print(back_up(database, tmp_path / "b", found))).close()
    found = rows(url)
    assert [row[1] for row in found["accounts"]] == ["alice"]
    assert (len(found["tokens"]), len(found["releases"]), len(found["files"])) == (1, 1, 1)
    fresh = f"sqlite:///{tmp_path / 'fresh.sqlite'}"
    Database(fresh).close()
    assert shape(url) == shape(fresh)
    restored = f"sqlite:///{tmp_path / 'restored.sqlite'}"
    with closing(Database(restored)) as database:
        restore(database, tmp_path / "b")
    assert rows(restored) == found


def test_a_competition_of_the_second_schema_is_upgraded_with_its_labels_and_submissions(tmp_path: Path) -> None:
    url = made(tmp_path / "old.sqlite", SCHEMA_2)
    Database(url, before_upgrade=lambda database, found: print(back_up(database, tmp_path / "b", found))).close()
    found, fresh = rows(url), f"sqlite:///{tmp_path / 'fresh.sqlite'}"
    assert found["competition_labels"] == [(1, "c1", 1, False)]
    assert [row[-3:] for row in found["competitions"]] == [(None, None, None)]
    assert [row[6:] for row in found["submissions"]] == [("waiting", "", None, None)]
    Database(fresh).close()
    assert shape(url) == shape(fresh)
    restored = f"sqlite:///{tmp_path / 'restored.sqlite'}"
    with closing(Database(restored)) as database:
        restore(database, tmp_path / "b")
    assert rows(restored) == found


def shape(url: str) -> dict[str, Any]:
    inspected = inspect(create_engine(url))
    return {
        name: (
            sorted((one["name"], str(one["type"]), one["nullable"]) for one in inspected.get_columns(name)),
            sorted(str(one["column_names"]) for one in inspected.get_indexes(name)),
        )
        for name in inspected.get_table_names()
    }


def test_an_upgrade_whose_backup_fails_changes_nothing(tmp_path: Path) -> None:
    url = made(tmp_path / "old.sqlite")
    (tmp_path / "there").touch()
    with pytest.raises(UsageError, match="choose another name for the backup"):
        Database(url, before_upgrade=lambda database, found: print(back_up(database, tmp_path / "there", found)))
    with pytest.raises(RunError, match="has schema 1"):
        Database(url)


def test_a_newer_schema_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    url = made(tmp_path / "new.sqlite", SCHEMA_1 + f"UPDATE meta SET value = '{VERSION + 1}' WHERE key = 'schema';")
    for asked in (None, lambda database, found: None):
        with pytest.raises(RunError, match=f"has schema {VERSION + 1}, .* upgrade nip-run"):
            Database(url, before_upgrade=asked)


def damaged(lines: list[bytes]) -> dict[str, bytes]:
    whole = gzip.compress(b"".join(lines))
    newer = json.dumps({**json.loads(lines[0]), "schema": VERSION + 1}).encode() + b"\n"
    return {
        "cut": whole[:-20],
        "without its end": gzip.compress(b"".join(lines[:-1])),
        "without a row": gzip.compress(b"".join([*lines[:2], *lines[3:]])),
        "with a row more": gzip.compress(b"".join([*lines[:2], *lines[1:]])),
        "other": gzip.compress(b"".join(lines).replace(b"alice", b"elice")),
        "of a newer one": gzip.compress(b"".join([newer, *lines[1:]])),
        "no gzip": b"".join(lines),
        "nothing": b"",
        "no backup": gzip.compress(b"[]\n"),
        "another table": gzip.compress(lines[0] + b'{"table":"sqlite_master","row":{}}\n' + lines[-1]),
    }


def test_a_damaged_backup_restores_nothing(tmp_path: Path) -> None:
    url = made(tmp_path / "old.sqlite")
    Database(url, before_upgrade=lambda *_: None).close()
    with closing(Database(url)) as database:
        back_up(database, tmp_path / "good")
        with pytest.raises(UsageError, match="database is not empty"):
            restore(database, tmp_path / "good")
        assert find_missing_blobs(database, DiskBlobStore(tmp_path / "blobs")) == ["a" * 64]
    empty = f"sqlite:///{tmp_path / 'empty.sqlite'}"
    for name, data in damaged(gzip.decompress((tmp_path / "good").read_bytes()).splitlines(keepends=True)).items():
        (tmp_path / "damaged").write_bytes(data)
        with closing(Database(empty)) as database, pytest.raises(RunError):
            restore(database, tmp_path / "damaged")
        assert not any(rows(empty).values()), name
