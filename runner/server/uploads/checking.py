"""Checks an upload before it is published, in an isolated process with limited time and memory.

An upload contains releases, and additions to existing releases: a yank (a withdrawal, with its reason) or a signature.
Its content is untrusted. The process can read the upload and the releases that the publisher may see.
`check_isolated` starts the process and returns its `UploadVerdict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from runner.base.errors import NewerFormatError, NotFoundError, ReleaseError, UsageError
from runner.documents.releases.bundle import Content
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import CHECKSUM, MANIFEST, Release, digest, read_checksum
from runner.documents.releases.reference import Kind, Reference, parse_reference
from runner.registry.check_notes import CheckNote
from runner.registry.release_errors import describe_error, lacks_memory
from runner.registry.transports.interface import AddResult, StoredFile
from runner.registry.transports.listing import read_small_file
from runner.registry.transports.registry import Registry
from runner.registry.transports.yanks import MAX_YANK_BYTES, YANKED, YANKED_FILE, parse_yanked_file
from runner.registry.verification.verify import find_release_problems
from runner.server.accounts.accounts import Viewer
from runner.server.competitions.rows import hash_run_rows
from runner.server.isolated_task import is_server_fault, run_with_check_limits
from runner.server.settings import Settings
from runner.server.store.blob_stores import open_blob_store
from runner.server.store.database import Database
from runner.server.uploads.declaration import Declaration, DeclaredFolder
from runner.server.uploads.uploads import MAX_PROBLEMS, Uploads
from runner.server.visible_releases import VisibleReleases


@dataclass(frozen=True)
class UploadVerdict:
    """The outcome of the check of one upload, which is refused if there are problems."""

    problems: Sequence[str] = ()
    row_hashes: Mapping[str, str] = field(default_factory=dict)
    """The hash of the rows (`hash_rows`) of each run that was played without labels, by the release's folder."""


class UploadTransport:
    """A `Transport` that reads the files of an upload, and all published files that the publisher may see."""

    address = "the upload"

    def __init__(self, declaration: Declaration, uploads: Uploads, upload_id: str, published: VisibleReleases) -> None:
        self._uploads, self._upload_id, self._published = uploads, upload_id, published
        self._files = {f"{folder.path}/{file.path}": file for folder in declaration.folders for file in folder.files}

    def list_files(self, prefix: str = "") -> Iterator[StoredFile]:
        yield from (StoredFile(path, file.size) for path, file in self._files.items() if path.startswith(prefix))
        yield from (stored for stored in self._published.list_files(prefix) if stored.path not in self._files)

    def open(self, path: str) -> IO[bytes]:
        file = self._files.get(path)
        return self._published.open(path) if file is None else self._uploads.open_blob(self._upload_id, file.sha256)

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> AddResult:  # noqa: ARG002
        raise UsageError("an upload that is being checked is read-only; publish with `nip-run publish --to URL`")

    def close(self) -> None:
        """Do nothing: no file or connection stays open."""


def check_isolated(settings: Settings, viewer: Viewer, upload_id: str, declaration: Declaration) -> UploadVerdict:
    """Check an upload in an isolated process; if the check exceeds its limits, return a verdict with this problem.

    Raises:
        IsolatedTaskError: the server failed, and the upload may be fine.
    """
    try:
        verdict = run_with_check_limits(settings, _check, viewer, upload_id, declaration.to_bytes())
    except ReleaseError as error:
        return UploadVerdict([str(error)])
    return UploadVerdict(**verdict)


# Functions that run in the isolated process


def _check(settings: Settings, _: Path, viewer: Viewer, upload_id: str, declared: bytes) -> UploadVerdict:
    """Check an upload; `declared` is its declaration as bytes."""
    database, blobs = Database(settings.database_url), open_blob_store(settings)
    declaration, uploads = Declaration.from_bytes(declared), Uploads(settings, database, blobs)
    incoming = UploadTransport(declaration, uploads, upload_id, VisibleReleases(database, blobs, viewer))
    problems: list[str] = []
    row_hashes: dict[str, str] = {}
    registry = Registry(incoming, settings.limits)
    for folder in declaration.folders:
        try:
            if folder.part == "":
                findings = _release_findings(registry, incoming, folder, settings)
                problems += (_prefix_with_release(folder, line) for line in findings if not isinstance(line, CheckNote))
                row_hash = hash_run_rows(incoming, folder.path) if folder.reference.kind == Kind.RUN else None
                if row_hash is not None:
                    row_hashes[folder.path] = row_hash
            else:
                problems += (
                    _prefix_with_release(folder, line) for line in _addition_problems(registry, incoming, folder)
                )
        except Exception as error:
            if is_server_fault(error) or lacks_memory(error):
                raise  # the caller handles faults of the server and the memory limit
            problems.append(f"{folder.path}: {describe_error(error)}")
        if len(problems) >= MAX_PROBLEMS:
            break
    return UploadVerdict(problems[:MAX_PROBLEMS], row_hashes)


