"""A registry in a folder, on a disk of one's own or a shared one, or a copy of such a folder."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from runner.errors import NotPublished, ReleaseError, TakenError
from runner.releases.bundle import PIECE, Content, opened
from runner.storage.atomic import fsync_dir
from runner.storage.files import create_only, make_folder, make_folders, open_to_read, remove_folder
from runner.transports.base import Added, Stored

INCOMING = ".incoming"
"""Where releases are written before they are moved to their places; nobody reads there."""


class FolderTransport:
    """See `Transport`. A release's folder is written elsewhere on the same disk, and renamed: whole, and only once."""

    def __init__(self, folder: str) -> None:
        self._root = Path(folder).expanduser().absolute()

    @property
    def where(self) -> str:
        return f"file:{self._root}"

    def stored(self, prefix: str = "") -> Iterator[Stored]:
        start = self._root / prefix if prefix.endswith("/") else self._root / prefix.rpartition("/")[0]
        for path in _files(start):
            name = path.relative_to(self._root).as_posix()
            if name.startswith(prefix):
                yield Stored(name, path.lstat().st_size)

    def open(self, path: str) -> IO[bytes]:
        place = self._root
        try:
            for part in path.split("/"):
                place /= part
                if stat.S_ISLNK(place.lstat().st_mode):
                    raise ReleaseError(f"{place} is a link, and a registry has none; remove it")
            return open_to_read(place)
        except FileNotFoundError as error:
            raise NotPublished(f"{self.where} has no file {path}") from error
        except (OSError, ValueError) as error:
            raise ReleaseError(f"cannot read {place}: {getattr(error, 'strerror', error)}") from error

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> Added:  # noqa: ARG002
        for folder, files in folders.items():
            self._add(folder, files)
        return Added()

    def _add(self, folder: str, files: Sequence[tuple[str, Content]]) -> None:
        target = self._root / folder
        incoming = self._root / INCOMING / secrets.token_hex(8)
        try:
            make_folders(incoming)
            for path, content in files:
                _write(incoming, path, content)
            make_folders(target.parent)
            if target.exists():
                raise TakenError(f"{self.where} has {folder} already")
            incoming.rename(target)  # which fails where a folder with files is
            fsync_dir(target.parent)
        except OSError as error:
            if target.exists():
                raise TakenError(f"{self.where} has {folder} already") from error
            raise ReleaseError(f"cannot write {target}: {error.strerror}") from error
        finally:
            with suppress(OSError):
                remove_folder(incoming)

    def close(self) -> None:
        """Nothing is held open."""


def _files(folder: Path) -> Iterator[Path]:
    """The regular files below a folder; no link is followed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ReleaseError(f"cannot read {folder}: {error.strerror}") from error
    for entry in entries:
        if entry.name.startswith("."):
            continue  # no path of a registry has such a part: what is half written, and marks of the place itself
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            yield Path(entry.path)


def _write(root: Path, path: str, content: Content) -> None:
    folder = root
    for name in path.split("/")[:-1]:
        folder /= name
        make_folder(folder)
    with opened(content) as source, os.fdopen(create_only(root / path, os.O_WRONLY), "wb") as file:
        while piece := source.read(PIECE):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
