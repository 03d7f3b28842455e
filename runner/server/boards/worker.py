"""What the process does that makes boards: read what is new of the public releases, and write a board of all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from runner.base.errors import RunError
from runner.base.storage.atomic_files import atomic_write, fsync_dir, read_json
from runner.base.storage.safe_files import make_folders, open_to_read, remove_folder
from runner.documents.releases.reference import Kind
from runner.registry.board.board import read_board
from runner.registry.skipped_releases import in_words, lacks_memory
from runner.registry.transports.listing import ReleaseEntry
from runner.server.boards.builder import Facts, write_folder
from runner.server.boards.paths import BoardPaths
from runner.server.boards.public_registry import PublicRegistry, Remembering
from runner.server.boards.snapshot import BoardSnapshot
from runner.server.boards.verification_tiers import vouched
from runner.server.isolated_task import is_server_fault
from runner.server.settings import Settings
from runner.server.store.blob_stores import blobs_of
from runner.server.store.database import Database

T = TypeVar("T")


class BoardWorker:
    """Makes one board after another; what it has read it remembers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database, self._blobs = Database(settings.database_url), blobs_of(settings)
        self._places = BoardPaths.of(settings)
        self._kept = Remembering.at(self._places.cache)
        self._harmful: dict[str, str] = {}
        """By the hashes of releases with which no board can be made, what comes of trying."""

    def write(self, folder: Path) -> None:
        """Write the board as it is now.

        Raises:
            NipRunError, OSError: it cannot be made.
        """
        registry = PublicRegistry(self._database, self._blobs, self._settings.address, self._settings.limits)
        try:
            self._write(registry, self._good(registry), folder)
        except Exception as error:
            if _is_the_servers(error):
                raise
            self._find_harmful(registry, folder, error)
            self._write(registry, self._good(registry), _emptied(folder))
        self._kept.forget_all_but({entry.sha256 for entry in registry.entries()})

    def _good(self, registry: PublicRegistry) -> list[ReleaseEntry]:
        return [entry for entry in registry.entries() if entry.sha256 not in self._harmful]

    def _write(self, registry: PublicRegistry, entries: Sequence[ReleaseEntry], folder: Path) -> None:
        """Write a board of some releases."""
        some = registry.only(entries)
        read = read_board(some, self._kept)
        others = {}
        for entry in entries:
            if entry.reference.kind in (Kind.RUN, Kind.MODEL):
                continue
            try:
                others[entry] = self._kept.release(some, entry)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this release's
                read.board.left_out.append((str(entry.reference), in_words(error)))
        for entry in registry.entries():
            if entry.sha256 in self._harmful:
                read.board.left_out.append((str(entry.reference), self._harmful[entry.sha256]))
        write_folder(Facts(some, read, others, vouched(self._database, some, self._kept, read)), folder)

    def _find_harmful(self, registry: PublicRegistry, folder: Path, error: Exception) -> None:
        """Note the releases with which no board can be made; those of the newest board are looked at last.

        Raises:
            Exception: `error`, where none can be made of no release either, so that it is no release's.
        """

        def works(entries: Sequence[ReleaseEntry]) -> bool:
            try:
                self._write(registry, entries, _emptied(folder))
            except Exception as wrong:
                if _is_the_servers(wrong):
                    raise
                return False
            return True

        if not works([]):
            raise error
        known = self._shown()
        good = sorted(self._good(registry), key=lambda entry: str(entry.reference) not in known)
        shown = sum(str(entry.reference) in known for entry in good)
        if works(good[:shown]):
            found = culprits(good[shown:], lambda some: works([*good[:shown], *some]))
        else:
            found = culprits(good, works)
        for entry in found:
            self._harmful[entry.sha256] = f"no board can be made with it: {in_words(error)}"

    def _shown(self) -> set[str]:
        """The releases of the newest board."""
        with suppress(RunError, OSError, ValueError):
            name = str(read_json(self._places.current)["name"])
            return {reference for reference, _ in BoardSnapshot(self._places.made / name).listed()}
        return set()


def _is_the_servers(error: Exception) -> bool:
    return isinstance(error, SQLAlchemyError) or is_server_fault(error) or lacks_memory(error)


def culprits(found: Sequence[T], works: Callable[[Sequence[T]], bool]) -> list[T]:
    """Some of `found` without which all others work together."""
    if not found or works(found):
        return []
    if len(found) == 1:
        return list(found)
    half = len(found) // 2
    first = culprits(found[:half], works)
    good = [one for one in found[:half] if one not in first]
    return first + culprits(found[half:], lambda more: works([*good, *more]))


def _emptied(folder: Path) -> Path:
    remove_folder(folder)
    make_folders(folder)
    return folder


def made(worker: BoardWorker, places: BoardPaths) -> str:
    """The name of a new board, which is whole, and the newest from now on."""
    make_folders(places.made)
    name = secrets.token_hex(8)  # no number: each private release would raise it
    beside = places.made / f".{name}"
    make_folders(beside)
    try:
        worker.write(beside)
        for path in beside.iterdir():
            with open_to_read(path) as file:
                os.fsync(file.fileno())
        beside.rename(places.made / name)
    except BaseException:
        remove_folder(beside)
        raise
    fsync_dir(places.made)
    atomic_write(places.current, f'{{"name": "{name}"}}\n')
    return name
