"""The transport for registries in folders on local or shared disks (`file:DIR`)."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from runner.base.errors import NotFoundError, ReleaseError, TakenError, UsageError, os_errors_as
from runner.base.storage.atomic_files import fsync_dir
from runner.base.storage.safe_files import create_only, make_folder, make_folders, open_below, remove_folder
from runner.documents.releases.bundle import PIECE_BYTES, Content, check_content, entries_by_path, open_content
from runner.documents.releases.manifest import FileEntry
from runner.documents.releases.paths import MAX_SEGMENTS
from runner.registry.transports.interface import AddResult, StoredFile
from runner.registry.transports.staging import INCOMING, remove_abandoned

MAX_DEPTH = 4 + MAX_SEGMENTS
"""Maximum number of names in the path of a file: 4 for the folder of the release, and the path inside the release."""


class FolderTransport:
    """A `Transport` for a folder. It writes a release to `INCOMING` on the same disk, and renames it when complete."""

    def __init__(self, folder: str) -> None:
        self._root = local_path(folder)

    @property
    def address(self) -> str:
        return f"file:{self._root}"

    def list_files(self, prefix: str = "") -> Iterator[StoredFile]:
        # Start at the last folder in the prefix. Names that begin with a dot do not belong to a registry.
        start = prefix.rpartition("/")[0]
        pending = [] if self._has_link(start) else [start]
        while pending:
            folder = pending.pop()
            for entry in _scan(self._root / folder):
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.name.startswith(".") or not (path.startswith(prefix) or prefix.startswith(f"{path}/")):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if path.count("/") + 1 < MAX_DEPTH:
                        pending.append(path)
                elif (size := _file_size(entry)) is not None:
                    yield StoredFile(path, size)

    def _has_link(self, path: str) -> bool:
        """Return whether a folder in a path is a symbolic link. Only the root of a registry may be a link."""
        names = [name for name in path.split("/") if name]
        return any((self._root / "/".join(names[:end])).is_symlink() for end in range(1, len(names) + 1))

    def open(self, path: str) -> IO[bytes]:
        target = self._root / path
        try:
            return open_below(self._root, _split_path(path))
        except FileNotFoundError as error:
            raise NotFoundError(f"{self.address} has no file {path}") from error
        except OSError as error:
            raise ReleaseError(f"cannot read {target}: {error.strerror}") from error

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> AddResult:  # noqa: ARG002
        added: list[str] = []
        for folder, files in folders.items():
            try:
                self._add(folder, files)
            except TakenError as error:
                error.added = tuple(added)
                raise
            added.append(folder)
        return AddResult()

    def _add(self, folder: str, files: Sequence[tuple[str, Content]]) -> None:
        target = self._root / folder
        entries = entries_by_path(files)
        is_renamed = False
        if self._root.is_file():
            raise ReleaseError(f"{self._root} cannot be a registry, because it is a file; name a folder")
        try:
            make_folders(self._root)
            mode = stat.S_IMODE(self._root.stat().st_mode)
            incoming = _make_folder_below(self._root, INCOMING, mode) / secrets.token_hex(8)
            try:
                new_folders = {_make_folder_below(incoming.parent, incoming.name, mode)}
                remove_abandoned(incoming.parent, now=incoming.stat().st_mtime)
                for path, content in files:
                    parent = _make_folder_below(incoming, "/".join(_split_path(path)[:-1]), mode)
                    new_folders.add(parent)
                    _write(incoming / path, content, entries.get(path), mode)
                for new_folder in new_folders:
                    fsync_dir(new_folder)
                parent = _make_folder_below(self._root, folder.rpartition("/")[0], mode)
                if os.path.lexists(target):
                    raise TakenError(f"{self.address} has {folder} already")
                incoming.rename(target)  # this fails if another publisher has created the target
                is_renamed = True
                fsync_dir(parent)
            finally:
                with suppress(OSError):
                    remove_folder(incoming)
        except OSError as error:
            if not is_renamed and os.path.lexists(target):
                raise TakenError(f"{self.address} has {folder} already") from error
            raise ReleaseError(f"cannot write {target}: {error.strerror}") from error

    def close(self) -> None:
        """Do nothing, because no file stays open."""


def _split_path(path: str) -> list[str]:
    """Split a path into its names.

    Raises:
        ReleaseError: a name is empty, `.` or `..`, or has a null character.
    """
    names = path.split("/")
    if any(name in ("", ".", "..") or "\0" in name for name in names):
        raise ReleaseError(f"{path!r} is not a path inside a registry")
    return names


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ReleaseError(f"cannot read {folder}: {error.strerror}") from error


def _file_size(entry: os.DirEntry[str]) -> int | None:
    """Return the size of a regular file in bytes; None for any other entry, or if another process has removed it."""
    try:
        return entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else None
    except FileNotFoundError:
        return None


def _make_folder_below(root: Path, path: str, mode: int) -> Path:
    """Create a folder below `root`, and its parents, with the permissions of the registry."""
    folder = root
    for name in _split_path(path) if path else ():
        parent, folder = folder, folder / name
        if not os.path.lexists(folder):
            make_folder(folder)
            with suppress(PermissionError):  # another publisher created it first
                folder.chmod(mode)
            fsync_dir(parent)
        make_folder(folder)
    return folder


def _write(path: Path, content: Content, entry: FileEntry | None, mode: int) -> None:
    """Write a file that everyone with access to the registry can read, and only its owner can change."""
    with os_errors_as(ReleaseError, f"cannot read {content!s}"):
        source = open_content(content)
    with source, os.fdopen(create_only(path, os.O_WRONLY), "wb") as file:
        with suppress(PermissionError):
            os.fchmod(file.fileno(), mode & 0o644)
        if entry is None:
            while piece := source.read(PIECE_BYTES):
                file.write(piece)
        else:
            try:
                check_content(source, entry, copy_to=file.write)
            except ReleaseError as error:
                raise ReleaseError(f"{entry.path} changed during the publish; publish again") from error
        file.flush()
        os.fsync(file.fileno())


def local_path(text: str) -> Path:
    """Return an absolute path to the same file, without `.`, `..`, `~` and double slashes.

    Symbolic links stay in the path, because they may be changed later. Only links before a `..` are resolved.

    Raises:
        UsageError: the user after `~` has no home folder, or a link before a `..` is circular or cannot be read.
    """
    try:
        absolute = Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(f"{text}: {str(error)[:1].lower()}{str(error)[1:]}") from error
    path = Path("/")
    try:
        for part in absolute.parts[1:]:
            path = path / part if part != ".." else _follow_link(path).parent
    except OSError as error:
        raise UsageError(f"cannot resolve the path {text}: {path}: {error.strerror}") from error
    return path


def _follow_link(path: Path) -> Path:
    if not path.is_symlink():
        return path
    with suppress(FileNotFoundError):  # its target does not exist yet
        path.stat()  # raises OSError for a circular link; the exception of `resolve` depends on the Python version
    return path.resolve()
