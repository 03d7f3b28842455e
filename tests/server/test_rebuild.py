"""Uploads go on after kills; releases are checked again, and what is nobody's goes, while none serves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from runner.base.errors import NotFoundError, UsageError
from runner.documents.releases.reference import Kind, Reference
from runner.server.accounts.accounts import Scope, Viewer, add_account
from runner.server.accounts.administration import set_hidden
from runner.server.background_worker import BackgroundWorker
from runner.server.rebuild import exclusive_access, rebuild, remove_unused_blobs
from runner.server.settings import Settings
from runner.server.store.blob_stores import open_blob_store
from runner.server.store.database import Database
from runner.server.store.schema import files, uploads
from runner.server.uploads.declaration import Declaration
from runner.server.uploads.pieces import DiskFullError, OffsetError
from runner.server.uploads.publishing import CHECK_FAILED, Publishing
from runner.server.uploads.uploads import CHECKING, OPEN, PUBLISHED, REFUSED, Upload
from tests.server.test_uploads import folders, make_bundle
from tests.support.processes import nip_run_here, wait_until
from tests.support.raw_uploads import describe_file

DATA = b"0123456789" * 1_000


class ServerParts:
    """A server's parts, in this process and without HTTP, with an account acme."""

    def __init__(self, folder: Path, **said: Any) -> None:
        self.settings = Settings(folder=folder, **said)
        folder.mkdir(exist_ok=True)
        self.database, self.blobs = Database(self.settings.database_url), open_blob_store(self.settings)
        self.publishing = Publishing(self.settings, self.database, self.blobs)
        self.viewer = Viewer(1, "acme", frozenset(("acme",)), Scope.PUBLISH)

    def begun(self, name: str) -> tuple[Upload, dict[str, bytes]]:
        contents = dict(folders(make_bundle(name, data=DATA))[f"dataset/acme/{name}/1"])
        said = [{"folder": f"dataset/acme/{name}/1", "files": [describe_file(*one) for one in contents.items()]}]
        declaration = Declaration.parse(said, self.settings.limits, 10, 100)
        upload = self.publishing.uploads.declare(self.viewer, declaration)
        return upload, {file["sha256"]: contents[file["path"]] for file in said[0]["files"]}  # type: ignore[index]

    def send(self, upload: Upload, contents: dict[str, bytes]) -> None:
        for sha256, (size, have) in upload.missing.items():
            into = self.publishing.uploads.open_writer(self.viewer, upload.id, sha256, have)
            into.write(contents[sha256][have:])
            into.finish()
            into.close()
            assert size == len(contents[sha256])

    def state(self, upload: Upload) -> str:
        return self.publishing.uploads.find(self.viewer, upload.id).state

    def ended(self, upload: Upload) -> str:
        wait_until(lambda: self.state(upload) != CHECKING)
        return self.state(upload)

    def rows(self) -> list[object]:
        with self.database.reading() as connection:
            return [tuple(row) for row in connection.execute(select(files))]

    def killed(self) -> ServerParts:
        """As it is found by the next process, which nobody has told anything."""
        self.close()
        return ServerParts(self.settings.folder)

    def close(self) -> None:
        self.publishing.close()
        self.database.close()


@pytest.fixture
def server_parts(tmp_path: Path) -> ServerParts:
    made_here = ServerParts(tmp_path / "server")
    with made_here.database.writing() as connection:
        add_account(connection, "acme", time.time())
    return made_here


@pytest.mark.full
def test_an_upload_goes_on_after_a_kill_at_every_step_of_it(server_parts: ServerParts) -> None:
    upload, contents = server_parts.begun("council")
    large = next(sha256 for sha256, data in contents.items() if data == DATA)
    into = server_parts.publishing.uploads.open_writer(
        server_parts.viewer, upload.id, large, 0
    )  # killed within a piece
    into.write(DATA[:1_000])
    into.close()

    server_parts = server_parts.killed()
    upload, _ = server_parts.begun("council")
    assert upload.missing[large] == (len(DATA), 1_000)
    server_parts.send(upload, contents)

    server_parts = server_parts.killed()  # when all was sent, and nothing was committed
    upload, _ = server_parts.begun("council")
    assert (upload.state, upload.missing) == (OPEN, {})
    assert server_parts.publishing.uploads.set_state(upload.id, CHECKING, [], if_state=OPEN)
    for sha256 in contents:  # when it was committed, and its blobs were kept, and not shown
        path = server_parts.publishing.uploads.pieces.complete_file(upload.id, sha256)
        assert path is not None
        server_parts.blobs.put(sha256, path)

    server_parts = server_parts.killed()
    assert server_parts.rows() == []
    server_parts.publishing.start()
    assert server_parts.ended(upload) == PUBLISHED
    assert len(server_parts.rows()) == len(contents)
    wait_until(lambda: not list(server_parts.settings.incoming.iterdir()))

    server_parts = server_parts.killed()  # when it was shown, and the answer was lost
    again, _ = server_parts.begun("council")
    assert (again.id, again.state) == (upload.id, PUBLISHED)
    other, contents = server_parts.begun("emptied")
    server_parts.send(other, contents)
    assert server_parts.publishing.uploads.set_state(other.id, CHECKING, [], if_state=OPEN)
    server_parts.publishing.uploads.pieces.remove(other.id)  # somebody empties the folder
    server_parts.publishing.start()
    assert server_parts.ended(other) == OPEN
    server_parts.close()


