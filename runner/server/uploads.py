"""Uploads: declared, sent in pieces, checked, and then seen whole, or not at all.

An upload is known by what it declares and who declares it, so that whoever was cut off declares the same again and goes
on. Pieces are appended to files beside each other; how much of a blob is there is how long its file is. Whether it is
what was declared is seen by its hash, once it is whole, and nothing of it is seen by others before its upload is.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson
from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy import delete as deleted

from runner.errors import NotPublished, ReleaseError, TakenError, UsageError
from runner.releases.bundle import PIECE
from runner.server.accounts import Viewer
from runner.server.blobs import Blobs
from runner.server.database import Database
from runner.server.declared import Declaration
from runner.server.schema import files, releases, uploads
from runner.server.settings import Settings
from runner.server.tree import seen_by
from runner.storage.files import make_folders, open_own, open_to_read, remove_folder

OPEN, CHECKING, SEEN, REFUSED, TAKEN = "open", "checking", "published", "refused", "taken"


class OffsetError(ReleaseError):
    """A piece does not follow what is there."""

    def __init__(self, have: int) -> None:
        super().__init__(f"{have:,} bytes are there; send what follows them")
        self.have = have


class Receiving:
    """Takes bytes of one blob, and no more than it has."""

    def __init__(self, file: IO[bytes], have: int, size: int) -> None:
        self._file, self.have, self._size = file, have, size

    def write(self, data: bytes) -> None:
        """Raises: ReleaseError: the blob is longer than was declared."""
        if self.have + len(data) > self._size:
            raise ReleaseError(f"more was sent than the {self._size:,} bytes that were declared")
        self._file.write(data)
        self.have += len(data)


@dataclass(frozen=True)
class Upload:
    """One upload as it is now."""

    id: str
    declaration: Declaration
    state: str
    problems: Sequence[str]
    account_id: int
    missing: dict[str, tuple[int, int]]
    """Of each blob that is not whole: how many bytes it has, and how many are there."""


class Uploads:
    """All uploads of a server."""

    def __init__(self, settings: Settings, database: Database, blobs: Blobs) -> None:
        self._settings, self._database, self._blobs = settings, database, blobs

    def begin(self, viewer: Viewer, declaration: Declaration, now: float) -> Upload:
        """Declare an upload, or go on with one.

        Raises:
            PermissionError: the viewer may not publish as one of its owners.
            TakenError: one of its releases is there, with other content.
            UsageError: the account has too many that are open.
        """
        for folder in declaration.folders:
            if not viewer.publishes_as(folder.reference.owner):
                raise PermissionError(f"this token may not publish as {folder.reference.owner}")
        assert viewer.account_id is not None
        upload = declaration.id(viewer.account_id)
        with self._database.writing() as connection:
            there = [self._is_there(connection, declaration, at) for at in range(len(declaration.folders))]
            state = SEEN if all(there) else OPEN
            row = connection.execute(select(uploads.c.state).where(uploads.c.id == upload)).one_or_none()
            if row is None:
                self._check_count(connection, viewer.account_id)
                told = declaration.to_bytes().decode()
                connection.execute(
                    insert(uploads),
                    {"id": upload, "account_id": viewer.account_id, "declared": told, "state": state, "problems": "[]",
                     "touched": now},
                )  # fmt: skip
            elif state == SEEN or row.state in (REFUSED, TAKEN, SEEN):  # it is sent again
                connection.execute(
                    update(uploads).where(uploads.c.id == upload).values(state=state, problems="[]", touched=now)
                )
        return self.find(viewer, upload)

    def _is_there(self, connection: Connection, declaration: Declaration, at: int) -> bool:
        """Whether a folder is there with these very files; raises `TakenError` where it has others."""
        folder = declaration.folders[at]
        prefix = f"{folder.path}/"
        query = select(files.c.path, files.c.sha256).where(files.c.path >= prefix, files.c.path < prefix + "\U0010ffff")
        there = {
            row.path.removeprefix(prefix): row.sha256
            for row in connection.execute(query.where(files.c.part == folder.part))
        }
        if there and there != {file.path: file.sha256 for file in folder.files}:
            raise TakenError(f"{folder.path} is there already")
        return bool(there)

    def _check_count(self, connection: Connection, account: int) -> None:
        query = select(func.count()).where(uploads.c.account_id == account, uploads.c.state == OPEN)
        if connection.execute(query).scalar_one() >= self._settings.open_uploads:
            raise UsageError(f"{self._settings.open_uploads} uploads are open; end or abandon one of them")

    def find(self, viewer: Viewer, upload: str) -> Upload:
        """An upload of the viewer's own.

        Raises:
            NotPublished: there is none.
        """
        with self._database.reading() as connection:
            query = select(uploads).where(uploads.c.id == upload, uploads.c.account_id == viewer.account_id)
            row = connection.execute(query).one_or_none()
            if row is None:
                raise NotPublished("there is no such upload; declare it again")
            declaration = Declaration.from_bytes(row.declared)
            known = _known(connection, viewer, list(declaration.blobs())) if row.state == OPEN else set()
        missing = dict(self._missing(upload, declaration, known)) if row.state == OPEN else {}
        return Upload(upload, declaration, row.state, orjson.loads(row.problems), row.account_id, missing)

    def _missing(self, upload: str, declaration: Declaration, known: set[str]) -> Iterator[tuple[str, tuple[int, int]]]:
        for sha256, size in declaration.blobs().items():
            if sha256 in known or self._whole(upload, sha256).is_file():
                continue
            have = 0
            with suppress(FileNotFoundError):
                have = self._part(upload, sha256).stat().st_size
            yield sha256, (size, have)

    def _folder(self, upload: str) -> Path:
        return self._settings.incoming / upload

    def _part(self, upload: str, sha256: str) -> Path:
        return self._folder(upload) / f"{sha256}.part"

    def _whole(self, upload: str, sha256: str) -> Path:
        return self._folder(upload) / sha256

    @contextmanager
    def receiving(self, upload: Upload, sha256: str, offset: int) -> Iterator[Receiving]:
        """What takes the next bytes of a blob. Once the block has ended well, `have` is how many are there for good.

        Raises:
            NotPublished: the upload has no such blob, or takes nothing any more.
            OffsetError: something else is there than what the piece follows; or another piece of it is being sent.
            ReleaseError: the blob is whole, and not what was declared: it is sent anew.
        """
        size = upload.declaration.blobs().get(sha256)
        if size is None or upload.state != OPEN:
            raise NotPublished("the upload takes no such blob")
        if sha256 not in upload.missing:
            raise OffsetError(size)
        part = self._part(upload.id, sha256)
        try:
            make_folders(part.parent)
            with os.fdopen(open_own(part, os.O_RDWR | os.O_CREAT), "r+b") as file:
                # One writer at a time: what was hashed must not be written to by another who is still there.
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise OffsetError(part.stat().st_size) from None
                have = file.seek(0, os.SEEK_END)
                if have != offset or not part.exists():
                    raise OffsetError(have)
                received = Receiving(file, have, size)
                yield received
                file.flush()
                os.fsync(file.fileno())
                if received.have == size:
                    self._end(upload.id, sha256, file)
        except OSError as error:
            raise ReleaseError(f"the upload cannot be kept: {error.strerror}") from error

    def _end(self, upload: str, sha256: str, file: IO[bytes]) -> None:
        file.seek(0)
        part, hashed = self._part(upload, sha256), hashlib.sha256()
        while data := file.read(PIECE):
            hashed.update(data)
        if hashed.hexdigest() != sha256:
            part.unlink(missing_ok=True)
            raise ReleaseError(f"what was sent as {sha256[:12]} has another hash; send it again")
        part.rename(self._whole(upload, sha256))

    def open_blob(self, upload: str, sha256: str) -> IO[bytes]:
        """A blob of an upload: as it was sent, or where it was known, from those that are kept."""
        path = self._whole(upload, sha256)
        return open_to_read(path) if path.is_file() else self._blobs.open(sha256)

    def sent(self, upload: Upload) -> Iterator[tuple[str, Path]]:
        """The blobs that were sent of an upload, and where they are."""
        for sha256 in upload.declaration.blobs():
            path = self._whole(upload.id, sha256)
            if path.is_file():
                yield sha256, path

    def set_state(
        self, upload: str, state: str, problems: Sequence[str], now: float, *, only: str | None = None
    ) -> bool:
        """Note what became of an upload; with `only` where it is in this state."""
        query = update(uploads).where(uploads.c.id == upload)
        if only is not None:
            query = query.where(uploads.c.state == only)
        values: dict[str, Any] = {"state": state, "problems": orjson.dumps(list(problems)).decode(), "touched": now}
        with self._database.writing() as connection:
            return connection.execute(query.values(**values)).rowcount > 0

    def unchecked(self) -> list[tuple[str, int]]:
        """Uploads that wait for their check, as after a server was killed, each with its account."""
        with self._database.reading() as connection:
            query = select(uploads.c.id, uploads.c.account_id).where(uploads.c.state == CHECKING)
            return [(row.id, row.account_id) for row in connection.execute(query.order_by(uploads.c.touched))]

    def abandon(self, viewer: Viewer, upload: str) -> None:
        """Forget an upload of the viewer's own that is open."""
        with self._database.writing() as connection:
            mine = uploads.c.id == upload, uploads.c.account_id == viewer.account_id, uploads.c.state != CHECKING
            done = connection.execute(deleted(uploads).where(*mine))
        if done.rowcount:
            self.clear(upload)

    def clear(self, upload: str) -> None:
        """Remove what was sent of an upload."""
        with suppress(FileNotFoundError):
            remove_folder(self._folder(upload))

    def forget_old(self, now: float) -> None:
        """Forget the uploads that nothing was sent for in a long time, and what is left of others."""
        with self._database.writing() as connection:
            old = uploads.c.touched < now - self._settings.upload_seconds, uploads.c.state != CHECKING
            gone = [row.id for row in connection.execute(select(uploads.c.id).where(*old))]
            connection.execute(deleted(uploads).where(*old))
        for upload in gone:
            self.clear(upload)


def _known(connection: Connection, viewer: Viewer, blobs: Sequence[str]) -> set[str]:
    """The blobs that the viewer can see already: what others keep to themselves is sent again, as if it were new."""
    found: set[str] = set()
    for at in range(0, len(blobs), 500):
        query = select(files.c.sha256).join(releases, releases.c.id == files.c.release_id)
        some = query.where(files.c.sha256.in_(blobs[at : at + 500]), seen_by(viewer))
        found |= {row.sha256 for row in connection.execute(some)}
    return found
