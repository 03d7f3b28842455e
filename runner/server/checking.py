"""What is checked of an upload before anybody sees it, in a process of its own with bounded time and memory.

Everything in it is a stranger's. The process has what was sent, and what the server shows to whoever sent it; it says
what is wrong, or what the server vouches for. However it ends, the server goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import IO

import orjson

from runner.errors import NewerFormatError, NotPublished, ReleaseError, UsageError
from runner.registry.differences import Note
from runner.registry.left_out import in_words
from runner.registry.verify import wrong_in_release
from runner.releases.bundle import Content
from runner.releases.limits import MAX_MANIFEST
from runner.releases.manifest import CHECKSUM, MANIFEST, Release, digest, read_checksum
from runner.releases.reference import Kind
from runner.server.accounts import Viewer
from runner.server.competition_rows import rows_of_run
from runner.server.database import Database
from runner.server.declared import Declaration, DeclaredFolder
from runner.server.settings import Settings
from runner.server.tree import ServerTree
from runner.server.uploads import Uploads
from runner.storage.atomic import atomic_write
from runner.storage.files import read_bounded
from runner.transports.base import Added, Stored
from runner.transports.listing import small_file
from runner.transports.registry import Registry
from runner.transports.yanks import MAX_BYTES, YANKED, YANKED_FILE, read_yanked

MOST_PROBLEMS = 50
RECOMPUTED, KEPT = "recomputed", "self-reported"
"""Whether the server has computed a run's numbers again from its journal; of what is no run nothing is computed."""
EXPLAINED_BY_TIME = "it takes longer to check than this server takes for one publish"


@dataclass(frozen=True)
class Verdict:
    """What a check came to."""

    problems: Sequence[str] = ()
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of each release that may be seen, what is to be said of it."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """Of each run that was played without labels, the hash of its datapoints: see `competition_rows`."""

    @property
    def is_good(self) -> bool:
        return not self.problems


class Incoming:
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


def check(incoming: Incoming, declaration: Declaration, settings: Settings) -> Verdict:
    """Everything that is wrong with an upload; in this process."""
    problems: list[str] = []
    notes: dict[str, Sequence[str]] = {}
    rows: dict[str, str] = {}
    registry = Registry(incoming, settings.limits)
    for folder in declaration.folders:
        try:
            if folder.part == "":
                found = list(_wrong_release(registry, incoming, folder, settings))
                notes[folder.path] = [line for line in found if isinstance(line, Note)]
                problems += (line for line in found if not isinstance(line, Note))
                if folder.reference.kind == Kind.RUN and (played := rows_of_run(incoming, folder.path)) is not None:
                    rows[folder.path] = played
            else:
                problems += _wrong_addition(registry, incoming, folder)
        except Exception as error:  # noqa: BLE001 - whatever a stranger's bytes set off is theirs
            problems.append(f"{folder.path}: {in_words(error)}")
        if len(problems) >= MOST_PROBLEMS:
            break
    return Verdict(problems[:MOST_PROBLEMS], notes, rows)


def _wrong_release(registry: Registry, incoming: Incoming, folder: DeclaredFolder, settings: Settings) -> Iterator[str]:
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
        yield from wrong_in_release(registry, registry.find(folder.reference))


def _wrong_addition(registry: Registry, incoming: Incoming, folder: DeclaredFolder) -> Iterator[str]:
    """What is wrong with the yank or the signature of a release."""
    try:
        registry.read(registry.find(folder.reference))
    except (NotPublished, ReleaseError) as error:
        yield str(error)
        return
    if folder.part == YANKED:
        read_yanked(small_file(incoming.open(f"{folder.path}/{YANKED_FILE}"), YANKED_FILE, MAX_BYTES))


# The process


def context() -> ForkServerContext:
    """Processes that begin with all that a check imports, and with nothing that a server has open."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload([__name__, "runner.registry.verify", "duckdb"])
    return made


def checked_apart(settings: Settings, viewer: Viewer, upload: str, declaration: Declaration) -> Verdict:
    """`check`, in a process that is ended where it takes too long or too much."""
    result = settings.incoming / upload / "verdict.json"
    result.unlink(missing_ok=True)
    process = context().Process(
        target=_run, args=(settings, viewer, upload, declaration.to_bytes(), result), daemon=True
    )
    process.start()
    process.join(settings.check_seconds)
    if process.is_alive():
        process.kill()
        process.join()
        return Verdict([EXPLAINED_BY_TIME])
    with suppress(OSError, ReleaseError, ValueError):
        said = orjson.loads(read_bounded(result, 4 << 20))
        return Verdict(said["problems"], said["notes"], said["rows"])
    if process.exitcode == -signal.SIGXCPU:
        return Verdict([EXPLAINED_BY_TIME])
    return Verdict([f"its check ended with {process.exitcode}; it may take more memory than this server gives"])


def _run(settings: Settings, viewer: Viewer, upload: str, declared: bytes, result: Path) -> None:
    os.nice(10)
    seconds = int(settings.check_seconds)
    resource.setrlimit(resource.RLIMIT_AS, (settings.check_bytes, settings.check_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from runner.server.stores import blobs_of

    database, blobs = Database(settings.database_url), blobs_of(settings)
    declaration = Declaration.from_bytes(declared)
    incoming = Incoming(declaration, Uploads(settings, database, blobs), upload, ServerTree(database, blobs, viewer))
    found = check(incoming, declaration, settings)
    said = {"problems": list(found.problems), "notes": dict(found.notes), "rows": dict(found.rows)}
    atomic_write(result, orjson.dumps(said))