@pytest.mark.full
def test_releases_are_checked_again_and_what_is_nobodys_goes(server_parts: ServerParts, tmp_path: Path) -> None:
    server_parts.publishing.start()
    for name in ("one", "two"):
        upload, contents = server_parts.begun(name)
        server_parts.send(upload, contents)
        server_parts.publishing.commit(server_parts.publishing.uploads.find(server_parts.viewer, upload.id))
        assert server_parts.ended(upload) == PUBLISHED
    with server_parts.database.writing() as connection:
        set_hidden(connection, Reference(Kind.DATASET, "acme", "two", "1"), hidden=True)
    before = server_parts.rows()
    going_on, sent = server_parts.begun("three")
    server_parts.send(going_on, sent)
    kept = next(iter(going_on.missing))  # its check was killed once a blob of it was kept
    path = server_parts.publishing.uploads.pieces.complete_file(going_on.id, kept)
    assert path is not None
    server_parts.blobs.put(kept, path)
    (tmp_path / "nobodys").write_bytes(b"nobody's")
    server_parts.blobs.put("a" * 64, tmp_path / "nobodys")
    with (
        exclusive_access(server_parts.settings),
        pytest.raises(UsageError, match="stop that server first"),
        exclusive_access(server_parts.settings),
    ):
        pass
    stale = server_parts.settings.folder / "boards" / "current"
    stale.parent.mkdir(exist_ok=True)
    stale.write_text('{"name": "of-another-time"}')
    done = nip_run_here("serve", server_parts.settings.folder, "--rebuild", "--collect", cwd=tmp_path)
    assert not stale.exists()
    assert (done.returncode, done.stdout) == (
        0, "2 releases checked; 1 unused blob removed\n"
    )  # fmt: skip
    assert server_parts.rows() == before
    assert server_parts.blobs.has(kept)
    assert not server_parts.blobs.has("a" * 64)
    with exclusive_access(server_parts.settings):
        again = rebuild(server_parts.settings, print)
        assert (again.releases, again.problems) == (2, [])
        assert remove_unused_blobs(server_parts.settings) == 0
    server_parts.close()


def test_a_release_that_is_damaged_is_named_and_nothing_goes(server_parts: ServerParts, tmp_path: Path) -> None:
    server_parts.publishing.start()
    upload, contents = server_parts.begun("one")
    server_parts.send(upload, contents)
    server_parts.publishing.commit(server_parts.publishing.uploads.find(server_parts.viewer, upload.id))
    assert server_parts.ended(upload) == PUBLISHED
    before = server_parts.rows()
    sha256 = next(sha256 for sha256, data in contents.items() if data == DATA)
    place = server_parts.settings.folder / "blobs" / sha256[:2] / sha256
    place.write_bytes(b"1" + DATA[1:])
    done = nip_run_here("serve", server_parts.settings.folder, "--rebuild", "--collect", cwd=tmp_path)
    assert done.returncode == 1
    assert "dataset/acme/one@1" in done.stderr
    assert "data.txt is damaged" in done.stderr
    assert server_parts.rows() == before
    server_parts.close()


def test_old_uploads_and_what_is_nobodys_are_forgotten_and_no_others(server_parts: ServerParts) -> None:
    old, contents = server_parts.begun("old")
    server_parts.send(old, contents)
    new, more = server_parts.begun("new")
    server_parts.send(new, more)
    (server_parts.settings.incoming / ("f" * 32)).mkdir()
    with server_parts.database.writing() as connection:
        connection.execute(update(uploads).where(uploads.c.id == old.id).values(touched=0.0))
        connection.execute(
            insert(uploads),
            {
                "id": "e" * 32,
                "account_id": 1,
                "declared": "[]",
                "size": 0,
                "state": CHECKING,
                "problems": "[]",
                "touched": 0.0,
            },
        )
    server_parts.publishing.uploads.delete_expired()
    assert [path.name for path in server_parts.settings.incoming.iterdir()] == [new.id]
    assert server_parts.publishing.uploads.list_unchecked() == {"e" * 32: 1}
    assert server_parts.state(new) == OPEN
    server_parts.close()


