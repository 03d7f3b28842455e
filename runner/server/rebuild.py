"""Rebuilds the data of a server that is derived from manifests and blobs, and removes unused blobs.

`rebuild` recomputes the lists of files and the checks. It deletes the boards, which the server builds again when it
starts. It keeps the data that exists only in the database: releases, owners, yanks, signatures, accounts, tokens. This
module implements `nip-run serve --rebuild` and `--collect`. Other commands lock the folder with `exclusive_access`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select

from runner.base.errors import NewerFormatError, NotFoundError, ReleaseError, RunDirectoryError, UsageError
from runner.base.storage.locks import locked
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import CHECKSUM, MANIFEST, Release, checksum, digest
from runner.documents.releases.reference import Reference
from runner.registry.transports.listing import read_small_file
from runner.server.accounts.accounts import Scope, Viewer
from runner.server.accounts.administration import HIDDEN
from runner.server.boards.paths import delete_boards
from runner.server.isolated_task import IsolatedTaskError, remove_leftovers
from runner.server.settings import Settings
from runner.server.store.blob_stores import open_blob_store
from runner.server.store.blobs import BlobStore
from runner.server.store.database import Database
from runner.server.store.permissions import restrict_access
from runner.server.store.schema import checks, files, reference_of, releases, uploads
from runner.server.uploads.checking import check_isolated
from runner.server.uploads.declaration import Declaration, DeclaredFile, DeclaredFolder
from runner.server.uploads.publishing import check_row
from runner.server.uploads.uploads import CHECKING, OPEN

_EMPTY_UPLOAD = "0" * 32
"""Id of an upload without received files. `rebuild` checks each release as such an upload: all its files are blobs."""


@dataclass
class RebuildResult:
    """The outcome of a rebuild."""

    releases: int = 0
    changed: int = 0
    """Number of releases whose list of files or check in the database was wrong."""
    problems: list[str] = field(default_factory=list)
    """Messages about damaged releases, which `rebuild` leaves unchanged."""


@contextmanager
def exclusive_access(settings: Settings) -> Iterator[None]:
    """Lock the server's folder against other processes.

    Raises:
        UsageError: another process uses the folder.
        RunError: the folder cannot be created or read.
    """
    with ExitStack() as stack:
        stack.enter_context(restrict_access(settings.folder))
        try:
            stack.enter_context(locked(settings.folder / ".serving", str(settings.folder)))
        except RunDirectoryError as error:
            raise UsageError(f"{error}; stop that server first, then run the command again") from error
        yield


def rebuild(settings: Settings, report: Callable[[str], None]) -> RebuildResult:
    """Recompute the files and the check of each release, and delete boards; call `report` with each problem.

    Call this function within `exclusive_access`.
    """
    database, blobs, result = Database(settings.database_url), open_blob_store(settings), RebuildResult()
    remove_leftovers(settings)
    try:
        with database.reading() as connection:
            rows = connection.execute(select(releases).order_by(releases.c.id)).all()
        for row in rows:
            result.releases += 1
            problems = list(_rebuild_release(settings, database, blobs, row, result))
            result.problems += problems
            for problem in problems:
                report(problem)
        delete_boards(settings)
        with database.writing() as connection:
            database.increment_revision(connection)
    finally:
        database.close()
    return result


def _rebuild_release(
    settings: Settings, database: Database, blobs: BlobStore, row: Row[Any], result: RebuildResult
) -> Iterator[str]:
    """Recompute the files and the check of one release, and update `result`; yield messages about its problems."""
    reference = reference_of(row)
    try:
        folder = _declared_folder(settings, blobs, row, reference)
        viewer = Viewer(row.publisher_id, row.owner, frozenset((row.owner,)), Scope.PUBLISH)
        verdict = check_isolated(settings, viewer, _EMPTY_UPLOAD, Declaration([folder]))
    except (ReleaseError, NewerFormatError, IsolatedTaskError) as error:
        yield f"{reference}: {error}"
        return
    if not verdict.is_accepted:
        yield from verdict.problems
        return
    with database.writing() as connection:
        changed = _replace_files(connection, row.id, folder)
        check = check_row(row.id, reference.kind, verdict.notes.get(folder.path, ()))
        existing = connection.execute(select(checks).where(checks.c.release_id == row.id)).one_or_none()
        if existing is None or {**existing._mapping} != check:  # noqa: SLF001 - as the library documents it
            connection.execute(delete(checks).where(checks.c.release_id == row.id))
            connection.execute(insert(checks), check)
            changed = True
        if changed:  # in this transaction: an interrupted rebuild must not change data without a new revision
            database.increment_revision(connection)
    result.changed += changed


def _declared_folder(settings: Settings, blobs: BlobStore, row: Row[Any], reference: Reference) -> DeclaredFolder:
    """Return the files that a release's manifest declares.

    Raises:
        ReleaseError: the manifest is missing or damaged, or belongs to another release.
    """
    try:
        data = read_small_file(blobs.open(row.sha256), MANIFEST, MAX_MANIFEST)
    except NotFoundError as error:
        raise ReleaseError(f"{MANIFEST} is missing; restore the blob {row.sha256} from a backup") from error
    release = Release.from_bytes(data, settings.limits)
    if (
        digest(data) != row.sha256
        or release.reference != reference
        or row.visibility not in (release.visibility, HIDDEN)
    ):
        damaged = f"{MANIFEST} is damaged, or belongs to {release.reference}"
        raise ReleaseError(f"{damaged}; restore the blob {row.sha256} from a backup")
    checksum_data = checksum(data)
    return DeclaredFolder(
        reference,
        "",
        [
            DeclaredFile(MANIFEST, len(data), row.sha256),
            DeclaredFile(CHECKSUM, len(checksum_data), digest(checksum_data)),
            *(DeclaredFile(file.path, file.size, file.sha256) for file in release.files),
        ],
    )


def _replace_files(connection: Connection, release: int, folder: DeclaredFolder) -> bool:
    """Correct the list of a release's files in the database; return whether the list was wrong."""
    own_files = files.c.release_id == release, files.c.part == ""  # without the yank and the signature
    stored = {(row.path, row.sha256, row.size) for row in connection.execute(select(files).where(*own_files))}
    declared = {(f"{folder.path}/{file.path}", file.sha256, file.size) for file in folder.files}
    if stored == declared:
        return False
    connection.execute(delete(files).where(*own_files))
    rows = [
        {"path": path, "release_id": release, "part": "", "sha256": sha256, "size": size}
        for path, sha256, size in sorted(declared)
    ]
    connection.execute(insert(files), rows)
    return True


def remove_unused_blobs(settings: Settings) -> int:
    """Remove unused blobs and return their number. Call this function within `exclusive_access`."""
    database, blobs = Database(settings.database_url), open_blob_store(settings)
    try:
        with database.reading() as connection:
            used = {row.sha256 for row in connection.execute(select(files.c.sha256).distinct())}
            used |= {row.sha256 for row in connection.execute(select(releases.c.sha256))}
            pending = select(uploads.c.declared).where(uploads.c.state.in_((OPEN, CHECKING)))
            for row in connection.execute(pending):
                used |= Declaration.from_bytes(row.declared).blobs.keys()
    finally:
        database.close()
    unused = [sha256 for sha256 in blobs.stored() if sha256 not in used]
    for sha256 in unused:
        blobs.remove(sha256)
    blobs.tidy()
    return len(unused)
