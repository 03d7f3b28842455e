"""Publishes committed uploads: checks an upload, stores its blobs, then makes its releases visible.

The releases become visible in the same transaction that changes the state of their upload, so a crash cannot leave an
upload half published. If a crash interrupts a check, the restarted server repeats it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from runner.base.errors import ReleaseError
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import MANIFEST, Release
from runner.registry.transports.listing import read_small_file
from runner.server.accounts.accounts import Viewer, viewer_of_account
from runner.server.background_worker import BackgroundWorker
from runner.server.competitions.storage import list_waiting_submissions, score_submission, submit_run
from runner.server.isolated_task import remove_leftovers
from runner.server.settings import Settings
from runner.server.store.blobs import BlobStore
from runner.server.store.database import Database
from runner.server.store.schema import files, is_release, releases
from runner.server.uploads.checking import UploadVerdict, check_isolated
from runner.server.uploads.declaration import DeclaredFolder
from runner.server.uploads.uploads import CHECKING, OPEN, PUBLISHED, REFUSED, TAKEN, Upload, Uploads, is_published

LOG = logging.getLogger("nip_run.server")
_CHECK_RETRY_SECONDS, _SCORE_RETRY_SECONDS = 2.0, 60.0
CHECK_FAILED = "the server failed to check this upload; publish again later, and tell the server's administrator"


class _TakenFolderError(Exception):
    """A yank or signature already exists in the registry, or its release does not exist."""


class Publishing:
    """Checks and publishes committed uploads, and scores submissions, each in a background thread."""

    def __init__(self, settings: Settings, database: Database, blobs: BlobStore) -> None:
        self._settings, self._database, self._blobs = settings, database, blobs
        self.uploads = Uploads(settings, database, blobs)
        self.scoring = BackgroundWorker[int](
            "scoring of a submission",
            lambda: list_waiting_submissions(database),
            lambda submission, _: score_submission(settings, database, submission),
            retry_seconds=_SCORE_RETRY_SECONDS,
        )
        self._checks = BackgroundWorker[str](
            "check of an upload", self.uploads.list_unchecked, self._check_or_reopen, retry_seconds=_CHECK_RETRY_SECONDS
        )
        self._failures: Counter[str] = Counter()
        """How often the server itself failed to check each upload, by the upload's id."""

    def start(self) -> None:
        """Start the threads that check uploads and score submissions."""
        remove_leftovers(self._settings)  # before any task starts
        self._checks.start()
        self.scoring.start()

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
            self._checks.wake()

    def _check_or_reopen(self, upload_id: str, account_id: int) -> None:
        """Check an upload. After too many failures, reopen it instead, so that its client can commit it again."""
        try:
            self.check(upload_id, account_id)
        except Exception:
            self._failures[upload_id] += 1
            if self._failures[upload_id] < self._settings.check_tries:
                raise
            LOG.exception("the check of an upload failed too often", extra={"id": upload_id})
            self.uploads.set_state(upload_id, OPEN, [CHECK_FAILED], if_state=CHECKING)
        self._failures.pop(upload_id, None)

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
        if verdict.problems:
            # Remove the pieces first, because the client may declare the same upload again as soon as it is refused.
            self.uploads.pieces.remove(upload.id)
            self.uploads.set_state(upload.id, REFUSED, verdict.problems, if_state=CHECKING)
            return
        for sha256 in upload.declaration.blobs:
            path = self.uploads.pieces.complete_file(upload.id, sha256)
            if path is not None:
                self._blobs.put(sha256, path)
        self._publish(upload, verdict)
        self.scoring.wake()
        self.uploads.pieces.remove(upload.id)

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
        lost = sorted(owner for owner in owners if not viewer.can_publish_as(owner))
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
                    self._insert_folder(connection, upload, viewer, folder, verdict, received_at=received_at)
                self._database.increment_revision(connection)
        except (IntegrityError, _TakenFolderError):
            problems = ["someone else has just published one of these names and versions; choose a new version"]
            self.uploads.set_state(upload.id, TAKEN, problems, if_state=CHECKING)

    def _insert_folder(
        self, connection: Connection, upload: Upload, viewer: Viewer, folder: DeclaredFolder, verdict: UploadVerdict,
        *, received_at: float,
    ) -> None:  # fmt: skip
        """Insert the rows of a folder: a release with its submissions, or a yank or signature of an existing release.

        Raises:
            _TakenFolderError: the yank or signature exists already, or its release does not exist.
        """
        reference = folder.reference
        if folder.part == "":
            release_id = self._insert_release(connection, upload, folder)
            if (rows_sha256 := verdict.row_hashes.get(folder.path)) is not None:
                submit_run(connection, viewer, rows_sha256, release_id, owner=reference.owner, now=received_at)
        else:
            # The lock on the row makes concurrent additions to a release wait for each other.
            query = select(releases.c.id).where(is_release(reference)).with_for_update()
            existing_id = connection.execute(query).scalar()
            if existing_id is None or is_published(connection, folder):
                raise _TakenFolderError
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
        self.scoring.close()
        self._checks.close()
