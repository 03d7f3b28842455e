"""What follows from releases is made again from their manifests and blobs; what is nobody's goes; while none serves."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, update

from runner.errors import NotPublished, UsageError
from runner.releases.limits import Limits
from runner.releases.manifest import CHECKSUM, MANIFEST
from runner.server.intake.checking import EXPLAINED_BY_TIME
from runner.server.intake.declared import Declaration
from runner.server.intake.pieces import NoRoomError, OffsetError
from runner.server.intake.publishing import Publishing
from runner.server.intake.uploads import CHECKING, OPEN, REFUSED, SEEN, Upload
from runner.server.intake.waiting import Queue, Waiting
from runner.server.people.accounts import Scope, Viewer, add_account
from runner.server.people.keeping import set_disabled
from runner.server.rebuild import alone, collect, rebuild
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.store.schema import checks, files, releases, uploads
from runner.server.store.stores import blobs_of
from tests.server.test_uploads import folders, made
from tests.support.processes import nip_run_here, until
from tests.support.raw_uploads import declared

DATA = b"0123456789" * 1_000


class Held:
    """A server's parts, in this process and without HTTP, with an account acme."""

    def __init__(self, folder: Path, **said: Any) -> None:
        self.settings = Settings(folder=folder, **said)
        folder.mkdir(exist_ok=True)
        self.database, self.blobs = Database(self.settings.database_url), blobs_of(self.settings)
        self.publishing = Publishing(self.settings, self.database, self.blobs)
        self.viewer = Viewer(1, "acme", frozenset(("acme",)), Scope.PUBLISH)

    def begun(self, name: str) -> tuple[Upload, dict[str, bytes]]:
        contents = dict(folders(made(name, data=DATA))[f"dataset/acme/{name}/1"])
        said = [{"folder": f"dataset/acme/{name}/1", "files": [declared(*one) for one in contents.items()]}]
        declaration = Declaration.of(said, self.settings.limits, 10, 100)
        upload = self.publishing.uploads.begin(self.viewer, declaration, time.time())
        return upload, {file["sha256"]: contents[file["path"]] for file in said[0]["files"]}  # type: ignore[index]

    def send(self, upload: Upload, contents: dict[str, bytes]) -> None:
        for sha256, (size, have) in upload.missing.items():
            into = self.publishing.uploads.receive(self.viewer, upload.id, sha256, have)
            into.write(contents[sha256][have:])
            into.end()
            into.close()
            assert size == len(contents[sha256])

    def state(self, upload: Upload) -> str:
        return self.publishing.uploads.find(self.viewer, upload.id).state

    def ended(self, upload: Upload) -> str:
        until(lambda: self.state(upload) != CHECKING, 60)
        return self.state(upload)

    def rows(self) -> list[object]:
        with self.database.reading() as connection:
            return [tuple(row) for table in (files, checks) for row in connection.execute(select(table))]

    def killed(self) -> Held:
        """As it is found by the next process, which nobody has told anything."""
        self.close()
        return Held(self.settings.folder)

    def close(self) -> None:
        self.publishing.close()
        self.database.close()


@pytest.fixture
def held(tmp_path: Path) -> Held:
    made_here = Held(tmp_path / "server")
    with made_here.database.writing() as connection:
        add_account(connection, "acme", time.time())
    return made_here


def test_an_upload_goes_on_after_a_kill_at_every_step_of_it(held: Held) -> None:
    upload, contents = held.begun("council")
    large = next(sha256 for sha256, data in contents.items() if data == DATA)
    into = held.publishing.uploads.receive(held.viewer, upload.id, large, 0)  # killed within a piece
    into.write(DATA[:1_000])
    into.close()

    held = held.killed()
    upload, _ = held.begun("council")
    assert upload.missing[large] == (len(DATA), 1_000)
    held.send(upload, contents)

    held = held.killed()  # when all was sent, and nothing was committed
    upload, _ = held.begun("council")
    assert (upload.state, upload.missing) == (OPEN, {})
    assert held.publishing.uploads.set_state(upload.id, CHECKING, [], time.time(), only=OPEN)
    for sha256 in contents:  # when it was committed, and its blobs were kept, and not shown
        path = held.publishing.uploads.pieces.whole(upload.id, sha256)
        assert path is not None
        held.blobs.put(sha256, path)

    held = held.killed()
    assert held.rows() == []
    held.publishing.start()
    assert held.ended(upload) == SEEN
    assert len(held.rows()) == len(contents) + 1
    until(lambda: not list(held.settings.incoming.iterdir()))

    held = held.killed()  # when it was shown, and the answer was lost
    again, _ = held.begun("council")
    assert (again.id, again.state) == (upload.id, SEEN)
    other, contents = held.begun("emptied")
    held.send(other, contents)
    assert held.publishing.uploads.set_state(other.id, CHECKING, [], time.time(), only=OPEN)
    held.publishing.uploads.pieces.clear(other.id)  # somebody empties the folder
    held.publishing.start()
    assert held.ended(other) == OPEN
    held.close()


