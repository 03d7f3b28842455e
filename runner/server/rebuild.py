"""Checks all releases of a server again, deletes its boards, and removes unused blobs.

This module implements `nip-run serve --rebuild` and `--collect`. The server builds the deleted boards again when it
starts. `exclusive_access` locks a server's folder, also for other commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Row, select

from runner.base.errors import NewerFormatError, NotFoundError, ReleaseError, RunDirectoryError, RunError, UsageError
from runner.base.storage.locks import locked
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import MANIFEST, Release, digest
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
from runner.server.store.schema import files, reference_of, releases, uploads
from runner.server.uploads.checking import check_isolated
from runner.server.uploads.declaration import Declaration, DeclaredFolder
from runner.server.uploads.uploads import CHECKING, OPEN

_EMPTY_UPLOAD = "0" * 32
"""Id of an upload that does not exist. `rebuild` checks a stored release with the same code as an upload. Because this
upload has received no file, the code reads all files from the blob store."""


@dataclass
class RebuildResult:
    """The outcome of a rebuild."""

    releases: int = 0
    problems: list[str] = field(default_factory=list)
    """Messages about damaged releases, which `rebuild` leaves unchanged."""


@contextmanager
def exclusive_access(settings: Settings) -> Iterator[None]:
    """Lock the server's folder and database against other processes.

    Raises:
        UsageError: another process uses the folder.
        RunError: another server uses the database, or the folder or the database cannot be used.
    """
    with ExitStack() as stack:
        stack.enter_context(restrict_access(settings.folder))
        try:
            stack.enter_context(locked(settings.folder / ".serving", str(settings.folder)))
        except RunDirectoryError as error:
            raise UsageError(f"{error}; stop that server first, then run the command again") from error
        if (
            settings.database is not None
            and not stack.enter_context(closing(Database(settings.database))).lock_for_server()
        ):
            raise RunError("another server uses this database; stop that server, or choose another --database URL")
        yield


def rebuild(settings: Settings, report: Callable[[str], None]) -> RebuildResult:
    """Check each release, and delete boards; call `report` with each problem.

    Call this function within `exclusive_access`.
    """
    database, blobs, result = Database(settings.database_url), open_blob_store(settings), RebuildResult()
    remove_leftovers(settings)
    with closing(database):
        with database.reading() as connection:
            rows = connection.execute(select(releases).order_by(releases.c.id)).all()
        for row in rows:
            result.releases += 1
            for problem in _find_problems(settings, blobs, row):
                result.problems.append(problem)
                report(problem)
        delete_boards(settings)
    return result


def _find_problems(settings: Settings, blobs: BlobStore, row: Row[Any]) -> Iterator[str]:
    """Check a release with the same code as an upload, and yield messages about its problems."""
    reference = reference_of(row)
    viewer = Viewer(row.publisher_id, row.owner, frozenset((row.owner,)), Scope.PUBLISH)
    try:
        declaration = Declaration([_declared_folder(settings, blobs, row, reference)])
        yield from check_isolated(settings, viewer, _EMPTY_UPLOAD, declaration).problems
    except (ReleaseError, NewerFormatError, IsolatedTaskError) as error:
        yield f"{reference}: {error}"


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
        problem = f"{MANIFEST} is damaged, or belongs to {release.reference}"
        raise ReleaseError(f"{problem}; restore the blob {row.sha256} from a backup")
    return DeclaredFolder.from_manifest(release, data)


def remove_unused_blobs(settings: Settings) -> int:
    """Remove unused blobs and return their number. Call this function within `exclusive_access`."""
    database, blobs = Database(settings.database_url), open_blob_store(settings)
    with closing(database), database.reading() as connection:
        used_hashes = {row.sha256 for row in connection.execute(select(files.c.sha256).distinct())}
        used_hashes |= {row.sha256 for row in connection.execute(select(releases.c.sha256))}
        unfinished_uploads = select(uploads.c.declared).where(uploads.c.state.in_((OPEN, CHECKING)))
        for row in connection.execute(unfinished_uploads):
            used_hashes |= Declaration.from_bytes(row.declared).blobs.keys()
    unused_hashes = [sha256 for sha256 in blobs.hashes() if sha256 not in used_hashes]
    for sha256 in unused_hashes:
        blobs.remove(sha256)
    blobs.remove_temporary_files()
    return len(unused_hashes)
