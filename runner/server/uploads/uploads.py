"""Stores uploads. A client declares the releases of an upload, sends their files in pieces, and commits the upload.

A blob is the content of a file, named by its SHA-256. `runner.server.uploads.pieces` appends received pieces to blobs
and checks the hash of each complete blob. `runner.server.uploads.publishing` checks a committed upload and publishes
it. Until then, only the account that declared the upload can see it. The id of an upload is a hash of its account and
declaration. So a client that lost its connection resumes if it declares the same upload again. States of an upload:

    open -> checking -> published | refused | taken      or back to open, if the server itself failed during the check

An upload is refused if its check finds problems. It is taken if another upload published one of its names and versions
during the check.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import IO, Any

import orjson
from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from runner.base.errors import NotFoundError, TakenError, UsageError
from runner.base.storage.safe_files import open_to_read
from runner.base.text import shortened
from runner.server.accounts.accounts import Viewer
from runner.server.settings import Settings
from runner.server.store.blobs import BlobStore
from runner.server.store.database import Database
from runner.server.store.schema import files, is_release, releases, uploads
from runner.server.uploads.declaration import Declaration, DeclaredFolder
from runner.server.uploads.pieces import BlobWriter, DiskFullError, OffsetError, UploadPieces
from runner.server.visible_releases import visible_to

OPEN, CHECKING, PUBLISHED, REFUSED, TAKEN = "open", "checking", "published", "refused", "taken"
_ACTIVE = (OPEN, CHECKING)
MAX_PROBLEMS = 50
"""Maximum number of problems that are stored for an upload."""
MAX_PROBLEM_LENGTH = 1_000
"""Maximum number of characters of a stored problem."""
TOUCH_SECONDS = 60.0
"""Minimum seconds between two updates of the column `touched`, the time when an upload last received bytes."""


@dataclass(frozen=True)
class Upload:
    """The current state of one upload."""

    id: str
    declaration: Declaration
    state: str
    problems: Sequence[str]
    account_id: int
    missing: dict[str, tuple[int, int]]
    """The size and the number of received bytes of each incomplete blob, by hash."""


class Uploads:
    """The uploads of a server."""

    def __init__(self, settings: Settings, database: Database, blobs: BlobStore) -> None:
        self._settings, self._database, self._blobs = settings, database, blobs
        self.pieces = UploadPieces(settings.incoming)
        self._declaration = lru_cache(maxsize=8)(self._read_declaration)

    # Declaring

    def declare(self, viewer: Viewer, declaration: Declaration) -> Upload:
        """Declare an upload, or resume one with the same declaration.

        Raises:
            PermissionError: the viewer may not publish as one of its owners.
            TakenError: a folder of the upload exists already, and another upload published it.
            UsageError: the account has too many open uploads, or would exceed its quota.
            DiskFullError: the disk has no space for the upload.
        """
        for folder in declaration.folders:
            if not viewer.can_publish_as(folder.reference.owner):
                owner = folder.reference.owner
                raise PermissionError(f"this token may not publish as {owner}; use a token of {owner} or of a member")
        assert viewer.account_id is not None
        upload_id = declaration.id(viewer.account_id)
        with self._database.reading() as connection:  # slow queries, which must not block other writers
            revision, sizes = self._database.revision(connection), quota_sizes(connection, viewer, declaration.blobs)
        # An IntegrityError means that a concurrent request has declared the same upload, which `find` then returns.
        with suppress(IntegrityError), self._database.writing() as connection:
            if self._database.revision(connection) != revision:  # an upload of the account may have been published
                sizes = quota_sizes(connection, viewer, declaration.blobs)
            row = connection.execute(select(uploads.c.state).where(uploads.c.id == upload_id)).one_or_none()
            existing = [folder.path for folder in declaration.folders if is_published(connection, folder)]
            was_published = row is not None and row.state == PUBLISHED and len(existing) == len(declaration.folders)
            if existing and not was_published:
                raise TakenError(f"{existing[0]} exists already; publish under a new version (--as OWNER/NAME@VERSION)")
            if row is None or not (was_published or row.state in _ACTIVE):
                self._insert(connection, upload_id, viewer.account_id, declaration, sizes)
        return self.find(viewer, upload_id)

    def _insert(
        self, connection: Connection, upload_id: str, account_id: int, declaration: Declaration, sizes: tuple[int, int]
    ) -> None:
        """Insert an upload, or replace an ended one with the same id, if the limits of the account allow it.

        `sizes` is from `quota_sizes`.
        """
        size = sum(declaration.blobs.values())
        own_uploads = select(func.count(), func.coalesce(func.sum(uploads.c.size), 0)).where(
            uploads.c.account_id == account_id, uploads.c.state.in_(_ACTIVE)
        )
        count, total = connection.execute(own_uploads).one()
        if count >= self._settings.open_uploads:
            hours = f"{self._settings.upload_seconds / 3600:g} hours"
            raise UsageError(
                f"{count} uploads of your account are open; repeat their publish commands to finish them. "
                f"Open uploads expire after {hours}."
            )
        if total + size > self._settings.open_bytes:
            raise UsageError(
                f"your open uploads would have {total + size:,} bytes, but the limit is {self._settings.open_bytes:,}; "
                "repeat the other publish commands first, to finish their uploads"
            )
        check_quota(self._settings, open_size=total, sizes=sizes)
        check_disk_space(connection, self._settings, self.pieces, size, _ACTIVE)
        connection.execute(delete(uploads).where(uploads.c.id == upload_id))
        row = {
            "id": upload_id, "account_id": account_id, "declared": declaration.to_bytes().decode(), "size": size,
            "state": OPEN, "problems": "[]", "touched": time.time(),
        }  # fmt: skip
        connection.execute(insert(uploads), row)

    # Reading

    def find(self, viewer: Viewer, upload_id: str) -> Upload:
        """Return an upload of the viewer's account.

        Raises:
            NotFoundError: the account has no upload with this id.
        """
        with self._database.reading() as connection:
            row, declaration = self._find_row(connection, viewer, upload_id)
            is_open = row.state == OPEN
            visible_blobs = _visible_blobs(connection, viewer, declaration.blobs) if is_open else set()
        missing = {}
        for sha256, size in declaration.blobs.items() if is_open else ():
            received = None if sha256 in visible_blobs else self.pieces.received_bytes(upload_id, sha256)
            if received is not None:  # None means that the blob is complete
                missing[sha256] = size, received
        return Upload(upload_id, declaration, row.state, orjson.loads(row.problems), row.account_id, missing)

    def _find_row(self, connection: Connection, viewer: Viewer, upload_id: str) -> tuple[Any, Declaration]:
        columns = [column for column in uploads.c if column is not uploads.c.declared]
        query = select(*columns).where(uploads.c.id == upload_id, uploads.c.account_id == viewer.account_id)
        row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFoundError("your account has no upload with this id; run the publish command again")
        return row, self._declaration(upload_id, row.state in _ACTIVE)

    def _read_declaration(self, upload_id: str, is_active: bool) -> Declaration:
        """Return the declaration of an upload.

        `is_active` is only part of the cache's key, because the stored declaration changes when an upload ends.
        """
        del is_active
        with self._database.reading() as connection:
            query = select(uploads.c.declared).where(uploads.c.id == upload_id)
            return Declaration.from_bytes(connection.execute(query).scalar_one())

    # Receiving

    def open_writer(self, viewer: Viewer, upload_id: str, sha256: str, offset: int) -> BlobWriter:
        """Open a writer that appends to the first `offset` bytes of a blob.

        Raises:
            NotFoundError: there is no such upload, it is not open, or it does not declare this blob.
            OffsetError: the number of stored bytes is different, or another connection is sending this blob.
            DiskFullError: the file cannot be written.
        """
        now = time.time()
        with self._database.reading() as connection:
            row, declaration = self._find_row(connection, viewer, upload_id)
            size = declaration.blobs.get(sha256)
            is_visible = bool(_visible_blobs(connection, viewer, {sha256: size or 0}))
        if size is None or row.state != OPEN:
            raise NotFoundError("the upload is not open or does not declare this blob; run the publish command again")
        if is_visible or self.pieces.received_bytes(upload_id, sha256) is None:
            raise OffsetError(size)
        if self.pieces.free_bytes() < self._settings.spare_bytes:
            raise DiskFullError(
                "the server's disk is full; publish again later, and ask the server's administrator to free disk space"
            )
        if abs(now - row.touched) > TOUCH_SECONDS:
            with self._database.writing() as connection:
                connection.execute(update(uploads).where(uploads.c.id == upload_id).values(touched=now))
        return self.pieces.open_writer(upload_id, sha256, size, offset)

    def open_blob(self, upload_id: str, sha256: str) -> IO[bytes]:
        """Open a blob of an upload: the received file or, if it was not received, the blob of a published release."""
        path = self.pieces.complete_file(upload_id, sha256)
        return self._blobs.open(sha256) if path is None else open_to_read(path)

    # Changing the state

    def set_state(self, upload_id: str, state: str, problems: Sequence[str], *, if_state: str) -> bool:
        """Set the state of an upload if it exists and has the state `if_state`. Return whether the state was set."""
        # Take the time before waiting for other writers, so that this wait does not make a submission late.
        now = time.time()
        with self._database.writing() as connection:
            return self.update_state(connection, upload_id, state, problems, now, if_state=if_state)

    @staticmethod
    def update_state(
        connection: Connection, upload_id: str, state: str, problems: Sequence[str], now: float, *,
        if_state: str, published: Sequence[DeclaredFolder] = (),
    ) -> bool:  # fmt: skip
        """Do the same as `set_state` in the caller's transaction.

        If the upload ends, `published` (the published folders) replaces the stored declaration, to save space.
        """
        query = update(uploads).where(uploads.c.id == upload_id, uploads.c.state == if_state)
        short_problems = [shortened(problem, MAX_PROBLEM_LENGTH) for problem in problems[:MAX_PROBLEMS]]
        values: dict[str, Any] = {"state": state, "problems": orjson.dumps(short_problems).decode(), "touched": now}
        if state not in _ACTIVE:
            values["declared"] = Declaration([replace(folder, files=[]) for folder in published]).to_bytes().decode()
        return connection.execute(query.values(**values)).rowcount > 0

    @staticmethod
    def last_activity(connection: Connection, upload_id: str) -> float | None:
        """Return the time when an upload last received bytes or, during its check, when the check was requested."""
        return connection.execute(select(uploads.c.touched).where(uploads.c.id == upload_id)).scalar_one_or_none()

    def list_unchecked(self) -> dict[str, int]:
        """Return the account of each upload that waits for its check or is being checked, oldest upload first."""
        with self._database.reading() as connection:
            query = select(uploads.c.id, uploads.c.account_id).where(uploads.c.state == CHECKING)
            return {row.id: row.account_id for row in connection.execute(query.order_by(uploads.c.touched))}

    def abandon(self, viewer: Viewer, upload_id: str) -> None:
        """Delete an upload of the viewer's account, unless it is being checked."""
        with self._database.writing() as connection:
            is_own_upload = uploads.c.id == upload_id, uploads.c.account_id == viewer.account_id
            query = delete(uploads).where(*is_own_upload, uploads.c.state != CHECKING)
            is_deleted = connection.execute(query).rowcount > 0
        if is_deleted:
            self.pieces.remove(upload_id)

    def delete_expired(self) -> None:
        """Delete uploads that were idle for `upload_seconds`, and the received bytes of uploads that have ended.

        The time of the last activity is in the future if the clock of the machine was wrong.
        """
        with self._database.writing() as connection:
            is_expired = func.abs(time.time() - uploads.c.touched) > self._settings.upload_seconds
            connection.execute(delete(uploads).where(is_expired, uploads.c.state != CHECKING))
        # List the folders before the query, because folders of uploads that are declared after the query must stay.
        folder_names = list(self.pieces.folder_names())
        with self._database.reading() as connection:
            active = {row.id for row in connection.execute(select(uploads.c.id).where(uploads.c.state.in_(_ACTIVE)))}
        for name in folder_names:
            if name not in active:
                self.pieces.remove(name)