def test_what_follows_from_releases_is_made_again_and_is_as_before(held: Held, tmp_path: Path) -> None:
    held.publishing.start()
    for name in ("one", "two"):
        upload, contents = held.begun(name)
        held.send(upload, contents)
        held.publishing.commit(held.publishing.uploads.find(held.viewer, upload.id), time.time())
        assert held.ended(upload) == SEEN
    before = held.rows()
    going_on, sent = held.begun("three")
    held.send(going_on, sent)
    kept = next(iter(going_on.missing))  # its check was killed once a blob of it was kept
    path = held.publishing.uploads.pieces.whole(going_on.id, kept)
    assert path is not None
    held.blobs.put(kept, path)
    (tmp_path / "nobodys").write_bytes(b"nobody's")
    held.blobs.put("a" * 64, tmp_path / "nobodys")
    with held.database.writing() as connection:
        connection.execute(delete(checks))
        connection.execute(delete(files))
    with alone(held.settings), pytest.raises(UsageError, match="end that server first"), alone(held.settings):
        pass
    stale = held.settings.folder / "boards" / "current"
    stale.parent.mkdir(exist_ok=True)
    stale.write_text('{"name": "of-another-time"}')
    done = nip_run_here("serve", held.settings.folder, "--rebuild", "--collect", cwd=tmp_path)
    assert not stale.exists()
    assert (done.returncode, done.stdout) == (
        0, "2 releases looked at, 2 made again otherwise; 1 blob of nobody removed\n"
    )  # fmt: skip
    assert sorted(map(str, held.rows())) == sorted(map(str, before))
    assert held.blobs.has(kept)
    assert not held.blobs.has("a" * 64)
    with alone(held.settings):
        again = rebuild(held.settings, print)
        assert (again.releases, again.changed, again.problems) == (2, 0, [])
        assert collect(held.settings) == 0
    held.close()


def test_a_release_that_is_damaged_is_named_and_nothing_goes(held: Held, tmp_path: Path) -> None:
    held.publishing.start()
    upload, contents = held.begun("one")
    held.send(upload, contents)
    held.publishing.commit(held.publishing.uploads.find(held.viewer, upload.id), time.time())
    assert held.ended(upload) == SEEN
    before = held.rows()
    sha256 = next(sha256 for sha256, data in contents.items() if data == DATA)
    place = held.settings.folder / "blobs" / sha256[:2] / sha256
    place.write_bytes(b"1" + DATA[1:])
    done = nip_run_here("serve", held.settings.folder, "--rebuild", "--collect", cwd=tmp_path)
    assert done.returncode == 1
    assert "dataset/acme/one@1" in done.stderr
    assert "data.txt is damaged" in done.stderr
    assert held.rows() == before
    held.close()


def test_old_uploads_and_what_is_nobodys_are_forgotten_and_no_others(held: Held) -> None:
    old, contents = held.begun("old")
    held.send(old, contents)
    new, more = held.begun("new")
    held.send(new, more)
    (held.settings.incoming / ("f" * 32)).mkdir()
    with held.database.writing() as connection:
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
    held.publishing.uploads.forget_old(time.time())
    assert [path.name for path in held.settings.incoming.iterdir()] == [new.id]
    assert held.publishing.uploads.unchecked() == [("e" * 32, 1)]
    assert held.state(new) == OPEN
    held.close()


def test_one_at_a_time_sends_a_blob(held: Held) -> None:
    upload, contents = held.begun("council")
    sha256, data = next(iter(contents.items()))
    first = held.publishing.uploads.receive(held.viewer, upload.id, sha256, 0)
    with pytest.raises(OffsetError):
        held.publishing.uploads.receive(held.viewer, upload.id, sha256, 0)
    held.publishing.uploads.pieces.clear(upload.id)  # it is given up meanwhile
    first.write(data)
    with pytest.raises(NotPublished, match="given up"):
        first.end()
    first.close()
    assert held.publishing.uploads.pieces.have(upload.id, sha256) == 0
    held.close()


def test_a_check_that_takes_too_long_is_ended_and_the_upload_refused(tmp_path: Path) -> None:
    held = Held(tmp_path / "server", check_seconds=0.01)
    with held.database.writing() as connection:
        add_account(connection, "acme", time.time())
    held.publishing.start()
    upload, contents = held.begun("council")
    held.send(upload, contents)
    held.publishing.commit(held.publishing.uploads.find(held.viewer, upload.id), time.time())
    assert held.ended(upload) == REFUSED
    assert held.publishing.uploads.find(held.viewer, upload.id).problems == [EXPLAINED_BY_TIME]
    assert held.rows() == []
    held.close()