def test_one_at_a_time_sends_a_blob(server_parts: ServerParts) -> None:
    upload, contents = server_parts.begun("council")
    sha256, data = next(iter(contents.items()))
    first = server_parts.publishing.uploads.open_writer(server_parts.viewer, upload.id, sha256, 0)
    with pytest.raises(OffsetError):
        server_parts.publishing.uploads.open_writer(server_parts.viewer, upload.id, sha256, 0)
    server_parts.publishing.uploads.pieces.remove(upload.id)  # it is given up meanwhile
    first.write(data)
    with pytest.raises(NotFoundError, match="the upload was deleted"):
        first.finish()
    first.close()
    assert server_parts.publishing.uploads.pieces.received_bytes(upload.id, sha256) == 0
    server_parts.close()


def test_a_check_that_takes_too_long_is_ended_and_the_upload_refused(tmp_path: Path) -> None:
    held = ServerParts(tmp_path / "server", check_seconds=0.01)
    with held.database.writing() as connection:
        add_account(connection, "acme", time.time())
    held.publishing.start()
    upload, contents = held.begun("council")
    held.send(upload, contents)
    held.publishing.commit(held.publishing.uploads.find(held.viewer, upload.id))
    assert held.ended(upload) == REFUSED
    (problem,) = held.publishing.uploads.find(held.viewer, upload.id).problems
    assert "takes longer than 0.01 seconds" in problem
    assert held.rows() == []
    held.close()


def test_accounts_take_turns() -> None:
    waiting = {"busy0": 1, "busy1": 1, "busy2": 1, "other": 2}
    worker, order = BackgroundWorker[str]("check", lambda: waiting, lambda upload, account: None, retry_seconds=1), []
    while (upload := worker.choose_next_item(waiting)) is not None:
        order.append(upload)
        del waiting[upload]
    assert order == ["busy0", "other", "busy1", "busy2"]


def test_of_uploads_whose_checks_fail_others_are_checked_and_those_open_again(
    server_parts: ServerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.server.uploads.publishing._CHECK_RETRY_SECONDS", 0.01)
    server_parts = server_parts.killed()
    failing, contents = server_parts.begun("failing")
    server_parts.send(failing, contents)
    other, contents = server_parts.begun("other")
    server_parts.send(other, contents)
    check = server_parts.publishing.check

    def fails(upload: str, account: int) -> None:
        if upload == failing.id:
            raise OSError("the disk is full")
        check(upload, account)

    monkeypatch.setattr(server_parts.publishing, "check", fails)
    for upload in (failing, other):
        server_parts.publishing.commit(server_parts.publishing.uploads.find(server_parts.viewer, upload.id))
    server_parts.publishing.start()
    assert server_parts.ended(other) == PUBLISHED
    assert server_parts.ended(failing) == OPEN
    assert server_parts.publishing.uploads.find(server_parts.viewer, failing.id).problems == [CHECK_FAILED]
    server_parts.close()


def test_an_account_has_so_many_uploads_open_and_so_much_in_them(tmp_path: Path) -> None:
    held = ServerParts(tmp_path / "server", open_uploads=2)
    with held.database.writing() as connection:
        add_account(connection, "acme", time.time())
    for name in ("one", "two"):
        held.begun(name)
    with pytest.raises(UsageError, match="2 uploads of your account are open"):
        held.begun("three")
    held.begun("two")  # which goes on
    held.close()
    small = ServerParts(tmp_path / "server", open_bytes=3 * len(DATA))
    with pytest.raises(UsageError, match="your open uploads would have"):
        small.begun("three")
    small.close()
    quota = ServerParts(tmp_path / "server", account_bytes=4 * len(DATA))
    with pytest.raises(UsageError, match="exceed its quota of 40,000"):
        for name in ("four", "five", "six"):
            quota.begun(name)
    quota.close()
    full = ServerParts(tmp_path / "server", spare_bytes=1 << 60)
    with pytest.raises(DiskFullError, match="no space"):
        full.begun("three")
    full.close()


def test_of_uploads_that_ended_little_stays_and_the_same_may_be_sent_again(server_parts: ServerParts) -> None:
    upload, contents = server_parts.begun("again")
    assert server_parts.publishing.uploads.set_state(upload.id, REFUSED, ["x" * 9_000] * 90, if_state=OPEN)
    with server_parts.database.reading() as connection:
        kept = {one.id: one for one in connection.execute(select(uploads))}
    assert len(kept[upload.id].declared) < 10
    assert len(kept[upload.id].problems) < 60_000
    found = Publishing(server_parts.settings, server_parts.database, server_parts.blobs).uploads.find(
        server_parts.viewer, upload.id
    )
    assert (found.state, len(found.problems)) == (REFUSED, 50)
    again, _ = server_parts.begun("again")
    assert (again.state, again.missing) == (OPEN, upload.missing)
    server_parts.send(again, contents)
    server_parts.publishing.start()
    server_parts.publishing.commit(server_parts.publishing.uploads.find(server_parts.viewer, again.id))
    assert server_parts.ended(again) == PUBLISHED
    server_parts.close()
