"""Backup and restore: a restored server has everything, and a damaged backup restores nothing."""

from __future__ import annotations

import gzip
import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import insert, update

from runner.base.errors import RunError, UsageError
from runner.documents.releases.reference import Kind
from runner.server.accounts.accounts import add_account
from runner.server.store.backup import back_up, find_missing_blobs, restore
from runner.server.store.blobs import DiskBlobStore
from runner.server.store.database import Database
from runner.server.store.schema import VERSION, files, meta, releases
from tests.server.test_keeping import run_server_command
from tests.support.registry_locations import bundle
from tests.support.server_contents import read_tables
from tests.support.server_process import ServerProcess, run_server


def list_hashes(served: ServerProcess, account: str | None) -> list[tuple[str, str]]:
    with served.registry(account) as registry:
        return sorted((str(entry.reference), entry.sha256) for entry in registry.entries())


@pytest.mark.full
def test_restored_server_has_all_releases_and_accepts_new_ones(served: ServerProcess, tmp_path: Path) -> None:
    served.publish("alice", bundle("council", kind=Kind.DATASET), bundle("jury", kind=Kind.DATASET))
    run_server_command(served.folder, "hide", "dataset/acme/jury@1")
    run_server_command(served.folder, "backup", tmp_path / "file")
    folder = tmp_path / "new"
    folder.mkdir()
    shutil.copytree(served.folder / "blobs", folder / "blobs")
    run_server_command(folder, "restore", tmp_path / "file")
    assert read_tables(f"sqlite:///{folder / 'registry.sqlite'}") == read_tables(
        f"sqlite:///{served.folder / 'registry.sqlite'}"
    )
    assert run_server_command(folder, "check") == {"missing": []}
    with run_server(folder, people=False) as process:
        restored = replace(process, tokens=served.tokens)
        for account in (None, "alice", "mallory"):
            assert list_hashes(restored, account) == list_hashes(served, account)
        restored.publish("bob", bundle("council", {"a": b"b"}, kind=Kind.DATASET, version="2"))
        assert len(list_hashes(restored, None)) == len(list_hashes(served, None)) + 1


def create_database(path: Path) -> str:
    """Create a server database with an account and a release, and return its URL."""
    url, sha256 = f"sqlite:///{path}", "a" * 64
    with closing(Database(url)) as database, database.writing() as connection:
        account = add_account(connection, "alice", 0.0)
        release = {
            "kind": "dataset", "owner": "alice", "name": "council", "version": "1", "sha256": sha256,
            "visibility": "public", "publisher_id": account, "created": 0.0,
        }  # fmt: skip
        number = connection.execute(insert(releases).returning(releases.c.id), release).scalar_one()
        file = {"path": "dataset/alice/council/1/release.json", "release_id": number, "part": "", "size": 1}
        connection.execute(insert(files), {**file, "sha256": sha256})
    return url


@pytest.mark.parametrize(
    ("schema", "message"),
    [(VERSION + 1, f"has schema {VERSION + 1}, .* upgrade nip-run"), (VERSION - 1, "has the unknown schema")],
)
def test_unknown_database_schema_is_refused_and_left_unchanged(schema: int, message: str, tmp_path: Path) -> None:
    url = create_database(tmp_path / "other.sqlite")
    with closing(Database(url)) as database, database.writing() as connection:
        connection.execute(update(meta).where(meta.c.key == "schema").values(value=str(schema)))
    before = (tmp_path / "other.sqlite").read_bytes()
    with pytest.raises(RunError, match=message):
        Database(url)
    assert (tmp_path / "other.sqlite").read_bytes() == before


def damaged_backups(lines: list[bytes]) -> dict[str, bytes]:
    backup = gzip.compress(b"".join(lines))
    newer_header = json.dumps({**json.loads(lines[0]), "schema": VERSION + 1}).encode() + b"\n"
    return {
        "cut": backup[:-20],
        "without its end": gzip.compress(b"".join(lines[:-1])),
        "without a row": gzip.compress(b"".join([*lines[:2], *lines[3:]])),
        "with a row more": gzip.compress(b"".join([*lines[:2], *lines[1:]])),
        "other": gzip.compress(b"".join(lines).replace(b"alice", b"elice")),
        "of a newer one": gzip.compress(b"".join([newer_header, *lines[1:]])),
        "no gzip": b"".join(lines),
        "nothing": b"",
        "no backup": gzip.compress(b"[]\n"),
        "another table": gzip.compress(lines[0] + b'{"table":"sqlite_master","row":{}}\n' + lines[-1]),
    }


def test_damaged_backup_restores_nothing(tmp_path: Path) -> None:
    with closing(Database(create_database(tmp_path / "old.sqlite"))) as database:
        back_up(database, tmp_path / "good")
        with pytest.raises(UsageError, match="database is not empty"):
            restore(database, tmp_path / "good")
        assert find_missing_blobs(database, DiskBlobStore(tmp_path / "blobs")) == ["a" * 64]
    empty = f"sqlite:///{tmp_path / 'empty.sqlite'}"
    for name, data in damaged_backups(
        gzip.decompress((tmp_path / "good").read_bytes()).splitlines(keepends=True)
    ).items():
        (tmp_path / "damaged").write_bytes(data)
        with closing(Database(empty)) as database, pytest.raises(RunError):
            restore(database, tmp_path / "damaged")
        assert not any(read_tables(empty).values()), name