def test_accounts_are_checked_by_turns_and_each_upload_once() -> None:
    queue = Queue()
    for number in range(3):
        queue.put(Waiting(f"busy{number}", 1))
    queue.put(Waiting("other", 2))
    queue.put(Waiting("busy0", 1))
    taken = [queue.take() for _ in range(4)]
    assert [one.upload for one in taken if one is not None] == ["busy0", "other", "busy1", "busy2"]
    assert taken[0] is not None
    queue.put(taken[0])  # it is still being checked
    queue.close()
    assert queue.take() is None


def test_an_account_has_so_many_uploads_open_and_so_much_in_them(tmp_path: Path) -> None:
    held = Held(tmp_path / "server", open_uploads=2)
    with held.database.writing() as connection:
        add_account(connection, "acme", time.time())
    for name in ("one", "two"):
        held.begun(name)
    with pytest.raises(UsageError, match="2 uploads of yours are open"):
        held.begun("three")
    held.begun("two")  # which goes on
    held.close()
    small = Held(tmp_path / "server", open_bytes=3 * len(DATA))
    with pytest.raises(UsageError, match="your open uploads would have"):
        small.begun("three")
    small.close()
    quota = Held(tmp_path / "server", account_bytes=4 * len(DATA))
    with pytest.raises(UsageError, match="over the 40,000 that one account may have here"):
        for name in ("four", "five", "six"):
            quota.begun(name)
    quota.close()
    full = Held(tmp_path / "server", spare_bytes=1 << 60)
    with pytest.raises(NoRoomError, match="no room"):
        full.begun("three")
    full.close()


def test_what_an_account_has_published_counts_once_for_what_it_may_have(tmp_path: Path) -> None:
    held = Held(tmp_path / "server", account_bytes=3 * len(DATA))
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
    other = Held(tmp_path / "server", account_bytes=2 * len(DATA) + 100)
    with pytest.raises(UsageError, match="your account has published 20,000 bytes"):
        other.begun("more")
    held.close()
    other.close()


def test_the_room_that_an_open_upload_was_promised_is_given_to_no_other(tmp_path: Path) -> None:
    much = Limits(files=2_000, file_bytes=1 << 60, total_bytes=1 << 60)
    held = Held(tmp_path / "server", limits=much, open_bytes=1 << 60, account_bytes=0)
    with held.database.writing() as connection:
        add_account(connection, "acme", time.time())
    size = held.publishing.uploads.pieces.room() * 6 // 10

    def begun(name: str) -> str:
        files = [
            {"path": path, "sha256": letter * 64, "size": 1} for path, letter in ((MANIFEST, "a"), (CHECKSUM, "b"))
        ]
        files.append({"path": "data.txt", "sha256": hashlib.sha256(name.encode()).hexdigest(), "size": size})
        declaration = Declaration.of([{"folder": f"dataset/acme/{name}/1", "files": files}], much, 10, 100)
        return held.publishing.uploads.begin(held.viewer, declaration, time.time()).id

    one = begun("one")
    with pytest.raises(NoRoomError, match="beside what others are sending"):
        begun("two")
    # What is there of it takes no more room than it does: of a file with a hole, nothing.
    part = held.settings.incoming / one / f"{'c' * 64}.part"
    part.parent.mkdir(parents=True)
    with part.open("wb") as file:
        file.truncate(size)
    begun("two")
    held.close()


def _checking(held: Held) -> bool:
    return any(held.settings.incoming.glob("*/work-*"))


@pytest.mark.parametrize("when", ["before", pytest.param("during", marks=pytest.mark.full)])
def test_what_a_disabled_account_has_committed_is_not_published(tmp_path: Path, when: str) -> None:
    held = Held(tmp_path / "server")
    with held.database.writing() as connection:
        add_account(connection, "acme", time.time())
    upload, contents = held.begun("council")
    held.send(upload, contents)
    held.publishing.commit(held.publishing.uploads.find(held.viewer, upload.id), time.time())
    with held.database.writing() as connection:
        set_disabled(connection, "acme", time.time())
        if when == "during":  # its check has begun before that holds, and it is shown after
            held.publishing.start()
            until(lambda: _checking(held), 25)
    if when == "before":
        held.publishing.start()
    assert held.ended(upload) == REFUSED
    found = held.publishing.uploads.find(held.viewer, upload.id)
    assert found.problems == ["you may not publish as acme any more"]
    assert held.rows() == []
    held.close()
