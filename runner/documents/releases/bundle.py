"""A release with its files: built for publishing, read from a registry, unpacked into a folder.

The registry uses it for every release.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from runner.base.errors import ReleaseError, UsageError, os_errors_as
from runner.base.storage.atomic_files import fsync_dir
from runner.base.storage.safe_files import create_only, make_folder, make_folders, open_to_read, remove_folder
from runner.documents.releases.limits import DEFAULT_LIMITS, Limits
from runner.documents.releases.manifest import CHECKSUM, MANIFEST, FileEntry, Release, checksum, digest, file_problems

Content = bytes | Path
"""The bytes of a file, or the path of the file that has them."""

PIECE_BYTES = 1 << 16
"""The number of bytes to read from a file at a time."""

_MEDIA_TYPES: Mapping[str, str] = {
    ".json": "application/json", ".jsonl": "application/jsonl", ".yaml": "application/yaml", ".md": "text/markdown",
    ".jinja": "text/plain", ".txt": "text/plain", ".lock": "text/plain", ".csv": "text/csv",
    ".parquet": "application/vnd.apache.parquet",
}  # fmt: skip


def media_type(path: str) -> str:
    """Return the media type of a file by its suffix; `application/octet-stream` if the suffix is unknown."""
    return _MEDIA_TYPES.get(Path(path).suffix, "application/octet-stream")


def open_content(content: Content) -> IO[bytes]:
    """Open a file's content for reading.

    Raises:
        OSError: the file cannot be read, or is not a regular file.
    """
    return io.BytesIO(content) if isinstance(content, bytes) else open_to_read(content)


@dataclass(frozen=True)
class Bundle:
    """A release with the content of each of its files, by path."""

    release: Release
    contents: Mapping[str, Content]

    @classmethod
    def of(cls, release: Release, contents: Mapping[str, Content], limits: Limits = DEFAULT_LIMITS) -> Bundle:
        """Return the bundle of a release and its files, which are read and hashed to add their entries to the release.

        Raises:
            ReleaseError: a file cannot be read or is not allowed in a release, or the manifest would be invalid.
        """
        entries = tuple(_hash_entry(path, contents[path]) for path in sorted(contents))
        for message in file_problems(entries, limits):
            raise ReleaseError(f"{release.reference}: {message}")
        bundle = cls(replace(release, files=entries), dict(contents))
        Release.from_bytes(bundle.manifest, limits)  # an unreadable release must not occupy a version
        return bundle

    @property
    def manifest(self) -> bytes:
        return self.release.to_bytes()

    @property
    def sha256(self) -> str:
        """The identity of the release: the SHA-256 of its manifest's bytes."""
        return digest(self.manifest)

    def files(self) -> Iterator[tuple[str, Content]]:
        """Yield paths and contents in the order of writing: the files, then the manifest, and the checksum last."""
        for entry in self.release.files:
            yield entry.path, self.contents[entry.path]
        yield MANIFEST, self.manifest
        yield CHECKSUM, checksum(self.manifest)


def _hash_entry(path: str, content: Content) -> FileEntry:
    with os_errors_as(ReleaseError, f"cannot read {content!s}"), open_content(content) as file:
        sha256, size = hashlib.sha256(), 0
        while piece := file.read(PIECE_BYTES):
            sha256.update(piece)
            size += len(piece)
    return FileEntry(path=path, size=size, sha256=sha256.hexdigest(), media_type=media_type(path))


def entries_by_path(files: Iterable[tuple[str, Content]]) -> dict[str, FileEntry]:
    """Return the entries of a release's files by path, from the manifest among `files`; empty if there is none.

    A file may change after it was hashed, so code that copies a file checks it again with `check_content`.
    """
    manifests = [content for path, content in files if path == MANIFEST and isinstance(content, bytes)]
    return {entry.path: entry for manifest in manifests for entry in Release.from_bytes(manifest).files}


