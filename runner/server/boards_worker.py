"""What the process does that makes boards: read what is new of the server's public releases, and write a board of all."""

from __future__ import annotations

from pathlib import Path

from runner.errors import NipRunError
from runner.registry.board import read_board
from runner.registry.left_out import in_words
from runner.releases.reference import Kind
from runner.server.boards import Places
from runner.server.boards_made import Facts, write_folder
from runner.server.boards_registry import PublicRegistry, Remembering
from runner.server.boards_tiers import vouched
from runner.server.database import Database
from runner.server.settings import Settings
from runner.server.stores import blobs_of


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