def is_published(connection: Connection, folder: DeclaredFolder) -> bool:
    """Return whether the content of a folder is published: a release, or the yank or signature of a release."""
    query = select(releases.c.id).where(is_release(folder.reference))
    if folder.part:
        query = query.join(files, files.c.release_id == releases.c.id).where(files.c.part == folder.part)
    return connection.execute(query.limit(1)).scalar() is not None


def _visible_blobs(connection: Connection, viewer: Viewer, blobs: Mapping[str, int]) -> set[str]:
    """Return the blobs in releases that the viewer can see, which the client need not send again.

    `blobs` maps hashes to declared sizes. The client must send a blob with a wrong size, so that the size is checked.
    The client must send all other blobs, even if the server has them. If the server did not ask for such a blob, it
    would reveal that a private release contains the blob.
    """
    query = select(files.c.sha256, files.c.size).join(releases, releases.c.id == files.c.release_id)
    rows = connection.execute(query.where(files.c.sha256.in_(blobs), visible_to(viewer)))
    return {row.sha256 for row in rows if row.size == blobs[row.sha256]}


def quota_sizes(connection: Connection, viewer: Viewer, blobs: Mapping[str, int]) -> tuple[int, int]:
    """Return two total sizes: of the distinct files that an account has published, and of the blobs that are new to it.

    `blobs` maps hashes to sizes.
    """
    query = select(files.c.sha256, files.c.size).join(releases, releases.c.id == files.c.release_id)
    query = query.where(releases.c.publisher_id == viewer.account_id)
    own_files = query.distinct().subquery()
    published_size = connection.execute(select(func.coalesce(func.sum(own_files.c.size), 0))).scalar_one()
    published_hashes = set(connection.execute(query.where(files.c.sha256.in_(blobs))).scalars())
    return int(published_size), sum(size for sha256, size in blobs.items() if sha256 not in published_hashes)