def check_content(source: IO[bytes], entry: FileEntry, copy_to: Callable[[bytes], object] = lambda _: None) -> None:
    """Check the size and hash of a release's file against its entry in the manifest, and pass each piece to `copy_to`.

    At most `entry.size` bytes are copied, even if the source is longer.

    Raises:
        ReleaseError: the file cannot be read, or its size or hash differs from the manifest.
    """
    sha256, size = hashlib.sha256(), 0
    while size <= entry.size and (piece := _read_piece(source, min(PIECE_BYTES, entry.size - size + 1), entry.path)):
        size += len(piece)
        if size > entry.size:
            raise ReleaseError(f"{entry.path} is damaged: it is longer than the {entry.size:,} bytes in {MANIFEST}")
        sha256.update(piece)
        copy_to(piece)
    if size < entry.size:
        raise ReleaseError(f"{entry.path} is damaged: it has {size:,} of {entry.size:,} bytes")
    if sha256.hexdigest() != entry.sha256:
        raise ReleaseError(f"{entry.path} is damaged: its SHA-256 differs from the one in {MANIFEST}")


def _read_piece(source: IO[bytes], size: int, path: str) -> bytes:
    with os_errors_as(ReleaseError, f"cannot read {path}"):
        return source.read(size)


def unpack(
    release: Release,
    manifest: bytes,
    open_file: Callable[[str], IO[bytes]],
    target: Path,
    *,
    extra_files: Mapping[str, bytes] | None = None,
) -> None:
    """Write a complete release into a new or empty folder, or nothing if an error occurs.

    Only files in the manifest are read, with `open_file`. They are written as regular files, after `extra_files`. The
    release is written to a temporary folder next to `target`, which is renamed when everything is checked.

    Raises:
        UsageError: the folder is not empty.
        ReleaseError: a file is missing or damaged, or the folder cannot be written.
    """
    with staging_folder(target, "new") as staging:
        make_folder(staging)
        for path, data in {**(extra_files or {}), MANIFEST: manifest, CHECKSUM: checksum(manifest)}.items():
            with _create_file(staging / path) as file:
                file.write(data)
        for entry in release.files:
            _unpack_file(entry, open_file, staging)
        for folder in {staging, *((staging / entry.path).parent for entry in release.files)}:
            fsync_dir(folder)


@contextmanager
def staging_folder(target: Path, ending: str) -> Iterator[Path]:
    """Yield the path of a temporary folder next to `target`, and rename the folder to `target` if the block succeeds.

    The block must create the folder. Its name ends with `.{ending}`.

    Raises:
        UsageError: the target exists and is not empty.
        ReleaseError: the target cannot be written.
    """
    target = target.absolute()
    _check_free(target)
    staging = target.with_name(f".nip-run-{secrets.token_hex(8)}.{ending}")
    try:
        make_folders(target.parent)
        yield staging
        staging.rename(target)  # replaces an empty folder, and nothing else
        fsync_dir(target.parent)
    except OSError as error:
        raise _write_error(target, error) from error
    finally:
        with suppress(OSError):
            remove_folder(staging)


def _check_free(target: Path) -> None:
    with os_errors_as(ReleaseError, f"cannot read {target}"):
        is_free = not target.is_symlink() and (not target.exists() or (target.is_dir() and not any(target.iterdir())))
    if not is_free:
        raise _exists_error(target)


def _exists_error(target: Path) -> UsageError:
    return UsageError(f"{target} already exists; name a new or an empty folder")


def _write_error(target: Path, error: OSError) -> UsageError | ReleaseError:
    """Return the error for a failed write or rename; another process may have created the target in the meantime."""
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) and target.exists():
        return _exists_error(target)
    return ReleaseError(f"cannot write {target}: {error.strerror}")


def _unpack_file(entry: FileEntry, open_file: Callable[[str], IO[bytes]], root: Path) -> None:
    folder = root
    for name in entry.path.split("/")[:-1]:
        folder /= name
        make_folder(folder)
    with open_file(entry.path) as source, _create_file(root / entry.path) as file:
        check_content(source, entry, copy_to=file.write)


@contextmanager
def _create_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that must not exist yet, and flush it to the disk if the block succeeds."""
    with os.fdopen(create_only(path, os.O_WRONLY), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
