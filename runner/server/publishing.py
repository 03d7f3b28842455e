"""From an upload that is whole to releases that can be seen: checked, kept, and then shown in one transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import orjson
from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from runner.errors import ReleaseError
from runner.releases.limits import MAX_MANIFEST
from runner.releases.manifest import MANIFEST, Release
from runner.releases.reference import Kind
from runner.server.accounts import Viewer
from runner.server.apart import clear
from runner.server.blobs import Blobs
from runner.server.checking import KEPT, RECOMPUTED, Verdict, checked_apart
from runner.server.competitions import enter, score_waiting
from runner.server.database import Database
from runner.server.declared import DeclaredFolder
from runner.server.schema import checks, files, releases
from runner.server.settings import Settings
from runner.server.uploads import CHECKING, OPEN, REFUSED, SEEN, TAKEN, Upload, Uploads
from runner.transports.listing import small_file
from runner.version import __version__

LOG = logging.getLogger("nip_run.server")


class Publishing:
    """Checks what was sent, a few uploads at a time, and shows what is good."""

    def __init__(self, settings: Settings, database: Database, blobs: Blobs) -> None:
        self._settings, self._database, self._blobs = settings, database, blobs
        self.uploads = Uploads(settings, database, blobs)
        self._pool = ThreadPoolExecutor(max_workers=settings.checks_at_once, thread_name_prefix="check")
        self._scoring = ThreadPoolExecutor(max_workers=1, thread_name_prefix="score")

    def resume(self, viewers: Sequence[tuple[str, Viewer]]) -> None:
        """Check what waited for its check when the server ended."""
        clear(self._settings)
        for upload, viewer in viewers:
            self._pool.submit(self._end, upload, viewer)
        self._scoring.submit(self._score)

    def commit(self, upload: Upload, viewer: Viewer, now: float) -> None:
        """Have an upload that is whole be checked, and then seen; once, however often it is asked for.

        Raises:
            ReleaseError: blobs are missing.
        """
        if upload.state != OPEN:
            return
        if upload.missing:
            raise ReleaseError(f"{len(upload.missing)} files are not sent yet")
        if self.uploads.set_state(upload.id, CHECKING, [], now, only=OPEN):
            self._pool.submit(self._end, upload.id, viewer)

    def _end(self, upload: str, viewer: Viewer) -> None:
        try:
            found = self.uploads.find(viewer, upload)
            if found.state != CHECKING:
                return
            verdict = checked_apart(self._settings, viewer, upload, found.declaration)
            if verdict.is_good:
                self._show(found, viewer, verdict)
                if verdict.rows:
                    self._scoring.submit(self._score)
            else:
                self.uploads.set_state(upload, REFUSED, verdict.problems, time.time(), only=CHECKING)
            self.uploads.clear(upload)
        except Exception:
            # It stays as it is, and is checked again when the server begins again.
            LOG.exception("the check of an upload failed", extra={"upload": upload})

    def _score(self) -> None:
        try:
            score_waiting(self._settings, self._database)
        except Exception:
            # They stay as they are, and are scored after the next one, or when the server begins again.
            LOG.exception("submissions could not be scored")

    def _show(self, upload: Upload, viewer: Viewer, verdict: Verdict) -> None:
        for sha256, path in self.uploads.sent(upload):
            self._blobs.put(sha256, path)
        try:
            with self._database.writing() as connection:
                for folder in upload.declaration.folders:
                    self._insert(connection, upload, viewer, folder, verdict)
                self._database.changed(connection)
        except IntegrityError:
            taken = ["a name and version of it was published by somebody else in the meantime"]
            self.uploads.set_state(upload.id, TAKEN, taken, time.time(), only=CHECKING)
            return
        self.uploads.set_state(upload.id, SEEN, [], time.time(), only=CHECKING)

    def _insert(
        self, connection: Connection, upload: Upload, viewer: Viewer, folder: DeclaredFolder, verdict: Verdict
    ) -> None:
        where = folder.reference
        if folder.part == "":
            manifest = next(file for file in folder.files if file.path == MANIFEST)
            with self._blobs.open(manifest.sha256) as source:
                release = Release.from_bytes(small_file(source, MANIFEST, MAX_MANIFEST), self._settings.limits)
            row = {
                "kind": str(where.kind), "owner": where.owner, "name": where.name, "version": where.version,
                "sha256": manifest.sha256, "visibility": release.visibility, "publisher_id": upload.account_id,
                "created": time.time(),
            }  # fmt: skip
            made = connection.execute(insert(releases).returning(releases.c.id), row).scalar_one()
            tier = RECOMPUTED if where.kind == Kind.RUN else KEPT
            said = orjson.dumps({"notes": list(verdict.notes.get(folder.path, ()))}).decode()
            connection.execute(insert(checks), {"release_id": made, "by": __version__, "tier": tier, "said": said})
            if (played := verdict.rows.get(folder.path)) is not None:
                enter(connection, viewer, played, release=made, owner=where.owner, now=time.time())
        else:
            mine = [getattr(releases.c, name) == getattr(where, name) for name in ("kind", "owner", "name", "version")]
            made = connection.execute(select(releases.c.id).where(*mine)).scalar_one()
        rows = [
            {"path": f"{folder.path}/{file.path}", "release_id": made, "part": folder.part, "sha256": file.sha256,
             "size": file.size}
            for file in folder.files
        ]  # fmt: skip
        connection.execute(insert(files), rows)

    def close(self) -> None:
        """End without waiting for what is still to be checked: it is checked when the server begins again."""
        for pool in (self._pool, self._scoring):
            pool.shutdown(wait=False, cancel_futures=True)
