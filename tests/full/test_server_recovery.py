"""Server tasks, killed at random moments: restore, rebuild, boards, and the scoring of submissions.

Each task is killed five times and started again. In the end, every row of every table, every blob and the public board
must be unchanged, and no temporary file may be left. A worker process that scores submissions is also killed alone.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, insert, select, update

from runner.server.boards.paths import BoardPaths, delete_boards
from runner.server.competitions.storage import SCORED, WAITING
from runner.server.settings import Settings
from runner.server.store.blob_stores import open_blob_store
from runner.server.store.database import Database
from runner.server.store.schema import accounts, acts, submissions
from tests.support.populated_server import SUBMISSIONS, populate_server
from tests.support.postgresql import run_postgresql
from tests.support.processes import command, environment, nip_run, wait_until
from tests.support.server_contents import build_board_tables, read_duckdb_tables, read_tables
from tests.support.server_process import ServerProcess, run_server
from tests.support.soft_assertions import SoftAssertions

CHECK_SECONDS = int(Settings(folder=Path()).check_seconds)
ADDED_ROWS = 40_000
"""Number of rows that are added to a table before the backup, so that the restore takes long enough to be killed."""
KILLS = 5


@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
def test_killed_server_tasks_complete_after_a_restart(tmp_path: Path, check: SoftAssertions, database: str) -> None:
    with run_postgresql() as create_postgresql:

        def create_database() -> str | None:
            return create_postgresql() if database == "PostgreSQL" else None

        test = RecoveryTest(check, tmp_path, create_database)
        test.kill_rebuilds()
        test.kill_board_builds()
        test.kill_scoring()
        test.kill_scoring_worker()
        test.kill_restores()


class RecoveryTest:
    """A populated server, and its data before the first kill."""

    def __init__(self, check: SoftAssertions, folder: Path, create_database: Callable[[], str | None]) -> None:
        self._check, self._folder, self._create_database = check, folder, create_database
        self._rng = random.Random(1)
        self._settings = Settings(folder=folder / "server", database=create_database())
        populate_server(self._settings, folder)
        self._tables = self._read_tables(self._settings)
        self._board = build_board_tables(self._settings)
        self._blobs = sorted(open_blob_store(self._settings).hashes())

    # Rebuild

    def kill_rebuilds(self) -> None:
        arguments = ["serve", str(self._settings.folder), "--rebuild", "--collect", *database_option(self._settings)]
        started = time.monotonic()
        done = nip_run(*arguments, cwd=self._folder, timeout=600)
        assert done.returncode == 0, done.stderr
        duration = time.monotonic() - started
        (self._folder / "unused").write_bytes(b"unused")
        open_blob_store(self._settings).put("a" * 64, self._folder / "unused")
        kills = sum(self._run_and_kill(arguments, duration) for _ in range(KILLS))
        done = nip_run(*arguments, cwd=self._folder, timeout=600)
        self._check(
            done.returncode == 0 and kills,
            f"a rebuild succeeds after {kills} killed ones: {done.stdout.strip()} {done.stderr.strip()[:200]}",
        )
        # When a server starts, it removes the temporary files of checks.
        self._serve_until(lambda server: server.request("/healthz").status == 200)
        self._check_data("after killed rebuilds")

    # Boards

    def kill_board_builds(self) -> None:
        paths, interrupted = BoardPaths(self._settings), 0
        delete_boards(self._settings)
        duration = self._serve_until(has_board)
        for _ in range(KILLS):
            delete_boards(self._settings)
            self._serve_and_kill(duration)
            interrupted += any(path.name.startswith(".") for path in paths.boards.glob(".*"))
        with self._run_server() as server:
            wait_until(lambda: has_board(server))
            downloaded = self._folder / "downloaded.duckdb"
            downloaded.write_bytes(server.request("/board.duckdb").body)
        left = [path.name for path in paths.boards.iterdir() if path.name.startswith(".")]
        self._check(
            read_duckdb_tables(downloaded) == self._board and not left,
            f"the board is complete after {KILLS} kills, {interrupted} of them during a build; nothing is left {left}",
        )
        self._check_data("after killed builds of boards")

    # Scoring

    def kill_scoring(self) -> None:
        self._reset_submissions()
        duration = self._serve_until(lambda _: self._count_submissions()[SCORED] == SUBMISSIONS)
        waiting: Counter[int] = Counter()
        for _ in range(KILLS):
            self._reset_submissions()
            self._serve_and_kill(duration)
            waiting[self._count_submissions()[WAITING]] += 1
        self._serve_until(lambda _: not self._count_submissions()[WAITING])
        self._check(
            any(count > 0 for count in waiting),
            f"{KILLS} kills interrupted the scoring of {SUBMISSIONS} submissions with so many left: "
            f"{dict(sorted(waiting.items()))}",
        )
        self._check_data("after kills during scoring")

    def kill_scoring_worker(self) -> None:
        """Kill only the worker process, as a machine without free memory would. The server must go on."""
        self._reset_submissions()
        killed = 0
        with self._run_server() as server:
            deadline = time.monotonic() + 120
            while not killed and time.monotonic() < deadline:
                for pid in find_scoring_workers(server.process.pid):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
                time.sleep(0.01)
            wait_until(lambda: self._count_submissions()[SCORED] >= SUBMISSIONS - killed)
            states = self._count_submissions()
        self._check(
            killed and states == {WAITING: killed, SCORED: SUBMISSIONS - killed},
            f"the submissions of {killed} killed workers wait, and the others are scored: {dict(states)}",
        )
        self._check("the scoring of a submission failed" in server.log, "the log mentions the failed scoring")
        self._serve_until(lambda _: not self._count_submissions()[WAITING])
        self._check_data("after a kill of a scoring worker")

    def _count_submissions(self) -> Counter[str]:
        with self._write() as connection:
            return Counter(row.state for row in connection.execute(select(submissions.c.state)))

    def _reset_submissions(self) -> None:
        with self._write() as connection:
            connection.execute(update(submissions).values(state=WAITING, score=None))

    # Restore

    def kill_restores(self) -> None:
        file = self._back_up_with_many_acts()
        _, arguments = self._prepare_restore("timed", file)
        started = time.monotonic()
        done = nip_run(*arguments, cwd=self._folder, timeout=300)
        assert done.returncode == 0, done.stderr
        duration, kills, incomplete = time.monotonic() - started, 0, []
        for number in range(KILLS):
            settings, arguments = self._prepare_restore(f"restored-{number}", file)
            while self._run_and_kill(arguments, duration):
                kills += 1
                if count_accounts(settings) not in (0, len(self._tables["accounts"])):
                    incomplete.append(f"{number} after a kill")
                if kills > 4 * KILLS or self._rng.random() < 0.4:
                    break
            # If the last restore was killed after its commit, this one refuses to run.
            nip_run(*arguments, cwd=self._folder, timeout=300)
            if self._read_tables(settings) != self._tables:
                incomplete.append(f"{number} in the end")
        self._check(kills and not incomplete, f"{kills} killed restores restored all rows or none {incomplete}")

    def _back_up_with_many_acts(self) -> Path:
        with self._write() as connection:
            rows = [{"at": 1.0, "by": "", "did": "test", "to": f"{n}", "why": "x" * 60} for n in range(ADDED_ROWS)]
            connection.execute(insert(acts), rows)
        file = self._folder / "large.backup"
        option = database_option(self._settings)
        done = nip_run("server", "backup", self._settings.folder, file, *option, cwd=self._folder, timeout=300)
        assert done.returncode == 0, done.stderr
        return file

    def _prepare_restore(self, name: str, file: Path) -> tuple[Settings, list[str]]:
        """Create a new server; return its settings and the arguments of the command that restores it."""
        settings = Settings(folder=self._folder / name, database=self._create_database())
        settings.folder.mkdir()
        option = database_option(settings)
        return settings, ["server", "restore", str(settings.folder), str(file), "--json", *option]

    # Shared by all tasks

    def _run_and_kill(self, arguments: list[str], duration: float) -> bool:
        """Run a command and kill it at a random moment; return whether it was killed before it ended by itself."""
        process = subprocess.Popen(
            command(*arguments), cwd=self._folder, env=environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            process.wait(self._rng.uniform(0.3, 1.0) * duration)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return True
        return False

    @contextmanager
    def _run_server(self) -> Iterator[ServerProcess]:
        with run_server(self._settings.folder, database=self._settings.database, people=False) as server:
            yield server

    def _serve_until(self, condition: Callable[[ServerProcess], bool]) -> float:
        """Run the server until a condition is true; return how many seconds that took."""
        with self._run_server() as server:
            started = time.monotonic()
            wait_until(lambda: condition(server))
            return time.monotonic() - started

    def _serve_and_kill(self, duration: float) -> None:
        """Run the server and kill it at a random moment within `duration` seconds."""
        with self._run_server() as server:
            time.sleep(self._rng.uniform(0.0, 1.0) * duration)
            server.kill()

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with closing(Database(self._settings.database_url)) as database, database.writing() as connection:
            yield connection

    def _read_tables(self, settings: Settings) -> dict[str, list[object]]:
        """Return all rows without the times of scoring, which differ after each scoring."""
        return read_tables(settings.database_url, submissions.c.scored)

    def _check_data(self, when: str) -> None:
        """Check that rows, blobs and board are as they were at the start, and that no temporary file is left."""
        tables = self._read_tables(self._settings)
        changed = [name for name in tables if tables[name] != self._tables[name]]
        blobs = sorted(open_blob_store(self._settings).hashes())
        left = [path.name for path in self._settings.incoming.iterdir()]
        self._check(not changed, f"{when}: every table has the same rows {changed}")
        self._check(blobs == self._blobs, f"{when}: the blobs are the same ({len(blobs)} of {len(self._blobs)})")
        self._check(not left, f"{when}: no temporary file is left {left[:3]}")
        self._check(build_board_tables(self._settings) == self._board, f"{when}: the board is the same")


def database_option(settings: Settings) -> tuple[str, ...]:
    """Return the arguments of the command line that name the database of a server."""
    return () if settings.database is None else ("--database", settings.database)


def has_board(server: ServerProcess) -> bool:
    return server.request("/board.duckdb").status == 200


def count_accounts(settings: Settings) -> int:
    with closing(Database(settings.database_url)) as database, database.reading() as connection:
        return connection.execute(select(func.count()).select_from(accounts)).scalar_one()


def find_scoring_workers(server: int) -> list[int]:
    """Return the grandchildren of the server process that have the CPU limit of a check.

    Nothing is published at the same time, so these are the processes that score submissions.
    """
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return [pid for pid, parent in parents.items() if parents.get(parent) == server and _has_check_limit(pid)]


def _has_check_limit(pid: int) -> bool:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        return any(line.startswith("Max cpu time") and f" {CHECK_SECONDS} " in line for line in lines)
    return False
