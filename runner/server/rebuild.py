"""What follows from releases, made again from their manifests and blobs, while no server runs.

Lists of files and checks are made here; boards and pages go, and the next server makes them.

What does not follow from them stays: which releases there are and whose, who yanked or signed one, accounts, tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select

from runner.base.errors import NewerFormatError, NotPublished, ReleaseError, RunDirectoryError, UsageError
from runner.base.storage.locks import locked
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import CHECKSUM, MANIFEST, Release, checksum, digest
from runner.documents.releases.reference import Kind, Reference
from runner.registry.transports.listing import small_file
from runner.server.accounts.accounts import Scope, Viewer
from runner.server.accounts.administration import HIDDEN
from runner.server.boards.paths import forget_boards
from runner.server.settings import Settings
from runner.server.store.blob_stores import blobs_of
from runner.server.store.blobs import Blobs
from runner.server.store.database import Database
from runner.server.store.permissions import closed_to_others
from runner.server.store.schema import checks, files, releases, uploads
from runner.server.uploads.checking import CheckError, check_isolated
from runner.server.uploads.declaration import Declaration, DeclaredFile, DeclaredFolder
from runner.server.uploads.pieces import UploadPieces
from runner.server.uploads.publishing import check_row
from runner.server.uploads.uploads import CHECKING, OPEN

_AS_UPLOAD = "0" * 32
"""What is checked is looked at as an upload of which nothing was sent, as all of it is there."""


@dataclass
class RebuildResult:
    """What became of it."""

    releases: int = 0
    changed: int = 0
    """Releases of which the files or the check stand there otherwise now."""
    problems: list[str] = field(default_factory=list)
    """Of releases that are damaged, which are left as they were."""


@contextmanager
def alone(settings: Settings) -> Iterator[None]:
    """Have the server's folder, which one process has at a time.

    Raises:
        UsageError: a server has it.
        RunError: it cannot be made, or read.
    """
    with ExitStack() as own:
        own.enter_context(closed_to_others(settings.folder))
        try:
            own.enter_context(locked(settings.folder / ".serving", str(settings.folder)))
        except RunDirectoryError as error:
            raise UsageError(f"{error}; end that server first") from error
        yield


def rebuild(settings: Settings, tell: Callable[[str], None]) -> RebuildResult:
    """Make the lists of files and the checks of all releases again, and forget the boards. Where one is `alone`."""
    database, blobs, found = Database(settings.database_url), blobs_of(settings), RebuildResult()
    try:
        with database.reading() as connection:
            known = connection.execute(select(releases).order_by(releases.c.id)).all()
        for row in known:
            found.releases += 1
            problems = list(_rebuilt(settings, database, blobs, row, found))
            found.problems += problems
            for line in problems:
                tell(line)
        forget_boards(settings)
        with database.writing() as connection:
            database.changed(connection)
    finally:
        UploadPieces(settings.incoming).clear(_AS_UPLOAD)
        database.close()
    return found


def _rebuilt(
    settings: Settings, database: Database, blobs: Blobs, row: Row[Any], found: RebuildResult
) -> Iterator[str]:
    reference = Reference(Kind(row.kind), row.owner, row.name, row.version)
    try:
        folder = _folder(settings, blobs, row, reference)
        viewer = Viewer(row.publisher_id, row.owner, frozenset((row.owner,)), Scope.PUBLISH)
        verdict = check_isolated(settings, viewer, _AS_UPLOAD, Declaration([folder]))
    except (ReleaseError, NewerFormatError, CheckError) as error:
        yield f"{reference}: {error}"
        return
    if not verdict.is_good:
        yield from verdict.problems
        return
    with database.writing() as connection:
        changed = _put_files(connection, row.id, folder)
        wanted = check_row(row.id, reference.kind, verdict.notes.get(folder.path, ()))
        there = connection.execute(select(checks).where(checks.c.release_id == row.id)).one_or_none()
        if there is None or {**there._mapping} != wanted:  # noqa: SLF001 - as the library documents it
            connection.execute(delete(checks).where(checks.c.release_id == row.id))
            connection.execute(insert(checks), wanted)
            changed = True
        if changed:  # with what has changed, should it go no further
            database.changed(connection)
    found.changed += changed


def _folder(settings: Settings, blobs: Blobs, row: Row[Any], reference: Reference) -> DeclaredFolder:
    """What belongs to a release, by its manifest alone.

    Raises:
        ReleaseError: the manifest is damaged, or is another's.
    """
    try:
        data = small_file(blobs.open(row.sha256), MANIFEST, MAX_MANIFEST)
    except NotPublished as error:
        raise ReleaseError(f"{MANIFEST} is missing") from error
    release = Release.from_bytes(data, settings.limits)
    if (
        digest(data) != row.sha256
        or release.reference != reference
        or row.visibility not in (release.visibility, HIDDEN)
    ):
        raise ReleaseError(f"{MANIFEST} is damaged, or is that of {release.reference}")
    said = checksum(data)
    return DeclaredFolder(
        reference,
        "",
        [
            DeclaredFile(MANIFEST, len(data), row.sha256),
            DeclaredFile(CHECKSUM, len(said), digest(said)),
            *(DeclaredFile(file.path, file.size, file.sha256) for file in release.files),
        ],
    )


def _put_files(connection: Connection, release: int, folder: DeclaredFolder) -> bool:
    """Whether they stood there otherwise."""
    own = files.c.release_id == release, files.c.part == ""
    there = {(row.path, row.sha256, row.size) for row in connection.execute(select(files).where(*own))}
    wanted = {(f"{folder.path}/{file.path}", file.sha256, file.size) for file in folder.files}
    if there == wanted:
        return False
    connection.execute(delete(files).where(*own))
    rows = [
        {"path": path, "release_id": release, "part": "", "sha256": sha256, "size": size}
        for path, sha256, size in sorted(wanted)
    ]
    connection.execute(insert(files), rows)
    return True


def collect(settings: Settings) -> int:
    """Remove the blobs that no release has, and no upload that goes on; how many. To be called where one is `alone`."""
    database, blobs = Database(settings.database_url), blobs_of(settings)
    try:
        with database.reading() as connection:
            wanted = {row.sha256 for row in connection.execute(select(files.c.sha256).distinct())}
            wanted |= {row.sha256 for row in connection.execute(select(releases.c.sha256))}
            going_on = select(uploads.c.declared).where(uploads.c.state.in_((OPEN, CHECKING)))
            for row in connection.execute(going_on):
                wanted |= Declaration.from_bytes(row.declared).blobs.keys()
    finally:
        database.close()
    gone = [sha256 for sha256 in blobs.stored() if sha256 not in wanted]
    for sha256 in gone:
        blobs.remove(sha256)
    blobs.tidy()
    return len(gone)