def _prefix_with_release(folder: DeclaredFolder, line: str) -> str:
    """Return a problem with its release as a prefix, because the problems of all releases are in one list."""
    has_prefix = line.startswith((folder.path, folder.reference.folder, str(folder.reference)))
    return line if has_prefix else f"{folder.path}: {line}"


def _release_findings(
    registry: Registry, incoming: UploadTransport, folder: DeclaredFolder, settings: Settings
) -> Iterator[str]:
    """Yield the problems of a release, and notes (`CheckNote`), which do not prevent its publication."""
    data = read_small_file(incoming.open(f"{folder.path}/{MANIFEST}"), MANIFEST, MAX_MANIFEST)
    expected_hash = read_checksum(read_small_file(incoming.open(f"{folder.path}/{CHECKSUM}"), CHECKSUM, 1_000))
    if digest(data) != expected_hash:
        yield f"{CHECKSUM} is not the hash of {MANIFEST}; publish the release again"
        return
    try:
        release = Release.from_bytes(data, settings.limits)
    except (ReleaseError, NewerFormatError) as error:
        yield f"{folder.path}: {error}"
        return
    if release.reference != folder.reference:
        yield f"{MANIFEST} names another release, {release.reference}; publish the release again"
        return
    manifest_files = {file.path: (file.sha256, file.size) for file in release.files}
    sent_files = {file.path: (file.sha256, file.size) for file in folder.files if file.path not in (MANIFEST, CHECKSUM)}
    for path in sorted(manifest_files.keys() ^ sent_files.keys()):
        problem = "is missing from the upload" if path in manifest_files else "is not in the manifest"
        yield f"{path} {problem}; publish the release again"
    shared_paths = manifest_files.keys() & sent_files.keys()
    for path in sorted(path for path in shared_paths if manifest_files[path] != sent_files[path]):
        yield f"{path} has another hash or size than in the manifest; publish the release again"
    if manifest_files == sent_files:
        yield from _link_problems(incoming, release)
        yield from find_release_problems(registry, registry.find(folder.reference))


def _link_problems(incoming: UploadTransport, release: Release) -> Iterator[str]:
    """Yield problems with links to releases on this server or in the upload: a wrong hash, or a private target.

    Links to other releases are allowed, because these may be in another registry, or be private releases of others.
    """
    for link in release.links:
        target = None if link.release is None else parse_reference(link.release)
        if not isinstance(target, Reference) or target.version is None:
            continue
        try:
            sha256 = read_checksum(read_small_file(incoming.open(f"{target.folder}/{CHECKSUM}"), CHECKSUM, 1_000))
            manifest = read_small_file(incoming.open(f"{target.folder}/{MANIFEST}"), MANIFEST, MAX_MANIFEST)
        except NotFoundError:
            continue
        if link.sha256 not in (None, sha256):
            yield (
                f"{release.reference}: the link {link.role} to {target} has another hash than {target} on this server; "
                "install the release from this server, then publish again"
            )
        elif release.visibility == "public" and Release.from_bytes(manifest).visibility == "private":
            yield (
                f"{release.reference} is public, but its link {link.role} names {target}, which is private; publish it "
                f"with --private, or publish a public version of {target} first"
            )


def _addition_problems(registry: Registry, incoming: UploadTransport, folder: DeclaredFolder) -> Iterator[str]:
    """Yield problems with the yank or the signature of a release."""
    try:
        registry.read_manifest(registry.find(folder.reference))
    except (NotFoundError, ReleaseError) as error:
        yield str(error)
        return
    if folder.part == YANKED:
        parse_yanked_file(read_small_file(incoming.open(f"{folder.path}/{YANKED_FILE}"), YANKED_FILE, MAX_YANK_BYTES))
