"""Keeps the public board up to date: a worker process builds a new one after each change of the public data.

Here, a board is a folder with everything that pages show about public releases (`runner.server.boards.builder`).
Requests read the newest board. The worker writes a board under a temporary name and renames it to `boards/made/NAME`
when it is complete. The file `boards/current` contains the name of the newest board. If a build is interrupted, the
previous board stays. Boards can be rebuilt from the database and the blobs at any time.
"""

from __future__ import annotations

import logging
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
from runner.server.isolated_task import TaskLimits, forkserver_context, start_process
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.version import __version__

LOG = logging.getLogger("nip_run.server")

POLL_SECONDS = 0.5
"""Interval between two reads of the database's revision. The server polls, since commands change the database, too."""
BUILD_SECONDS = 4 * 3600.0
"""Time limit for building one board. The first board of a large registry takes long, because it reads all releases."""
WORKER_LIMITS = TaskLimits(memory=6 << 30)
"""Limits of the worker process. DuckDB runs in this process with a lower memory limit."""
RETRY_SECONDS = 30.0
"""Delay before the next attempt after a board could not be built."""
MAX_STORED = 3
"""Maximum number of stored boards. A page that was opened a while ago still reads an older board."""


class BoardUpdater:
    """The newest board of a server, and the thread and worker process that update it after each change."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        self._paths = BoardPaths(settings)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="boards", daemon=True)
        self._newest: BoardSnapshot | None = None
        self._worker: tuple[BaseProcess, Connection] | None = None
        self._logged_releases: set[str] = set()
        """Releases that the newest board leaves out and that the log already names."""

    def start(self) -> None:
        """Use the newest stored board, if there is one, and start to build new boards.

        Raises:
            OSError: the folder for boards cannot be created.
        """
        make_folders(self._paths.boards)
        for path in self._paths.boards.glob(".*"):
            remove_folder(path)
        with suppress(RunError, OSError, ValueError):
            self._use_board(self._paths.boards / str(read_json(self._paths.current)["name"]))
        self._thread.start()

    @property
    def newest(self) -> BoardSnapshot | None:
        """The newest board; None before the first one is complete."""
        return self._newest

    def folder_of(self, name: str) -> Path | None:
        """Return the folder of a stored board by its name."""
        return next((path for path in self._paths.boards.iterdir() if path.name == name and name[:1] != "."), None)

    def close(self) -> None:
        """Stop updating, and kill the worker process."""
        self._stopping.set()
        self._kill_worker()

    def _run(self) -> None:
        """Build a board after each change of the database's revision, in a thread."""
        while not self._stopping.wait(POLL_SECONDS):
            try:
                with self._database.reading() as connection:
                    revision = self._database.revision(connection)
                newest = self._newest
                if newest is not None and (newest.revision, newest.version) == (revision, __version__):
                    continue
                start = time.monotonic()
                self._use_board(self._paths.boards / self._build())
                self._log_left_out()
                # Wait as long as the build took, so that builds use at most half of the processor time.
                self._stopping.wait(min(RETRY_SECONDS, time.monotonic() - start))
            except Exception:
                if self._stopping.is_set():
                    return  # the server is stopping and killed the worker
                LOG.exception("the board could not be built; the server tries again in %g s", RETRY_SECONDS)
                self._kill_worker()
                self._stopping.wait(RETRY_SECONDS)

    def _use_board(self, folder: Path) -> None:
        """Make a board the newest. Remove old boards, and boards with a release that was hidden or yanked since."""
        self._newest = BoardSnapshot(folder)
        public_releases = self._newest.list_releases()
        older_boards = [path for path in self._paths.boards.iterdir() if path != folder and path.name[:1] != "."]
        for number, path in enumerate(sorted(older_boards, key=lambda path: path.stat().st_mtime, reverse=True)):
            if number >= MAX_STORED - 1 or not _has_only(path, public_releases):
                remove_folder(path)

    def _log_left_out(self) -> None:
        """Log once each release that the board leaves out, so that an administrator can hide the release."""
        assert self._newest is not None
        reasons = dict(self._newest.read_info("left_out"))
        for release in sorted(reasons.keys() - self._logged_releases):
            LOG.warning(
                "a release is on no board; `nip-run server hide` removes it from the server's pages",
                extra={"release": release, "why": reasons[release]},
            )
        self._logged_releases = set(reasons)

    def _build(self) -> str:
        """Have the worker build a board; return the board's name.

        Raises:
            RunError: the worker failed, took too long, or died.
        """
        process, pipe = self._worker = self._worker or self._start_worker()
        pipe.send("build")
        deadline = time.monotonic() + BUILD_SECONDS
        while not self._stopping.is_set() and time.monotonic() < deadline:
            try:
                if pipe.poll(POLL_SECONDS):
                    is_built, name_or_error = pipe.recv()
                    if not is_built:
                        raise RunError(name_or_error)
                    return str(name_or_error)
            except (EOFError, OSError) as error:
                process.join(5)
                raise RunError(f"the process that builds the board died with exit code {process.exitcode}") from error
        raise RunError(
            f"building the board takes longer than {BUILD_SECONDS / 3600:g} hours, or the server is stopping"
        )

    def _start_worker(self) -> tuple[BaseProcess, Connection]:
        server_end, worker_end = forkserver_context().Pipe()
        process = start_process(WORKER_LIMITS, run_worker, self._settings, worker_end)
        worker_end.close()
        return process, server_end

    def _kill_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            process, pipe = worker
            pipe.close()
            process.kill()
            process.join(5)


def _has_only(folder: Path, releases: frozenset[tuple[str, bool]]) -> bool:
    """Return whether a board has only releases of this set, which is from `BoardSnapshot.list_releases`."""
    try:
        return BoardSnapshot(folder).list_releases() <= releases
    except (RunError, OSError, ValueError):
        return False


def run_worker(settings: Settings, pipe: Connection) -> None:
    """Build a board for each message in the pipe, until the pipe is closed. Runs in the worker process."""
    from runner.server.boards.worker import BoardWorker

    worker = BoardWorker(settings)
    while True:
        try:
            pipe.recv()
        except EOFError:
            worker.close()
            return
        try:
            pipe.send((True, worker.build()))
        except Exception as error:  # noqa: BLE001 - sent to the server, which logs it
            pipe.send((False, f"{type(error).__name__}: {error}"))
