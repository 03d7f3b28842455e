"""Imports releases that `nip-run publish --to DIR` wrote into the folder of a server, for `nip-run serve --import`.

A server shows only imported releases, so `nip-run serve` calls `check_imported` before it starts.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO

from sqlalchemy import select

from runner.base.errors import NewerFormatError, ReleaseError, UsageError
from runner.base.text import counted, path_argument
from runner.documents.releases.bundle import PIECE_BYTES
from runner.documents.releases.manifest import Release, digest
from runner.registry.transports.folder import FolderTransport
from runner.registry.transports.listing import SIGNATURE_FILE, SIGNATURE_FOLDER
from runner.registry.transports.registry import Registry, ReleaseEntry
from runner.registry.transports.yanks import YANKED, YANKED_FILE, format_yanked_file
from runner.server.accounts.accounts import add_account, find_account_id, viewer_of_account
from runner.server.service import Service
from runner.server.settings import Settings
from runner.server.store.schema import accounts, releases
from runner.server.uploads.declaration import Declaration, DeclaredFile, DeclaredFolder
from runner.server.uploads.uploads import PUBLISHED

StoredRelease = tuple[ReleaseEntry, Release, bytes]
"""A release in the folder: its entry, its parsed manifest, and the bytes of the manifest."""


@dataclass
class ImportResult:
    """The outcome of an import."""

    releases: int = 0
    problems: list[str] = field(default_factory=list)


def check_imported(server: Service) -> None:
    """Check that the server has imported all releases in its folder.

    Raises:
        UsageError: some releases are not imported; the message has the command that imports them.
    """
    folder = server.settings.folder
    with Registry(FolderTransport(str(folder))) as registry:
        missing = _find_missing(server, registry)
    if missing:
        raise UsageError(
            f"{folder} has {counted(len(missing), 'release')} from `publish --to` that the server has not imported, "
            f"such as {missing[0].reference}; run `nip-run serve {shlex.quote(path_argument(folder))} --import`, or "
            "serve another folder"
        )


def import_folder(settings: Settings, report: Callable[[str], None]) -> ImportResult:
    """Check the releases in a server's folder, and publish those without problems on the server.

    The import creates an account for each owner who has none, and leaves the releases in the folder unchanged. It calls
    `report` with each problem. Call this function only while no server uses the folder.
    """
    server, result = Service.open(replace(settings, account_bytes=0)), ImportResult()
    try:
        with Registry(FolderTransport(str(settings.folder)), settings.limits) as registry:
            for group in _publication_groups(registry, _find_missing(server, registry), result.problems):
                try:
                    _publish_group(server, registry, group)
                    result.releases += len(group)
                except (ReleaseError, NewerFormatError, UsageError, PermissionError) as error:
                    problems = [str(error), *getattr(error, "__notes__", ())]
                    result.problems.append(f"{group[-1][0].reference}: {'; '.join(problems)}")
        for problem in result.problems:
            report(problem)
    finally:
        server.publishing.close()
        server.database.close()
    return result


def _find_missing(server: Service, registry: Registry) -> list[ReleaseEntry]:
    """Return the releases in the folder that the server's database does not have."""
    names = (releases.c.kind, releases.c.owner, releases.c.name, releases.c.version)
    with server.database.reading() as connection:
        folders = {"/".join(row) for row in connection.execute(select(*names))}
    return [entry for entry in registry.entries() if entry.reference.folder not in folders]


def _publication_groups(
    registry: Registry, entries: Sequence[ReleaseEntry], problems: list[str]
) -> Iterator[list[StoredRelease]]:
    """Yield lists of releases to publish together: a training run, after its parts and models, or a single release.

    A release that cannot be read is left out, and a message about it is added to `problems`.
    """
    releases_by_name: dict[str, StoredRelease] = {}
    for entry in entries:
        try:
            releases_by_name[str(entry.reference)] = entry, *registry.read_manifest(entry)
        except (ReleaseError, NewerFormatError) as error:
            problems.append(str(error))
    for _, release, _ in [*releases_by_name.values()]:
        names = [link.release for link in release.links if link.release and link.role in ("part", "output")]
        # A run may name releases of other owners as its parts, but it cannot be published together with them.
        parts = [
            name for name in names if name in releases_by_name and releases_by_name[name][1].owner == release.owner
        ]
        if parts and str(release.reference) in releases_by_name:  # another training run may have this one as its part
            yield [releases_by_name.pop(name) for name in dict.fromkeys((*parts, str(release.reference)))]
    yield from ([stored_release] for stored_release in releases_by_name.values())


def _publish_group(server: Service, registry: Registry, group: Sequence[StoredRelease]) -> None:
    """Publish releases of one owner as an upload, which the server checks like any other.

    Raises:
        ReleaseError: the check refuses the releases.
    """
    owner = group[-1][0].reference.owner
    with server.database.writing() as connection:
        if connection.execute(select(accounts.c.id).where(accounts.c.name == owner)).scalar() is None:
            add_account(connection, owner, time.time())
        account_id = find_account_id(connection, owner)
        viewer = viewer_of_account(connection, account_id)
    sources: dict[str, Callable[[], IO[bytes]]] = {}
    folders = []
    for entry, release, manifest in group:
        for folder in (DeclaredFolder.from_manifest(release, manifest), *_additions(registry, entry)):
            folders.append(folder)
            for file in folder.files:
                path = f"{folder.part}/{file.path}" if folder.part else file.path
                sources.setdefault(file.sha256, partial(registry.open, entry, path))
    uploads = server.publishing.uploads
    upload = uploads.declare(viewer, Declaration(folders))
    for sha256, (_, received) in upload.missing.items():
        with sources[sha256]() as source, closing(uploads.open_writer(viewer, upload.id, sha256, received)) as writer:
            source.seek(received)
            while piece := source.read(PIECE_BYTES):
                writer.write(piece)
            writer.finish()
    server.publishing.commit(uploads.find(viewer, upload.id))
    server.publishing.check(upload.id, account_id)
    upload = uploads.find(viewer, upload.id)
    if upload.state != PUBLISHED:
        raise ReleaseError("the server refused the release; publish a corrected version").with_notes(upload.problems)


def _additions(registry: Registry, entry: ReleaseEntry) -> Iterator[DeclaredFolder]:
    """Yield the folders of a release's yank and signature, if it has them."""
    if entry.yanked is not None:
        yield _folder_of_file(entry, YANKED, YANKED_FILE, format_yanked_file(entry.yanked))
    if entry.signed:
        yield _folder_of_file(entry, SIGNATURE_FOLDER, SIGNATURE_FILE, registry.read_signature(entry))


def _folder_of_file(entry: ReleaseEntry, part: str, name: str, data: bytes) -> DeclaredFolder:
    return DeclaredFolder(entry.reference, part, [DeclaredFile(name, len(data), digest(data))])
