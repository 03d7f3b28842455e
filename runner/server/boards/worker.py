"""What the process does that makes boards: read what is new of the public releases, and write a board of all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from runner.errors import NipRunError
from runner.registry.board import read_board
from runner.registry.left_out import in_words
from runner.releases.reference import Kind
from runner.server.boards.made import Facts, write_folder
from runner.server.boards.places import Places
from runner.server.boards.registry import PublicRegistry, Remembering
from runner.server.boards.tiers import vouched
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.store.stores import blobs_of
from runner.storage.atomic import atomic_write, fsync_dir
from runner.storage.files import make_folders, open_to_read, remove_folder


class Worker:
    """Makes one board after another; what it has read it remembers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database, self._blobs = Database(settings.database_url), blobs_of(settings)
        self._kept = Remembering.at(Places.of(settings).cache)

    def write(self, folder: Path) -> int:
        """Write the board as it is now; the revision of the database that it shows.

        Raises:
            NipRunError, OSError: it cannot be made.
        """
        registry = PublicRegistry(self._database, self._blobs, self._settings.address, self._settings.limits)
        read = read_board(registry, self._kept)
        others = {}
        for entry in registry.entries():
            if entry.reference.kind in (Kind.RUN, Kind.MODEL):
                continue
            try:
                others[entry] = self._kept.release(registry, entry)
            except NipRunError as error:
                read.board.left_out.append((str(entry.reference), in_words(error)))
        write_folder(Facts(registry, read, others, vouched(self._database, registry, self._kept, read)), folder)
        self._kept.forget_all_but({entry.sha256 for entry in registry.entries()})
        return registry.revision


def made(worker: Worker, places: Places) -> str:
    """The name of a new board, which is whole, and the newest from now on."""
    make_folders(places.made)
    word = secrets.token_hex(4)
    beside = places.made / f".{word}"
    make_folders(beside)
    try:
        revision = worker.write(beside)
        for path in beside.iterdir():
            with open_to_read(path) as file:
                os.fsync(file.fileno())
        name = f"{revision}-{word}"
        beside.rename(places.made / name)
    except BaseException:
        remove_folder(beside)
        raise
    fsync_dir(places.made)
    atomic_write(places.current, f'{{"name": "{name}"}}\n')
    return name