def check_quota(settings: Settings, *, open_size: int, sizes: tuple[int, int]) -> None:
    """Raise UsageError if an account would exceed its quota.

    `open_size` is the size of its open uploads in bytes, and `sizes` is from `quota_sizes`.
    """
    published_size, new_size = sizes
    if settings.account_bytes and published_size + open_size + new_size > settings.account_bytes:
        raise UsageError(
            f"your account has published {published_size:,} bytes and has {open_size:,} bytes in open uploads; with "
            f"{new_size:,} more bytes it would exceed its quota of {settings.account_bytes:,} bytes; ask the server's "
            "administrator to raise --quota of nip-run serve"
        )


def check_disk_space(
    connection: Connection, settings: Settings, pieces: UploadPieces, size: int, active_states: Collection[str]
) -> None:
    """Raise DiskFullError if the disk has no space for `size` bytes and for the missing bytes of active uploads.

    `active_states` has the states of uploads that have not ended.
    """
    query = select(uploads.c.id, uploads.c.size).where(uploads.c.state.in_(active_states))
    declared_sizes = {row.id: int(row.size) for row in connection.execute(query)}
    available = pieces.free_bytes() - settings.spare_bytes - size
    if sum(declared_sizes.values()) <= available:  # enough without subtracting received bytes, which is slow
        return
    if sum(max(0, total - pieces.total_received_bytes(upload)) for upload, total in declared_sizes.items()) > available:
        raise DiskFullError(
            f"the server's disk has no space for an upload of {size:,} bytes; publish again later, or ask the server's "
            "administrator to free disk space"
        )
