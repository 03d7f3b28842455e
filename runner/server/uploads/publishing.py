"""From an upload that is whole to releases that can be seen: checked, kept, and then shown in one transaction.

Killed at any moment, the server finds an upload either open, being checked, or ended: what it shows and that it shows
it are noted together. One that was being checked is checked again.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from threading import Event, Thread

import orjson
from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from runner.base.errors import ReleaseError
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import MANIFEST, Release
from runner.documents.releases.reference import Kind
from runner.registry.transports.listing import small_file
from runner.server.accounts.accounts import Viewer, viewer_of_account
from runner.server.competitions.scoring import Scoring
from runner.server.competitions.storage import enter
from runner.server.settings import Settings
from runner.server.store.blobs import Blobs
from runner.server.store.database import Database
from runner.server.store.schema import checks, files, is_release, releases
from runner.server.uploads.checking import KEPT, RECOMPUTED, UploadVerdict, check_isolated
from runner.server.uploads.declaration import DeclaredFolder
from runner.server.uploads.queue import Queue, QueuedUpload
from runner.server.uploads.uploads import CHECKING, OPEN, REFUSED, SEEN, TAKEN, Upload, Uploads, is_there
from runner.version import __version__

LOG = logging.getLogger("nip_run.server")
RETRY_SECONDS = 2.0
NOT_CHECKED = "the server could not check it; publish it again later, and tell who runs it"


class _Taken(Exception):
    """Something stands where a folder of an upload belongs."""


class Publishing:
    """Checks what was sent, a few uploads at a time, and shows what is good."""

    def __init__(self, settings: Settings, database: Database, blobs: Blobs) -> None:
        self._settings, self._database, self._blobs = settings, database, blobs
        self.uploads = Uploads(settings, database, blobs)
        self.scoring = Scoring(settings, database)
        self._queue = Queue()
        self._ending = Event()

    def start(self) -> None:
        """Check what waits, now and from now on."""
        for number in range(self._settings.checks_at_once):
            Thread(target=self._work, name=f"check-{number}", daemon=True).start()
        self.scoring.start()
        self.look_again()

    def look_again(self) -> None:
        """Have all that is to be checked be waiting for it, as after a server was killed."""
        self.scoring.wake()
        for upload, account in self.uploads.unchecked():
            self._queue.put(QueuedUpload(upload, account))

    def commit(self, upload: Upload, now: float) -> None:
        """Have an upload that is whole be checked, and then seen; once, however often it is asked for.

        Raises:
            ReleaseError: blobs are missing.
        """
        if upload.state != OPEN:
            return
        if upload.missing:
            raise ReleaseError(f"{len(upload.missing)} files are not sent yet")
        if self.uploads.set_state(upload.id, CHECKING, [], now, only=OPEN):
            self._queue.put(QueuedUpload(upload.id, upload.account_id))

    def _work(self) -> None:
        while (one := self._queue.take()) is not None:
            try:
                self._check(one)
            except Exception:
                LOG.exception("the check of an upload failed", extra={"upload": one.upload})
                self._ending.wait(RETRY_SECONDS)
                self._try_again(replace(one, tries=one.tries + 1))
            else:
                self._queue.done(one)

    def _try_again(self, one: QueuedUpload) -> None:
        """Later; after some times the upload is open again, and whoever sent it is told. Its blobs stay."""
        if one.tries < self._settings.check_tries:
            self._queue.again(one)
            return
        try:
            self.uploads.set_state(one.upload, OPEN, [NOT_CHECKED], time.time(), only=CHECKING)
        except Exception:  # then `look_again` finds it
            LOG.exception("an upload cannot be given back", extra={"upload": one.upload})
        self._queue.done(one)

    def check(self, upload: str, account_id: int) -> None:
        """Check an upload now, and show it if it is good; without `start`, nothing else does."""
        self._check(QueuedUpload(upload, account_id))

    def _check(self, one: QueuedUpload) -> None:
        with self._database.reading() as connection:
            viewer = viewer_of_account(connection, one.account_id)
        found = self.uploads.find(viewer, one.upload)
        if found.state != CHECKING:
            return
        if self._lacks(found):
            self.uploads.set_state(found.id, OPEN, ["files of it are gone; send it again"], time.time(), only=CHECKING)
            return
        verdict = self._wrong_owner(viewer, found) or check_isolated(
            self._settings, viewer, found.id, found.declaration
        )
        if not verdict.is_good:
            # What was sent goes first: the same may be declared again as soon as it is refused.
            self.uploads.pieces.clear(found.id)
            self.uploads.set_state(found.id, REFUSED, verdict.problems, time.time(), only=CHECKING)
            return
        for sha256 in found.declaration.blobs:
            path = self.uploads.pieces.whole(found.id, sha256)
            if path is not None:
                self._blobs.put(sha256, path)
        self._show(found, verdict)
        self.scoring.wake()
        self.uploads.pieces.clear(found.id)

    def _lacks(self, upload: Upload) -> bool:
        """Whether a blob is neither sent nor kept, as where a folder was emptied by hand."""
        pieces = self.uploads.pieces
        return any(
            pieces.whole(upload.id, sha256) is None and not self._blobs.has(sha256)
            for sha256 in upload.declaration.blobs
        )

    @staticmethod
    def _wrong_owner(viewer: Viewer, upload: Upload) -> UploadVerdict | None:
        """What was allowed when it was declared may not be now."""
        owners = {folder.reference.owner for folder in upload.declaration.folders}
        wrong = sorted(owner for owner in owners if not viewer.publishes_as(owner))
        return UploadVerdict([f"you may not publish as {owner} any more" for owner in wrong]) if wrong else None

    def _show(self, upload: Upload, verdict: UploadVerdict) -> None:
        """All of it and the note that it is shown, or nothing of it."""
        try:
            with self._database.writing() as connection:
                viewer = viewer_of_account(connection, upload.account_id)
                if (wrong := self._wrong_owner(viewer, upload)) is not None:  # since its check began
                    now = time.time()
                    self.uploads.note_state(connection, upload.id, REFUSED, wrong.problems, now, only=CHECKING)
                    return
                sent = self.uploads.touched(connection, upload.id)
                is_seen = self.uploads.note_state(
                    connection, upload.id, SEEN, [], time.time(), only=CHECKING, seen=upload.declaration.folders
                )
                if sent is None or not is_seen:
                    return
                for folder in sorted(upload.declaration.folders, key=lambda folder: folder.part):  # releases first
                    self._insert(connection, upload, viewer, folder, verdict, sent=sent)
                self._database.changed(connection)
        except (IntegrityError, _Taken):
            taken = ["a name and version of it was published by somebody else in the meantime"]
            self.uploads.set_state(upload.id, TAKEN, taken, time.time(), only=CHECKING)

    def _insert(
        self, connection: Connection, upload: Upload, viewer: Viewer, folder: DeclaredFolder, verdict: UploadVerdict,
        *, sent: float,
    ) -> None:  # fmt: skip
        where = folder.reference
        if folder.part == "":
            made = self._insert_release(connection, upload, folder, verdict)
            if (played := verdict.rows.get(folder.path)) is not None:
                enter(connection, viewer, played, release=made, owner=where.owner, now=sent)
        else:
            # Held until the end: two who add a part to it at once do so one after the other.
            found = connection.execute(select(releases.c.id).where(is_release(where)).with_for_update()).scalar()
            if found is None or is_there(connection, folder):
                raise _Taken
            made = found
        rows = [
            {"path": f"{folder.path}/{file.path}", "release_id": made, "part": folder.part, "sha256": file.sha256,
             "size": file.size}
            for file in folder.files
        ]  # fmt: skip
        connection.execute(insert(files), rows)

    def _insert_release(
        self, connection: Connection, upload: Upload, folder: DeclaredFolder, verdict: UploadVerdict
    ) -> int:
        where = folder.reference
        manifest = next(file for file in folder.files if file.path == MANIFEST)
        with self._blobs.open(manifest.sha256) as source:
            release = Release.from_bytes(small_file(source, MANIFEST, MAX_MANIFEST), self._settings.limits)
        row = {
            "kind": str(where.kind), "owner": where.owner, "name": where.name, "version": where.version,
            "sha256": manifest.sha256, "visibility": release.visibility, "publisher_id": upload.account_id,
            "created": time.time(),
        }  # fmt: skip
        made = int(connection.execute(insert(releases).returning(releases.c.id), row).scalar_one())
        connection.execute(insert(checks), check_row(made, where.kind, verdict.notes.get(folder.path, ())))
        return made

    def close(self) -> None:
        """End without waiting for what is still to be checked: it is checked when the server begins again."""
        self._ending.set()
        self.scoring.close()
        self._queue.close()


def check_row(release: int, kind: Kind, notes: object) -> dict[str, object]:
    """What stands in `checks` of a release that was found good."""
    said = orjson.dumps({"notes": list(notes)}).decode()  # type: ignore[call-overload]
    tier = RECOMPUTED if kind == Kind.RUN else KEPT
    return {"release_id": release, "by": __version__, "tier": tier, "said": said}
