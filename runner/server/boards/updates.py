"""The public board, kept up to date beside the server: a process makes it after each change, and requests read it.

A folder `boards/made/NAME` is written under another name and renamed when it is whole; `boards/current` says
which is the newest. Whatever is cut off leaves the one before. All of it follows from the database and the blobs.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from runner.base.errors import RunError
from runner.base.storage.atomic_files import read_json
from runner.base.storage.safe_files import make_folders, remove_folder
from runner.server.boards.paths import BoardPaths
from runner.server.boards.snapshot import BoardSnapshot
from runner.server.isolated_task import TaskLimits, context, start_process
from runner.server.settings import Settings
from runner.server.store.database import Database

LOG = logging.getLogger("nip_run.server")

POLL_SECONDS = 0.5
"""Between two looks at whether anything has changed, also by other processes."""
MOST_SECONDS = 4 * 3600.0
"""For one board: that of a large registry is made once from nothing."""
BOUNDS = TaskLimits(memory=6 << 30)
"""Of the process that makes them all; DuckDB bounds itself far below that."""
AGAIN_SECONDS = 30.0
"""After a board that could not be made."""
KEPT = 3
"""Boards that stay, for pages that were opened a while ago and read on; but none with what was taken away since."""


class Boards:
    """Has the board made after each change, in a process of its own, and says where the newest one is."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        self._places = BoardPaths.of(settings)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="boards", daemon=True)
        self._shown: BoardSnapshot | None = None
        self._worker: tuple[BaseProcess, Connection] | None = None
        self._named: set[str] = set()
        """Releases that are on no board, which the log has named."""

    def start(self) -> None:
        """Begin; a board that was made before is shown at once.

        Raises:
            OSError: its folder cannot be made.
        """
        make_folders(self._places.made)
        for path in self._places.made.glob(".*"):
            remove_folder(path)
        with suppress(RunError, OSError, ValueError):
            self._show(self._places.made / str(read_json(self._places.current)["name"]))
        self._thread.start()

    @property
    def shown(self) -> BoardSnapshot | None:
        """The newest board; None where none is made yet."""
        return self._shown

    def at(self, name: str) -> Path | None:
        """The folder of a board by its name, of those that are kept."""
        return next((path for path in self._places.made.iterdir() if path.name == name and name[:1] != "."), None)

    def close(self) -> None:
        """End, with the process."""
        self._stopping.set()
        self._end()

    def _run(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            try:
                with self._database.reading() as connection:
                    revision = self._database.revision(connection)
                if self._shown is not None and self._shown.revision == revision:
                    continue
                begun = time.monotonic()
                self._show(self._places.made / self._made())
                self._tell_left_out()
                self._stopping.wait(min(AGAIN_SECONDS, time.monotonic() - begun))  # half of its time is for others
            except Exception:
                if self._stopping.is_set():
                    return  # the server ends, and its worker with it; the next one makes the board
                LOG.exception("the board could not be made")
                self._end()
                self._stopping.wait(AGAIN_SECONDS)

    def _show(self, folder: Path) -> None:
        shown = BoardSnapshot(folder)
        self._shown = shown
        listed = shown.listed()
        others = [path for path in self._places.made.iterdir() if path != folder and path.name[:1] != "."]
        for number, path in enumerate(sorted(others, key=lambda one: one.stat().st_mtime, reverse=True)):
            if number >= KEPT - 1 or not _is_within(path, listed):
                remove_folder(path)

    def _tell_left_out(self) -> None:
        """Have the log name each release once that no board can show, so that who keeps the server may hide it."""
        assert self._shown is not None
        left_out = dict(self._shown.info("left_out"))
        for release in sorted(left_out.keys() - self._named):
            LOG.warning("a release is on no board", extra={"release": release, "why": left_out[release]})
        self._named = set(left_out)

    def _made(self) -> str:
        """Have the worker make a board.

        Raises:
            RunError: it could not, took too long, or ended.
        """
        process, pipe = self._worker = self._worker or self._begun()
        pipe.send("make")
        end = time.monotonic() + MOST_SECONDS
        while not self._stopping.is_set() and time.monotonic() < end:
            try:
                if pipe.poll(POLL_SECONDS):
                    done, said = pipe.recv()
                    if not done:
                        raise RunError(said)
                    return str(said)
            except (EOFError, OSError) as error:
                process.join(5)
                raise RunError(f"the process that makes the board ended with {process.exitcode}") from error
        raise RunError("the board takes too long to make, or the server ends")

    def _begun(self) -> tuple[BaseProcess, Connection]:
        here, there = context().Pipe()
        process = start_process(BOUNDS, work, self._settings, there)
        there.close()
        return process, here

    def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker[1].close()
            worker[0].kill()
            worker[0].join(5)


def _is_within(folder: Path, listed: frozenset[tuple[str, bool]]) -> bool:
    """Whether all that an older board tells of may still be told."""
    try:
        return BoardSnapshot(folder).listed() <= listed
    except (RunError, OSError, ValueError, sqlite3.Error):
        return False


def work(settings: Settings, pipe: Connection) -> None:
    """Make boards as long as somebody asks for them; in a process of its own."""
    from runner.server.boards.worker import BoardWorker, made

    worker = BoardWorker(settings)
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, made(worker, BoardPaths.of(settings))))
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            pipe.send((False, f"{type(error).__name__}: {error}"))
