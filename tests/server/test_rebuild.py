"""Uploads resume after a kill; a rebuild rechecks releases and removes unused blobs."""

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
from tests.server.test_uploads import contents_by_folder, make_bundle
from tests.support.processes import nip_run_here, wait_until
from tests.support.raw_uploads import describe_file

DATA = b"0123456789" * 1_000


class ServerParts:
    """The parts of a server in this process, without HTTP, with an account acme."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.settings = Settings(folder=folder, **settings)
        folder.mkdir(exist_ok=True)
        self.database, self.blobs = Database(self.settings.database_url), open_blob_store(self.settings)
        self.publishing = Publishing(self.settings, self.database, self.blobs)
        self.viewer = Viewer(1, "acme", frozenset(("acme",)), Scope.PUBLISH)

    def declare_upload(self, name: str) -> tuple[Upload, dict[str, bytes]]:
        contents = dict(contents_by_folder(make_bundle(name, data=DATA))[f"dataset/acme/{name}/1"])
        declared = [{"folder": f"dataset/acme/{name}/1", "files": [describe_file(*item) for item in contents.items()]}]
        declaration = Declaration.parse(declared, self.settings.limits, 10, 100)
        upload = self.publishing.uploads.declare(self.viewer, declaration)
        return upload, {file["sha256"]: contents[file["path"]] for file in declared[0]["files"]}  # type: ignore[index]

    def send(self, upload: Upload, contents: dict[str, bytes]) -> None:
        for sha256, (size, have) in upload.missing.items():
            writer = self.publishing.uploads.open_writer(self.viewer, upload.id, sha256, have)
            writer.write(contents[sha256][have:])
            writer.finish()
            writer.close()
            assert size == len(contents[sha256])

    def state(self, upload: Upload) -> str:
        return self.publishing.uploads.find(self.viewer, upload.id).state

    def wait_for_check(self, upload: Upload) -> str:
        wait_until(lambda: self.state(upload) != CHECKING)
        return self.state(upload)

    def rows(self) -> list[object]:
        with self.database.reading() as connection:
            return [tuple(row) for row in connection.execute(select(files))]

    def restart(self) -> ServerParts:
        """Close the parts and open them again, as a new process would."""
        self.close()
        return ServerParts(self.settings.folder)

    def close(self) -> None:
        self.publishing.close()
        self.database.close()


@pytest.fixture
def server_parts(tmp_path: Path) -> ServerParts:
    parts = ServerParts(tmp_path / "server")
    with parts.database.writing() as connection:
        add_account(connection, "acme", time.time())
    return parts


@pytest.mark.full
def test_upload_resumes_after_a_kill_at_every_step(server_parts: ServerParts) -> None:
    upload, contents = server_parts.declare_upload("council")
    data_hash = next(sha256 for sha256, data in contents.items() if data == DATA)
    writer = server_parts.publishing.uploads.open_writer(
        server_parts.viewer, upload.id, data_hash, 0
    )  # killed within a piece
    writer.write(DATA[:1_000])
    writer.close()

    server_parts = server_parts.restart()
    upload, _ = server_parts.declare_upload("council")
    assert upload.missing[data_hash] == (len(DATA), 1_000)
    server_parts.send(upload, contents)

    server_parts = server_parts.restart()  # killed after everything was sent, before the commit
    upload, _ = server_parts.declare_upload("council")
    assert (upload.state, upload.missing) == (OPEN, {})
    assert server_parts.publishing.uploads.set_state(upload.id, CHECKING, [], if_state=OPEN)
    for sha256 in contents:  # killed after the commit stored the blobs, before publishing
        path = server_parts.publishing.uploads.pieces.complete_file(upload.id, sha256)
        assert path is not None
        server_parts.blobs.put(sha256, path)

    server_parts = server_parts.restart()
    assert server_parts.rows() == []
    server_parts.publishing.start()
    assert server_parts.wait_for_check(upload) == PUBLISHED
    assert len(server_parts.rows()) == len(contents)
    wait_until(lambda: not list(server_parts.settings.incoming.iterdir()))

    server_parts = server_parts.restart()  # killed after publishing, and the response was lost
    repeated, _ = server_parts.declare_upload("council")
    assert (repeated.id, repeated.state) == (upload.id, PUBLISHED)
    emptied, contents = server_parts.declare_upload("emptied")
    server_parts.send(emptied, contents)
    assert server_parts.publishing.uploads.set_state(emptied.id, CHECKING, [], if_state=OPEN)
    server_parts.publishing.uploads.pieces.remove(emptied.id)  # somebody emptied the folder
    server_parts.publishing.start()
    assert server_parts.wait_for_check(emptied) == OPEN
    server_parts.close()


@pytest.mark.full
def test_rebuild_rechecks_releases_and_removes_unused_blobs(server_parts: ServerParts, tmp_path: Path) -> None:
    server_parts.publishing.start()
    for name in ("one", "two"):
        upload, contents = server_parts.declare_upload(name)
        server_parts.send(upload, contents)
        server_parts.publishing.commit(server_parts.publishing.uploads.find(server_parts.viewer, upload.id))
        assert server_parts.wait_for_check(upload) == PUBLISHED
    with server_parts.database.writing() as connection:
        set_hidden(connection, Reference(Kind.DATASET, "acme", "two", "1"), hidden=True)
    before = server_parts.rows()
    pending, pending_contents = server_parts.declare_upload("three")
    server_parts.send(pending, pending_contents)
    stored_hash = next(iter(pending.missing))  # its check was killed after one blob was stored
    path = server_parts.publishing.uploads.pieces.complete_file(pending.id, stored_hash)
    assert path is not None
    server_parts.blobs.put(stored_hash, path)
    (tmp_path / "nobodys").write_bytes(b"nobody's")
    server_parts.blobs.put("a" * 64, tmp_path / "nobodys")
    with (
        exclusive_access(server_parts.settings),
        pytest.raises(UsageError, match="stop that server first"),
        exclusive_access(server_parts.settings),
    ):
        pass
    stale_board = server_parts.settings.folder / "boards" / "current"
    stale_board.parent.mkdir(exist_ok=True)
    stale_board.write_text('{"name": "of-another-time"}')
    process = nip_run_here("serve", server_parts.settings.folder, "--rebuild", "--collect", cwd=tmp_path)
    assert not stale_board.exists()
    assert (process.returncode, process.stdout) == (
        0, "2 releases checked; 1 unused blob removed\n"
    )  # fmt: skip
    assert server_parts.rows() == before
    assert server_parts.blobs.has(stored_hash)
    assert not server_parts.blobs.has("a" * 64)
    with exclusive_access(server_parts.settings):
        report = rebuild(server_parts.settings, print)
        assert (report.releases, report.problems) == (2, [])
        assert remove_unused_blobs(server_parts.settings) == 0
    server_parts.close()


def test_other_objects_in_the_bucket_of_a_server_are_not_removed(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    others = [bucket / "no" / "notes.txt", bucket / "backup" / ("b" * 64)]
    for path in others:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"of another program")
    parts = ServerParts(tmp_path / "server", blobs=f"file://{bucket}")
    parts.blobs.put("a" * 64, others[0])
    with exclusive_access(parts.settings):
        assert remove_unused_blobs(parts.settings) == 1
    assert not parts.blobs.has("a" * 64)
    assert all(path.is_file() for path in others)
    parts.close()


def test_rebuild_names_a_damaged_release_and_removes_nothing(server_parts: ServerParts, tmp_path: Path) -> None:
    server_parts.publishing.start()
    upload, contents = server_parts.declare_upload("one")
    server_parts.send(upload, contents)
    server_parts.publishing.commit(server_parts.publishing.uploads.find(server_parts.viewer, upload.id))
    assert server_parts.wait_for_check(upload) == PUBLISHED
    before = server_parts.rows()
    sha256 = next(sha256 for sha256, data in contents.items() if data == DATA)
    blob_path = server_parts.settings.folder / "blobs" / sha256[:2] / sha256
    blob_path.write_bytes(b"1" + DATA[1:])
    process = nip_run_here("serve", server_parts.settings.folder, "--rebuild", "--collect", cwd=tmp_path)
    assert process.returncode == 1
    assert "dataset/acme/one@1" in process.stderr
    assert "data.txt is damaged" in process.stderr
    assert server_parts.rows() == before
    server_parts.close()


@pytest.mark.parametrize("touched", [0.0, 4e9])  # the last activity, long ago or with a clock that was wrong
def test_only_expired_uploads_and_orphaned_folders_are_deleted(server_parts: ServerParts, touched: float) -> None:
    old, contents = server_parts.declare_upload("old")
    server_parts.send(old, contents)
    new, new_contents = server_parts.declare_upload("new")
    server_parts.send(new, new_contents)
    (server_parts.settings.incoming / ("f" * 32)).mkdir()
    with server_parts.database.writing() as connection:
        connection.execute(update(uploads).where(uploads.c.id == old.id).values(touched=touched))
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


def test_blob_has_only_one_writer_at_a_time(server_parts: ServerParts) -> None:
    upload, contents = server_parts.declare_upload("council")
    sha256, data = next(iter(contents.items()))
    writer = server_parts.publishing.uploads.open_writer(server_parts.viewer, upload.id, sha256, 0)
    with pytest.raises(OffsetError):
        server_parts.publishing.uploads.open_writer(server_parts.viewer, upload.id, sha256, 0)
    server_parts.publishing.uploads.pieces.remove(upload.id)  # the upload is deleted while its writer is open
    writer.write(data)
    with pytest.raises(NotFoundError, match="the upload was deleted"):
        writer.finish()
    writer.close()
    assert server_parts.publishing.uploads.pieces.received_bytes(upload.id, sha256) == 0
    server_parts.close()


def test_check_that_exceeds_its_time_limit_is_stopped_and_the_upload_refused(tmp_path: Path) -> None:
    parts = ServerParts(tmp_path / "server", check_seconds=0.01)
    with parts.database.writing() as connection:
        add_account(connection, "acme", time.time())
    parts.publishing.start()
    upload, contents = parts.declare_upload("council")
    parts.send(upload, contents)
    parts.publishing.commit(parts.publishing.uploads.find(parts.viewer, upload.id))
    assert parts.wait_for_check(upload) == REFUSED
    (problem,) = parts.publishing.uploads.find(parts.viewer, upload.id).problems
    assert "takes longer than 0.01 seconds" in problem
    assert parts.rows() == []
    parts.close()


def test_checks_alternate_between_accounts() -> None:
    waiting = {"busy0": 1, "busy1": 1, "busy2": 1, "other": 2}
    worker, order = BackgroundWorker[str]("check", lambda: waiting, lambda upload, account: None, retry_seconds=1), []
    while (upload := worker.choose_next_item(waiting)) is not None:
        order.append(upload)
        del waiting[upload]
    assert order == ["busy0", "other", "busy1", "busy2"]


def test_failing_check_reopens_its_upload_and_does_not_block_others(
    server_parts: ServerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.server.uploads.publishing._CHECK_RETRY_SECONDS", 0.01)
    server_parts = server_parts.restart()
    failing, contents = server_parts.declare_upload("failing")
    server_parts.send(failing, contents)
    working, contents = server_parts.declare_upload("other")
    server_parts.send(working, contents)
    check = server_parts.publishing.check

    def fail_one_check(upload: str, account: int) -> None:
        if upload == failing.id:
            raise OSError("the disk is full")
        check(upload, account)

    monkeypatch.setattr(server_parts.publishing, "check", fail_one_check)
    for upload in (failing, working):
        server_parts.publishing.commit(server_parts.publishing.uploads.find(server_parts.viewer, upload.id))
    server_parts.publishing.start()
    assert server_parts.wait_for_check(working) == PUBLISHED
    assert server_parts.wait_for_check(failing) == OPEN
    assert server_parts.publishing.uploads.find(server_parts.viewer, failing.id).problems == [CHECK_FAILED]
    server_parts.close()


def test_open_uploads_of_an_account_are_limited_in_number_and_bytes(tmp_path: Path) -> None:
    parts = ServerParts(tmp_path / "server", open_uploads=2)
    with parts.database.writing() as connection:
        add_account(connection, "acme", time.time())
    for name in ("one", "two"):
        parts.declare_upload(name)
    with pytest.raises(UsageError, match="2 uploads of your account are open"):
        parts.declare_upload("three")
    parts.declare_upload("two")  # continues the open upload
    parts.close()
    low_byte_limit = ServerParts(tmp_path / "server", open_bytes=3 * len(DATA))
    with pytest.raises(UsageError, match="your open uploads would have"):
        low_byte_limit.declare_upload("three")
    low_byte_limit.close()
    low_quota = ServerParts(tmp_path / "server", account_bytes=4 * len(DATA))
    with pytest.raises(UsageError, match="exceed its quota of 40,000"):
        for name in ("four", "five", "six"):
            low_quota.declare_upload(name)
    low_quota.close()
    full_disk = ServerParts(tmp_path / "server", spare_bytes=1 << 60)
    with pytest.raises(DiskFullError, match="no space"):
        full_disk.declare_upload("three")
    full_disk.close()


def test_finished_upload_is_stored_compactly_and_can_be_sent_again(server_parts: ServerParts) -> None:
    upload, contents = server_parts.declare_upload("again")
    assert server_parts.publishing.uploads.set_state(upload.id, REFUSED, ["x" * 9_000] * 90, if_state=OPEN)
    with server_parts.database.reading() as connection:
        rows = {row.id: row for row in connection.execute(select(uploads))}
    assert len(rows[upload.id].declared) < 10
    assert len(rows[upload.id].problems) < 60_000
    reloaded = Publishing(server_parts.settings, server_parts.database, server_parts.blobs).uploads.find(
        server_parts.viewer, upload.id
    )
    assert (reloaded.state, len(reloaded.problems)) == (REFUSED, 50)
    repeated, _ = server_parts.declare_upload("again")
    assert (repeated.state, repeated.missing) == (OPEN, upload.missing)
    server_parts.send(repeated, contents)
    server_parts.publishing.start()
    server_parts.publishing.commit(server_parts.publishing.uploads.find(server_parts.viewer, repeated.id))
    assert server_parts.wait_for_check(repeated) == PUBLISHED
    server_parts.close()
