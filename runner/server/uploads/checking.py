"""What is checked of an upload before anybody sees it, in a process of its own with bounded time and memory.

Everything in it is a stranger's. The process has what was sent, and what the server shows to whoever sent it; it says
what is wrong, or what the server vouches for. However it ends, the server goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from sqlalchemy.exc import SQLAlchemyError

from runner.base.errors import NewerFormatError, NotPublished, ReleaseError, RunError, UsageError
from runner.documents.releases.bundle import Content
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import CHECKSUM, MANIFEST, Release, digest, read_checksum
from runner.documents.releases.reference import Kind, Reference, parse
from runner.registry.check_notes import CheckNote
from runner.registry.skipped_releases import in_words, lacks_memory
from runner.registry.transports.interface import Added, Stored
from runner.registry.transports.listing import small_file
from runner.registry.transports.registry import Registry
from runner.registry.transports.yanks import MAX_BYTES, YANKED, YANKED_FILE, read_yanked
from runner.registry.verification.verify import wrong_in_release
from runner.server.accounts.accounts import Viewer
from runner.server.competitions.rows import rows_of_run
from runner.server.isolated_task import How, TaskLimits, is_server_fault, run_isolated
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.uploads.declaration import Declaration, DeclaredFolder
from runner.server.uploads.pieces import UploadPieces
from runner.server.uploads.uploads import Uploads
from runner.server.visible_tree import ServerTree

MOST_PROBLEMS = 50
RECOMPUTED, KEPT = "recomputed", "self-reported"
"""Whether the server has computed a run's numbers again from its journal; of what is no run nothing is computed."""
MOST_SAID = 4 << 20
"""Bytes of a verdict."""
EXPLAINED_BY_TIME = "it takes longer to check than this server takes for one publish"


