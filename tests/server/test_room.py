"""Limits of publishing: account quotas, reserved disk space and disabled accounts."""

from __future__ import annotations

import hashlib
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, update

from runner.base.errors import UsageError
from runner.documents.releases.limits import Limits
from runner.documents.releases.manifest import CHECKSUM, MANIFEST
from runner.server.accounts.accounts import add_account
from runner.server.accounts.administration import set_disabled
from runner.server.store.schema import files, releases
from runner.server.uploads.declaration import Declaration
from runner.server.uploads.pieces import DiskFullError
from runner.server.uploads.uploads import REFUSED
from tests.server.test_rebuild import DATA, ServerParts
from tests.support.processes import wait_until


def test_published_bytes_count_once_toward_the_account_quota(tmp_path: Path) -> None:
    parts = ServerParts(tmp_path / "server", account_bytes=3 * len(DATA))
    with parts.database.writing() as connection:
        add_account(connection, "acme", time.time())
        for number in range(4):
            row = {"kind": "dataset", "owner": "acme", "name": f"n{number}", "version": "1", "sha256": "0" * 64,
                   "visibility": "public", "publisher_id": 1, "created": 1.0}  # fmt: skip
            release_id = connection.execute(insert(releases).returning(releases.c.id), row).scalar_one()
            sha256 = hashlib.sha256(DATA).hexdigest() if number < 3 else "1" * 64
            file = {"path": f"dataset/acme/n{number}/1/data.txt", "release_id": release_id, "part": "",
                    "sha256": sha256, "size": len(DATA)}  # fmt: skip
            connection.execute(insert(files), file)
    parts.declare_upload("same")  # the account has published this data already
    low_quota = ServerParts(tmp_path / "server", account_bytes=2 * len(DATA) + 100)
    with pytest.raises(UsageError, match="your account has published 20,000 bytes"):
        low_quota.declare_upload("more")
    with parts.database.writing() as connection:  # another account's private data must count as new
        add_account(connection, "other", time.time())
        connection.execute(update(releases).values(publisher_id=2, visibility="private"))
    small = ServerParts(tmp_path / "server", account_bytes=len(DATA) + 100)
    with pytest.raises(UsageError, match=r"published 0 bytes .* with 1\d,\d{3} more"):
        small.declare_upload("more")
    for opened in (parts, low_quota, small):
        opened.close()


def test_upload_that_is_published_during_a_declaration_counts_toward_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ServerParts(tmp_path / "server", account_bytes=15_000)
    with parts.database.writing() as connection:
        account_id = add_account(connection, "acme", time.time())
    writing = parts.database.writing

    def publish_first() -> AbstractContextManager[Connection]:
        monkeypatch.undo()
        with writing() as connection:
            row = {"kind": "dataset", "owner": "acme", "name": "first", "version": "1", "sha256": "0" * 64,
                   "visibility": "public", "publisher_id": account_id, "created": 1.0}  # fmt: skip
            release_id = connection.execute(insert(releases).returning(releases.c.id), row).scalar_one()
            file = {"path": "dataset/acme/first/1/data.txt", "release_id": release_id, "part": "",
                    "sha256": "1" * 64, "size": 10_000}  # fmt: skip
            connection.execute(insert(files), file)
            parts.database.increment_revision(connection)
        return writing()

    monkeypatch.setattr(parts.database, "writing", publish_first)
    with pytest.raises(UsageError, match="your account has published 10,000 bytes"):
        parts.declare_upload("second")
    parts.close()


def test_disk_space_reserved_for_an_open_upload_is_given_to_no_other(tmp_path: Path) -> None:
    limits = Limits(files=2_000, file_bytes=1 << 60, total_bytes=1 << 60)
    parts = ServerParts(tmp_path / "server", limits=limits, open_bytes=1 << 60, account_bytes=0)
    with parts.database.writing() as connection:
        add_account(connection, "acme", time.time())
    size = parts.publishing.uploads.pieces.free_bytes() * 6 // 10

    def declare(name: str) -> str:
        files = [
            {"path": path, "sha256": letter * 64, "size": 1} for path, letter in ((MANIFEST, "a"), (CHECKSUM, "b"))
        ]
        files.append({"path": "data.txt", "sha256": hashlib.sha256(name.encode()).hexdigest(), "size": size})
        declaration = Declaration.parse([{"folder": f"dataset/acme/{name}/1", "files": files}], limits, 10, 100)
        return parts.publishing.uploads.declare(parts.viewer, declaration).id

    upload_id = declare("one")
    with pytest.raises(DiskFullError, match="disk has no space for an upload"):
        declare("two")
    # Received bytes count by the disk space they use: a sparse file uses none.
    part = parts.settings.incoming / upload_id / f"{'c' * 64}.part"
    part.parent.mkdir(parents=True)
    with part.open("wb") as file:
        file.truncate(size)
    declare("two")
    parts.close()


def is_checking(parts: ServerParts) -> bool:
    return any(parts.settings.incoming.glob("work-*"))


@pytest.mark.parametrize("moment", ["before", pytest.param("during", marks=pytest.mark.full)])
def test_committed_upload_of_a_disabled_account_is_not_published(tmp_path: Path, moment: str) -> None:
    parts = ServerParts(tmp_path / "server")
    with parts.database.writing() as connection:
        add_account(connection, "acme", time.time())
    upload, contents = parts.declare_upload("council")
    parts.send(upload, contents)
    parts.publishing.commit(parts.publishing.uploads.find(parts.viewer, upload.id))
    with parts.database.writing() as connection:
        set_disabled(connection, "acme", time.time())
        if moment == "during":  # the check starts before the account is disabled and ends after
            parts.publishing.start()
            wait_until(lambda: is_checking(parts))
    if moment == "before":
        parts.publishing.start()
    assert parts.wait_for_check(upload) == REFUSED
    refused = parts.publishing.uploads.find(parts.viewer, upload.id)
    assert refused.problems == ["you may no longer publish as acme; ask an owner of acme"]
    assert parts.rows() == []
    parts.close()
