"""Publishes committed uploads: checks an upload, stores its blobs, then makes its releases visible.

The releases become visible in the same transaction that changes the state of their upload. So a crash leaves each
upload open, being checked, or published. The restarted server repeats a check that the crash interrupted.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from threading import Event, Thread

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from runner.base.errors import ReleaseError
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import MANIFEST, Release
from runner.registry.transports.listing import read_small_file
from runner.server.accounts.accounts import Viewer, viewer_of_account
from runner.server.competitions.scoring_thread import Scoring
from runner.server.competitions.storage import submit_run
from runner.server.isolated_task import remove_leftovers
from runner.server.settings import Settings
from runner.server.store.blobs import BlobStore
from runner.server.store.database import Database
from runner.server.store.schema import files, is_release, releases
from runner.server.uploads.checking import UploadVerdict, check_isolated
from runner.server.uploads.declaration import DeclaredFolder
from runner.server.uploads.queue import QueuedUpload, UploadQueue
from runner.server.uploads.uploads import CHECKING, OPEN, PUBLISHED, REFUSED, TAKEN, Upload, Uploads, is_published

LOG = logging.getLogger("nip_run.server")
RETRY_SECONDS = 2.0
"""Time between the failure of a check and the next attempt."""
NOT_CHECKED = "the server failed to check this upload; publish again later, and tell the server's administrator"


class _TakenFolder(Exception):
    """A folder of an upload already exists in the registry, or belongs to a release that does not exist."""


class Publishing:
    """Checks complete uploads in background threads, and publishes those without problems."""

    def __init__(self, settings: Settings, database: Database, blobs: BlobStore) -> None:
        self._settings, self._database, self._blobs = settings, database, blobs
        self.uploads = Uploads(settings, database, blobs)
        self.scoring = Scoring(settings, database)
        self._queue = UploadQueue()
        self._stopping = Event()

    def start(self) -> None:
        """Start the threads that check uploads and score submissions."""
        remove_leftovers(self._settings)  # before any task starts
        for number in range(self._settings.checks_at_once):
            Thread(target=self._work, name=f"check-{number}", daemon=True).start()
        self.scoring.start()
        self.queue_unchecked()

    def queue_unchecked(self) -> None:
        """Queue all uploads that wait for their check, including those from before a crash."""
        self.scoring.wake()
        for upload, account in self.uploads.list_unchecked():
            self._queue.put(QueuedUpload(upload, account))

    def commit(self, upload: Upload) -> None:
        """Queue a complete upload for its check and publication; do nothing if its state is not open.

        Raises:
            ReleaseError: blobs are missing.
        """
        if upload.state != OPEN:
            return
        if upload.missing:
            raise ReleaseError(f"{len(upload.missing)} files of the upload are missing; send them, then commit again")
        if self.uploads.set_state(upload.id, CHECKING, [], if_state=OPEN):
            self._queue.put(QueuedUpload(upload.id, upload.account_id))

    def _work(self) -> None:
        """Check one upload after another, in a thread of the server."""
        while (queued := self._queue.take()) is not None:
            try:
                self.check(queued.upload, queued.account_id)
            except Exception:
                LOG.exception("the check of an upload failed", extra={"upload": queued.upload})
                self._stopping.wait(RETRY_SECONDS)
                self._try_again(replace(queued, tries=queued.tries + 1))
            else:
                self._queue.remove(queued)

    def _try_again(self, queued: QueuedUpload) -> None:
        """Queue an upload again. After too many tries, reopen it instead, so that its client can commit it again."""
        if queued.tries < self._settings.check_tries:
            self._queue.requeue(queued)
            return
        try:
            self.uploads.set_state(queued.upload, OPEN, [NOT_CHECKED], if_state=CHECKING)
        except Exception:  # `queue_unchecked` will queue the upload
            LOG.exception("an upload could not be reopened", extra={"upload": queued.upload})
        self._queue.remove(queued)

    def check(self, upload_id: str, account_id: int) -> None:
        """Check an upload in this thread, and publish or refuse it; do nothing if its state is not CHECKING."""
        with self._database.reading() as connection:
            viewer = viewer_of_account(connection, account_id)
        upload = self.uploads.find(viewer, upload_id)
        if upload.state != CHECKING:
            return
        if self._lacks_blobs(upload):
            problems = ["the server has lost files of this upload; run the same publish command again"]
            self.uploads.set_state(upload.id, OPEN, problems, if_state=CHECKING)
            return
        verdict = self._refuse_lost_permission(viewer, upload) or check_isolated(
            self._settings, viewer, upload.id, upload.declaration
        )
        if not verdict.is_accepted:
            # Delete the pieces first, because the client may declare the same upload again as soon as it is refused.
            self.uploads.pieces.clear(upload.id)
            self.uploads.set_state(upload.id, REFUSED, verdict.problems, if_state=CHECKING)
            return
        for sha256 in upload.declaration.blobs:
            path = self.uploads.pieces.complete_file(upload.id, sha256)
            if path is not None:
                self._blobs.put(sha256, path)
        self._publish(upload, verdict)
        self.scoring.wake()
        self.uploads.pieces.clear(upload.id)

    def _lacks_blobs(self, upload: Upload) -> bool:
        """Return whether the server lacks a blob of the upload, for example because someone emptied a folder."""
        pieces = self.uploads.pieces
        return any(
            pieces.complete_file(upload.id, sha256) is None and not self._blobs.has(sha256)
            for sha256 in upload.declaration.blobs
        )

    @staticmethod
    def _refuse_lost_permission(viewer: Viewer, upload: Upload) -> UploadVerdict | None:
        """Return a verdict that refuses the upload if its account may no longer publish as the releases' owners."""
        owners = {folder.reference.owner for folder in upload.declaration.folders}
        lost = sorted(owner for owner in owners if not viewer.publishes_as(owner))
        if not lost:
            return None
        return UploadVerdict([f"you may no longer publish as {owner}; ask an owner of {owner}" for owner in lost])

    def _publish(self, upload: Upload, verdict: UploadVerdict) -> None:
        """Make the releases of an upload visible and change its state, in one transaction."""
        now = time.time()
        try:
            with self._database.writing() as connection:
                viewer = viewer_of_account(connection, upload.account_id)
                if (refusal := self._refuse_lost_permission(viewer, upload)) is not None:  # lost during the check
                    self.uploads.update_state(connection, upload.id, REFUSED, refusal.problems, now, if_state=CHECKING)
                    return
                received_at = self.uploads.last_activity(connection, upload.id)
                folders = upload.declaration.folders
                if received_at is None or not self.uploads.update_state(
                    connection, upload.id, PUBLISHED, [], now, if_state=CHECKING, published=folders
                ):
                    return
                for folder in sorted(folders, key=lambda folder: folder.part):  # releases (part "") before additions
                    self._insert(connection, upload, viewer, folder, verdict, received_at=received_at)
                self._database.increment_revision(connection)
        except (IntegrityError, _TakenFolder):
            problems = ["someone else has just published one of these names and versions; choose a new version"]
            self.uploads.set_state(upload.id, TAKEN, problems, if_state=CHECKING)

    def _insert(
        self, connection: Connection, upload: Upload, viewer: Viewer, folder: DeclaredFolder, verdict: UploadVerdict,
        *, received_at: float,
    ) -> None:  # fmt: skip
        """Insert the rows of a folder: a release with its submissions, or a yank or signature of an existing release.

        Raises:
            _TakenFolder: the yank or signature exists already, or its release does not exist.
        """
        reference = folder.reference
        if folder.part == "":
            release_id = self._insert_release(connection, upload, folder)
            if (rows_sha256 := verdict.rows.get(folder.path)) is not None:
                submit_run(connection, viewer, rows_sha256, release=release_id, owner=reference.owner, now=received_at)
        else:
            # The lock on the row makes concurrent additions to a release wait for each other.
            query = select(releases.c.id).where(is_release(reference)).with_for_update()
            existing_id = connection.execute(query).scalar()
            if existing_id is None or is_published(connection, folder):
                raise _TakenFolder
            release_id = existing_id
        rows = [
            {"path": f"{folder.path}/{file.path}", "release_id": release_id, "part": folder.part, "sha256": file.sha256,
             "size": file.size}
            for file in folder.files
        ]  # fmt: skip
        connection.execute(insert(files), rows)

    def _insert_release(self, connection: Connection, upload: Upload, folder: DeclaredFolder) -> int:
        reference = folder.reference
        manifest = next(file for file in folder.files if file.path == MANIFEST)
        with self._blobs.open(manifest.sha256) as source:
            release = Release.from_bytes(read_small_file(source, MANIFEST, MAX_MANIFEST), self._settings.limits)
        row = {
            "kind": str(reference.kind), "owner": reference.owner, "name": reference.name, "version": reference.version,
            "sha256": manifest.sha256, "visibility": release.visibility, "publisher_id": upload.account_id,
            "created": time.time(),
        }  # fmt: skip
        return int(connection.execute(insert(releases).returning(releases.c.id), row).scalar_one())

    def close(self) -> None:
        """Stop without waiting for queued uploads. The restarted server checks them."""
        self._stopping.set()
        self.scoring.close()
        self._queue.close()
