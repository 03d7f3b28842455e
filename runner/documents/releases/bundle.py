"""A release with its files: made to be published, read from a registry, unpacked into a folder."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

from runner.base.errors import ReleaseError, UsageError
from runner.base.storage.atomic_files import fsync_dir
from runner.base.storage.safe_files import create_only, make_folder, make_folders, open_to_read, remove_folder
from runner.documents.releases.limits import USUAL, Limits
from runner.documents.releases.manifest import CHECKSUM, MANIFEST, FileEntry, Release, checksum, digest, wrong_files

Content = bytes | Path
"""What a file holds, or the file that holds it."""

PIECE = 1 << 16

_MEDIA_TYPES: Mapping[str, str] = {
    ".json": "application/json", ".jsonl": "application/jsonl", ".yaml": "application/yaml", ".md": "text/markdown",
    ".jinja": "text/plain", ".txt": "text/plain", ".lock": "text/plain", ".csv": "text/csv",
    ".parquet": "application/vnd.apache.parquet",
}  # fmt: skip


def media_type(path: str) -> str:
    """Of a file by its name; bytes of no known type where that says none."""
    return _MEDIA_TYPES.get(Path(path).suffix, "application/octet-stream")


def opened(content: Content) -> IO[bytes]:
    """A content to read from.

    Raises:
        OSError: its file cannot be read, or is no regular file.
    """
    return io.BytesIO(content) if isinstance(content, bytes) else open_to_read(content)


@dataclass(frozen=True)
class Bundle:
    """A release, and the content of each of its files by path."""

    release: Release
    contents: Mapping[str, Content]

    @classmethod
    def of(cls, release: Release, contents: Mapping[str, Content], limits: Limits = USUAL) -> Bundle:
        """A release with the entries of its files, which are read and hashed.

        Raises:
            ReleaseError: a file cannot be read, or is none that a release may have; or the manifest says what none may.
        """
        entries = tuple(_entry(path, contents[path]) for path in sorted(contents))
        for message in wrong_files(entries, limits):
            raise ReleaseError(f"{release.reference}: {message}")
        made = cls(replace(release, files=entries), dict(contents))
        Release.from_bytes(made.manifest, limits)  # what nobody could get must not take a name and version for ever
        return made

    @property
    def manifest(self) -> bytes:
        return self.release.to_bytes()

    @property
    def sha256(self) -> str:
        """The identity of the release, by the bytes of its manifest."""
        return digest(self.manifest)

    def files(self) -> Iterator[tuple[str, Content]]:
        """All that is written of it, in the order in which it is: its files, its manifest, and last its checksum."""
        for entry in self.release.files:
            yield entry.path, self.contents[entry.path]
        yield MANIFEST, self.manifest
        yield CHECKSUM, checksum(self.manifest)


def _entry(path: str, content: Content) -> FileEntry:
    try:
        with opened(content) as file:
            hashed, size = hashlib.sha256(), 0
            while piece := file.read(PIECE):
                hashed.update(piece)
                size += len(piece)
    except OSError as error:
        raise ReleaseError(f"cannot read {content!s}: {error.strerror}") from error
    return FileEntry(path=path, size=size, sha256=hashed.hexdigest(), media_type=media_type(path))


def pinned(files: Iterable[tuple[str, Content]]) -> dict[str, FileEntry]:
    """What the manifest among the files of a release says of the others, by path; nothing where none is among them.

    Between the hashing of a file and its copying it may have changed: whoever copies it asks `checked_copy` again.
    """
    manifests = [content for path, content in files if path == MANIFEST and isinstance(content, bytes)]
    return {entry.path: entry for manifest in manifests for entry in Release.from_bytes(manifest).files}


def checked_copy(source: IO[bytes], entry: FileEntry, write: Callable[[bytes], object]) -> None:
    """Hand a file of a release on, piece by piece, and see that it is what the manifest says.

    What is handed on is no more than the size there, whatever the source holds.

    Raises:
        ReleaseError: it is longer or shorter, or has other bytes; or it cannot be read.
    """
    hashed, size = hashlib.sha256(), 0
    while size <= entry.size and (piece := _read(source, min(PIECE, entry.size - size + 1), entry.path)):
        size += len(piece)
        if size > entry.size:
            raise ReleaseError(f"{entry.path} is damaged: it is longer than the {entry.size:,} bytes that it has")
        hashed.update(piece)
        write(piece)
    if size < entry.size:
        raise ReleaseError(f"{entry.path} is damaged: it has {size:,} of {entry.size:,} bytes")
    if hashed.hexdigest() != entry.sha256:
        raise ReleaseError(f"{entry.path} is damaged: its bytes are not those of its hash in {MANIFEST}")


def _read(source: IO[bytes], size: int, path: str) -> bytes:
    try:
        return source.read(size)
    except OSError as error:
        raise ReleaseError(f"cannot read {path}: {error.strerror or error}") from error


def unpack(
    release: Release,
    manifest: bytes,
    open_file: Callable[[str], IO[bytes]],
    target: Path,
    *,
    also: Mapping[str, bytes] | None = None,
) -> None:
    """Write a release into a folder that is not there yet, or is empty: all of it, or nothing.

    Only what the manifest names is read, through `open_file`, and written, as regular files; `also` are further files,
    written before any other. It is made beside its place, and moved there once all is checked.

    Raises:
        UsageError: the folder holds something.
        ReleaseError: a file is missing or damaged, or it cannot be written.
    """
    with beside_it(target, "new") as beside:
        make_folder(beside)
        for path, data in {**(also or {}), MANIFEST: manifest, CHECKSUM: checksum(manifest)}.items():
            _write(beside / path, partial(_hand, data))
        for entry in release.files:
            _unpack_file(entry, open_file, beside)
        for folder in {beside, *((beside / entry.path).parent for entry in release.files)}:
            fsync_dir(folder)


@contextmanager
def beside_it(target: Path, ending: str) -> Iterator[Path]:
    """A place beside a folder, to be made there; it becomes the folder once the block has ended well.

    Raises:
        UsageError: the folder holds something.
        ReleaseError: it cannot be written.
    """
    target = target.absolute()
    _check_free(target)
    beside = target.with_name(f".nip-run-{secrets.token_hex(8)}.{ending}")
    try:
        make_folders(target.parent)
        yield beside
        beside.rename(target)  # which takes the place of an empty folder, and of nothing else
        fsync_dir(target.parent)
    except OSError as error:
        raise _not_written(target, error) from error
    finally:
        with suppress(OSError):
            remove_folder(beside)


def _check_free(target: Path) -> None:
    try:
        is_free = not target.is_symlink() and (not target.exists() or (target.is_dir() and not any(target.iterdir())))
    except OSError as error:
        raise ReleaseError(f"cannot read {target}: {error.strerror}") from error
    if not is_free:
        raise _there(target)


def _there(target: Path) -> UsageError:
    return UsageError(f"{target} is there already; give a folder that is not, or an empty one")


def _not_written(target: Path, error: OSError) -> UsageError | ReleaseError:
    """Why a folder could not be moved to its place: somebody else's may have come there first."""
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) and target.exists():
        return _there(target)
    return ReleaseError(f"cannot write {target}: {error.strerror}")


def _unpack_file(entry: FileEntry, open_file: Callable[[str], IO[bytes]], root: Path) -> None:
    folder = root
    for name in entry.path.split("/")[:-1]:
        folder /= name
        make_folder(folder)
    with open_file(entry.path) as source:
        _write(root / entry.path, lambda write: checked_copy(source, entry, write))


def _hand(data: bytes, write: Callable[[bytes], object]) -> None:
    write(data)


def _write(path: Path, fill: Callable[[Callable[[bytes], object]], None]) -> None:
    with os.fdopen(create_only(path, os.O_WRONLY), "wb") as file:
        fill(file.write)
        file.flush()
        os.fsync(file.fileno())