@dataclass(frozen=True)
class UploadVerdict:
    """What a check came to."""

    problems: Sequence[str] = ()
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of each release that may be seen, what is to be said of it."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """Of each run that was played without labels, the hash of its datapoints: see `competition_rows`."""

    @property
    def is_good(self) -> bool:
        return not self.problems


class UploadTransport:
    """See `Transport`: an upload as a registry would have it, over what the publisher can see there already."""

    where = "the upload"

    def __init__(self, declaration: Declaration, uploads: Uploads, upload: str, there: ServerTree) -> None:
        self._uploads, self._upload, self._there = uploads, upload, there
        self._files = {f"{one.path}/{file.path}": file for one in declaration.folders for file in one.files}

    def stored(self, prefix: str = "") -> Iterator[Stored]:
        yield from (Stored(path, file.size) for path, file in self._files.items() if path.startswith(prefix))
        yield from (stored for stored in self._there.stored(prefix) if stored.path not in self._files)

    def open(self, path: str) -> IO[bytes]:
        file = self._files.get(path)
        return self._there.open(path) if file is None else self._uploads.open_blob(self._upload, file.sha256)

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> Added:  # noqa: ARG002
        raise UsageError("nothing is added to an upload here")

    def close(self) -> None:
        """Nothing is held open."""


def check(incoming: UploadTransport, declaration: Declaration, settings: Settings) -> UploadVerdict:
    """Everything that is wrong with an upload; in this process."""
    problems: list[str] = []
    notes: dict[str, Sequence[str]] = {}
    rows: dict[str, str] = {}
    registry = Registry(incoming, settings.limits)
    for folder in declaration.folders:
        try:
            if folder.part == "":
                found = list(_wrong_release(registry, incoming, folder, settings))
                notes[folder.path] = [line for line in found if isinstance(line, CheckNote)]
                problems += (_named(folder, line) for line in found if not isinstance(line, CheckNote))
                if folder.reference.kind == Kind.RUN and (played := rows_of_run(incoming, folder.path)) is not None:
                    rows[folder.path] = played
            else:
                problems += (_named(folder, line) for line in _wrong_addition(registry, incoming, folder))
        except SQLAlchemyError:
            raise  # it is the server's own
        except Exception as error:
            if is_server_fault(error) or lacks_memory(error):
                raise
            problems.append(f"{folder.path}: {in_words(error)}")
        if len(problems) >= MOST_PROBLEMS:
            break
    return UploadVerdict(problems[:MOST_PROBLEMS], notes, rows)


def _named(folder: DeclaredFolder, line: str) -> str:
    """What is wrong with a release, which says whose it is: it is told among what is wrong with others."""
    says_it = line.startswith((folder.path, folder.reference.folder, str(folder.reference)))
    return line if says_it else f"{folder.path}: {line}"


def _wrong_release(
    registry: Registry, incoming: UploadTransport, folder: DeclaredFolder, settings: Settings
) -> Iterator[str]:
    data = small_file(incoming.open(f"{folder.path}/{MANIFEST}"), MANIFEST, MAX_MANIFEST)
    said = read_checksum(small_file(incoming.open(f"{folder.path}/{CHECKSUM}"), CHECKSUM, 1_000))
    if digest(data) != said:
        yield f"{folder.path}: {CHECKSUM} is not the hash of {MANIFEST}"
        return
    try:
        release = Release.from_bytes(data, settings.limits)
    except (ReleaseError, NewerFormatError) as error:
        yield f"{folder.path}: {error}"
        return
    if release.reference != folder.reference:
        yield f"{folder.path}: it says that it is {release.reference}"
        return
    listed = {file.path: (file.sha256, file.size) for file in release.files}
    sent = {file.path: (file.sha256, file.size) for file in folder.files if file.path not in (MANIFEST, CHECKSUM)}
    for path in sorted(listed.keys() ^ sent.keys()):
        yield f"{folder.path}: {path} is {'not sent' if path in listed else 'no file of the release'}"
    for path in sorted(path for path in listed.keys() & sent.keys() if listed[path] != sent[path]):
        yield f"{folder.path}: {path} is sent as another file than the manifest lists"
    if listed == sent:
        yield from _wrong_links(incoming, release)
        yield from wrong_in_release(registry, registry.find(folder.reference))


def _wrong_links(incoming: UploadTransport, release: Release) -> Iterator[str]:
    """What a release says of others that are here, or come with it, and are otherwise, or not for all who see it.

    Of one that is not here nothing is said: it may be another registry's, or somebody else's own.
    """
    for link in release.links:
        named = None if link.release is None else parse(link.release)
        if not isinstance(named, Reference) or named.version is None:
            continue
        try:
            there = read_checksum(small_file(incoming.open(f"{named.folder}/{CHECKSUM}"), CHECKSUM, 1_000))
            manifest = small_file(incoming.open(f"{named.folder}/{MANIFEST}"), MANIFEST, MAX_MANIFEST)
        except NotPublished:
            continue
        if link.sha256 not in (None, there):
            yield f"{release.reference}: {named} is another here than the one that it names as {link.role}"
        elif release.visibility == "public" and Release.from_bytes(manifest).visibility == "private":
            yield f"{release.reference} is public, and {named}, which it names as {link.role}, is private"


def _wrong_addition(registry: Registry, incoming: UploadTransport, folder: DeclaredFolder) -> Iterator[str]:
    """What is wrong with the yank or the signature of a release."""
    try:
        registry.read(registry.find(folder.reference))
    except (NotPublished, ReleaseError) as error:
        yield str(error)
        return
    if folder.part == YANKED:
        read_yanked(small_file(incoming.open(f"{folder.path}/{YANKED_FILE}"), YANKED_FILE, MAX_BYTES))


# The process


class CheckError(RunError):
    """The server could not check it, for no reason of the upload's own."""


def check_isolated(settings: Settings, viewer: Viewer, upload: str, declaration: Declaration) -> UploadVerdict:
    """`check`, in a process that is ended where it takes too long or too much.

    Raises:
        CheckError: the process ended otherwise, which is no word on the upload.
    """
    within = UploadPieces(settings.incoming).folder(upload)  # what a killed server leaves is removed with the upload
    try:
        ending = run_isolated(
            TaskLimits.of(settings), within, _check, settings, viewer, upload, declaration.to_bytes(), most=MOST_SAID
        )
    except OSError as error:
        raise CheckError(f"it cannot be checked now: {error}") from error
    match ending.how:
        case How.ANSWERED:
            return UploadVerdict(**ending.answer)
        case How.TOO_LONG:
            return UploadVerdict([EXPLAINED_BY_TIME])
        case How.TOO_MUCH:
            return UploadVerdict([f"its check takes more than {settings.check_bytes >> 20:,} MiB of memory"])
        case How.DIED:
            raise CheckError(f"its check {ending.why}")


def _check(_: Path, settings: Settings, viewer: Viewer, upload: str, declared: bytes) -> dict[str, Any]:
    """The fields of the `UploadVerdict`; in a process of its own."""
    from runner.server.store.blob_stores import blobs_of

    database, blobs = Database(settings.database_url), blobs_of(settings)
    declaration = Declaration.from_bytes(declared)
    incoming = UploadTransport(
        declaration, Uploads(settings, database, blobs), upload, ServerTree(database, blobs, viewer)
    )
    found = check(incoming, declaration, settings)
    return {"problems": list(found.problems), "notes": dict(found.notes), "rows": dict(found.rows)}
