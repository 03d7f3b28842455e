"""Builds boards in a worker process, which `runner.server.boards.updates` starts.

For each board, the worker reads the public releases that are new, and writes a folder with the lists of all public
releases (`runner.server.boards.builder`). If a release makes the build fail, the worker finds it by bisection and
leaves it out.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from runner.base.errors import RunError
from runner.base.storage.atomic_files import atomic_write, fsync_dir, read_json
from runner.base.storage.safe_files import make_folders, open_to_read, remove_folder
from runner.documents.releases.reference import Kind
from runner.registry.board.board import load_board
from runner.registry.release_errors import describe_error, lacks_memory
from runner.registry.transports.listing import ReleaseEntry
from runner.server.boards.builder import BoardInput, write_folder
from runner.server.boards.paths import BoardPaths
from runner.server.boards.public_registry import MemoryBoardCache, PublicRegistry
from runner.server.boards.snapshot import BoardSnapshot
from runner.server.boards.verification_tiers import assign_tiers
from runner.server.isolated_task import is_server_fault
from runner.server.settings import Settings
from runner.server.store.blob_stores import open_blob_store
from runner.server.store.database import Database

T = TypeVar("T")


class BoardWorker:
    """Writes one board after another, with a cache in memory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database, self._blobs = Database(settings.database_url), open_blob_store(settings)
        self._paths = BoardPaths(settings)
        self._cache = MemoryBoardCache.in_folder(self._paths.cache)
        self._harmful: dict[str, str] = {}
        """Releases that make building a board fail, by their hashes, each with the reason for readers of the board."""

    def build(self) -> str:
        """Build a board, make it the current one and return its name.

        Raises:
            NipRunError, OSError: the board cannot be built.
        """
        name = secrets.token_hex(8)  # not the revision, which would reveal the number of private releases
        temporary = self._paths.boards / f".{name}"
        make_folders(temporary)
        try:
            self.write(temporary)
            for path in temporary.iterdir():
                with open_to_read(path) as file:
                    os.fsync(file.fileno())
            temporary.rename(self._paths.boards / name)
        except BaseException:
            remove_folder(temporary)
            raise
        fsync_dir(self._paths.boards)
        atomic_write(self._paths.current, f'{{"name": "{name}"}}\n')
        return name

    def close(self) -> None:
        self._database.close()

    def write(self, folder: Path) -> None:
        """Write a board of all public releases, without the releases that make building the board fail.

        Raises:
            NipRunError, OSError: the board cannot be built.
        """
        registry = PublicRegistry(self._database, self._blobs, self._settings.address, self._settings.limits)
        try:
            self._write_subset(registry, self._harmless(registry), folder)
        except Exception as error:
            if _is_caused_by_server(error):
                raise
            self._find_harmful(registry, folder, error)
            self._write_subset(registry, self._harmless(registry), _empty_folder(folder))
        self._cache.keep_only({entry.sha256 for entry in registry.entries()})

    def _harmless(self, registry: PublicRegistry) -> list[ReleaseEntry]:
        return [entry for entry in registry.entries() if entry.sha256 not in self._harmful]

    def _write_subset(self, registry: PublicRegistry, entries: Sequence[ReleaseEntry], folder: Path) -> None:
        """Write a board of these releases, which also lists the harmful ones as left out."""
        subset = registry.restricted_to(entries)
        loaded = load_board(subset, self._cache)
        components = {}
        for entry in entries:
            if entry.reference.kind in (Kind.RUN, Kind.MODEL):
                continue
            try:
                components[entry] = self._cache.load_release(subset, entry)
            except Exception as error:  # noqa: BLE001 - a bad release must not prevent the board
                loaded.board.left_out.append((str(entry.reference), describe_error(error)))
        for entry in registry.entries():
            if entry.sha256 in self._harmful:
                loaded.board.left_out.append((str(entry.reference), self._harmful[entry.sha256]))
        tiers = assign_tiers(self._database, subset, self._cache, loaded)
        write_folder(BoardInput(subset, loaded, components, tiers), folder, self._newest_board())

    def _find_harmful(self, registry: PublicRegistry, folder: Path, error: Exception) -> None:
        """Find the releases that make building a board fail, by bisection, and add them to `_harmful`.

        First build a board of the releases that the newest board has. If this succeeds, bisect only the releases
        published since then, which takes fewer attempts.

        Raises:
            Exception: `error`, if even a board without releases fails.
        """

        def can_build(entries: Sequence[ReleaseEntry]) -> bool:
            try:
                self._write_subset(registry, entries, _empty_folder(folder))
            except Exception as failure:
                if _is_caused_by_server(failure):
                    raise
                return False
            return True

        if not can_build([]):
            raise error
        names = self._releases_of_newest_board()
        entries = self._harmless(registry)
        old = [entry for entry in entries if str(entry.reference) in names]
        new = [entry for entry in entries if str(entry.reference) not in names]
        if can_build(old):
            harmful = find_culprits(new, lambda subset: can_build([*old, *subset]))
        else:
            harmful = find_culprits([*old, *new], can_build)
        for entry in harmful:
            self._harmful[entry.sha256] = f"the board cannot be built with this release: {describe_error(error)}"

    def _releases_of_newest_board(self) -> set[str]:
        board = self._newest_board()
        with suppress(RunError, OSError, ValueError):
            return set() if board is None else {release for release, _ in BoardSnapshot(board).list_releases()}
        return set()

    def _newest_board(self) -> Path | None:
        with suppress(RunError, OSError, ValueError):
            return self._paths.boards / str(read_json(self._paths.current)["name"])
        return None


def _is_caused_by_server(error: Exception) -> bool:
    return is_server_fault(error) or lacks_memory(error)


def find_culprits(items: Sequence[T], works: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return the items without which `works` returns True for the list of the others, found by bisection."""
    if not items or works(items):
        return []
    if len(items) == 1:
        return list(items)
    half = len(items) // 2
    culprits = find_culprits(items[:half], works)
    working = [item for item in items[:half] if item not in culprits]
    return culprits + find_culprits(items[half:], lambda subset: works([*working, *subset]))


def _empty_folder(folder: Path) -> Path:
    remove_folder(folder)
    make_folders(folder)
    return folder
