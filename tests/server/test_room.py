"""What an account may publish: so much, where there is room that nobody else was promised, and while it is good."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest
from sqlalchemy import insert, update

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


def test_what_an_account_has_published_counts_once_for_what_it_may_have(tmp_path: Path) -> None:
    held = ServerParts(tmp_path / "server", account_bytes=3 * len(DATA))
    with held.database.writing() as connection:
        add_account(connection, "acme", time.time())
        for number in range(4):
            row = {"kind": "dataset", "owner": "acme", "name": f"n{number}", "version": "1", "sha256": "0" * 64,
                   "visibility": "public", "publisher_id": 1, "created": 1.0}  # fmt: skip
            made_here = connection.execute(insert(releases).returning(releases.c.id), row).scalar_one()
            sha256 = hashlib.sha256(DATA).hexdigest() if number < 3 else "1" * 64
            file = {"path": f"dataset/acme/n{number}/1/data.txt", "release_id": made_here, "part": "",
                    "sha256": sha256, "size": len(DATA)}  # fmt: skip
            connection.execute(insert(files), file)
    held.begun("same")  # its data is there
    other = ServerParts(tmp_path / "server", account_bytes=2 * len(DATA) + 100)
    with pytest.raises(UsageError, match="your account has published 20,000 bytes"):
        other.begun("more")
    with held.database.writing() as connection:  # of another, who keeps it private, it is as new as any
        add_account(connection, "other", time.time())
        connection.execute(update(releases).values(publisher_id=2, visibility="private"))
    mine = ServerParts(tmp_path / "server", account_bytes=len(DATA) + 100)
    with pytest.raises(UsageError, match=r"published 0 bytes .* with 1\d,\d{3} more"):
        mine.begun("more")
    for one in (held, other, mine):
        one.close()


def test_the_room_that_an_open_upload_was_promised_is_given_to_no_other(tmp_path: Path) -> None:
    much = Limits(files=2_000, file_bytes=1 << 60, total_bytes=1 << 60)
    held = ServerParts(tmp_path / "server", limits=much, open_bytes=1 << 60, account_bytes=0)
    with held.database.writing() as connection:
        add_account(connection, "acme", time.time())
    size = held.publishing.uploads.pieces.free_bytes() * 6 // 10

    def begun(name: str) -> str:
        files = [
            {"path": path, "sha256": letter * 64, "size": 1} for path, letter in ((MANIFEST, "a"), (CHECKSUM, "b"))
        ]
        files.append({"path": "data.txt", "sha256": hashlib.sha256(name.encode()).hexdigest(), "size": size})
        declaration = Declaration.parse([{"folder": f"dataset/acme/{name}/1", "files": files}], much, 10, 100)
        return held.publishing.uploads.declare(held.viewer, declaration).id

    one = begun("one")
    with pytest.raises(DiskFullError, match="disk has no space for an upload"):
        begun("two")
    # What is there of it takes no more room than it does: of a file with a hole, nothing.
    part = held.settings.incoming / one / f"{'c' * 64}.part"
    part.parent.mkdir(parents=True)
    with part.open("wb") as file:
        file.truncate(size)
    begun("two")
    held.close()


def _checking(held: ServerParts) -> bool:
    return any(held.settings.incoming.glob("work-*"))


@pytest.mark.parametrize("when", ["before", pytest.param("during", marks=pytest.mark.full)])
def test_what_a_disabled_account_has_committed_is_not_published(tmp_path: Path, when: str) -> None:
    held = ServerParts(tmp_path / "server")
    with held.database.writing() as connection:
        add_account(connection, "acme", time.time())
    upload, contents = held.begun("council")
    held.send(upload, contents)
    held.publishing.commit(held.publishing.uploads.find(held.viewer, upload.id))
    with held.database.writing() as connection:
        set_disabled(connection, "acme", time.time())
        if when == "during":  # its check has begun before that holds, and it is shown after
            held.publishing.start()
            wait_until(lambda: _checking(held))
    if when == "before":
        held.publishing.start()
    assert held.ended(upload) == REFUSED
    found = held.publishing.uploads.find(held.viewer, upload.id)
    assert found.problems == ["you may no longer publish as acme; ask an owner of acme"]
    assert held.rows() == []
    held.close()
