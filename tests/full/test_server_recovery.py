"""A server's own work killed in the middle: restore, rebuild with collect, the making of a board, scoring.

Each is killed five times at random moments and begun again, and ends as if it had not been: every row of every table,
every file and the public board are as they were, nothing is there twice, and nothing of work that was cut off is left.
A process that scores is also killed by itself: its submission waits, and is refused for nothing. All of that with
SQLite, and then with a PostgreSQL of its own; or with the one database that is named.
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
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from runner.server.boards.paths import BoardPaths, delete_boards
from runner.server.competitions.storage import SCORED, WAITING
from runner.server.settings import Settings
from runner.server.store.blob_stores import open_blob_store
from runner.server.store.database import Database
from runner.server.store.schema import accounts, acts, submissions
from tests.support.claims import Claims
from tests.support.filled import SUBMISSIONS, fill
from tests.support.kept import board, content, rows
from tests.support.postgresql import cluster
from tests.support.processes import command, environment, nip_run, until
from tests.support.serving import Served, serving

CHECK_SECONDS = int(Settings(folder=Path()).check_seconds)
ACTS = 40_000
"""Rows that a backup is given besides, so that its restore takes a while."""


TIMES = 5


@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
def test_work_of_a_server_that_is_killed_ends_as_if_it_had_not_been(
    tmp_path: Path, claims: Claims, database: str
) -> None:
    with cluster() as made:
        killed = Killed(claims, tmp_path, made() if database == "PostgreSQL" else None, made)
        killed.rebuild()
        killed.board()
        killed.scoring()
        killed.worker()
        killed.restore()


class Killed:
    """A server, and what it had before anything was killed."""

    def __init__(self, claims: Claims, here: Path, database: str | None, made: Callable[[], str]) -> None:
        self._claims, self._here, self._made = claims, here, made
        self._rng = random.Random(1)
        self._settings = Settings(folder=here / "server", database=database)
        self._where = () if database is None else ("--database", database)
        fill(self._settings, here)
        self._rows, self._board = rows(self._settings.database_url, submissions.c.scored), board(self._settings)
        self._blobs = sorted(open_blob_store(self._settings).hashes())

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with closing(Database(self._settings.database_url)) as database, database.writing() as connection:
            yield connection

    def _is_as_before(self, what: str) -> None:
        found = rows(self._settings.database_url, submissions.c.scored)
        there = sorted(open_blob_store(self._settings).hashes())
        left = [path.name for path in self._settings.incoming.iterdir()]
        wrong = [name for name in found if found[name] != self._rows[name]]
        self._claims(
            not wrong and there == self._blobs and not left,
            f"{what}: every row and every file is as it was {wrong} {len(there) - len(self._blobs)} {left[:3]}",
        )
        self._claims(board(self._settings) == self._board, f"{what}: the board's file is as it was")

    def _kill(self, words: list[str], within: float, cwd: Path) -> bool:
        """Whether a command was killed before its end, at some moment of the time that it takes."""
        process = subprocess.Popen(
            command(*words), cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            process.wait(self._rng.uniform(0.3, 1.0) * within)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return True
        return False

    def rebuild(self) -> None:
        place, words = self._here, ["serve", str(self._settings.folder), "--rebuild", "--collect", *self._where]
        begun = time.monotonic()
        done = nip_run(*words, cwd=place, timeout=600)
        assert done.returncode == 0, done.stderr
        within, kills = time.monotonic() - begun, 0
        (self._here / "nobodys").write_bytes(b"nobody's")
        open_blob_store(self._settings).put("a" * 64, self._here / "nobodys")
        for _ in range(TIMES):
            kills += self._kill(words, within, place)
        done = nip_run(*words, cwd=place, timeout=600)
        self._claims(
            done.returncode == 0 and kills,
            f"rebuild and collect killed {kills} times, then: {done.stdout.strip()} {done.stderr.strip()[:200]}",
        )
        self._serve(lambda served: served.ask("/healthz").status == 200)  # which removes what checks have left
        self._is_as_before("after kills in rebuild")

    def _serve(self, until_what: Callable[[Served], bool]) -> float:
        """Have a server run until something is so; how long that took from its first answer."""
        with serving(self._settings.folder, database=self._settings.database, people=False) as served:
            begun = time.monotonic()
            until(lambda: until_what(served))
            return time.monotonic() - begun

    def _serve_and_kill(self, within: float) -> None:
        with serving(self._settings.folder, database=self._settings.database, people=False) as served:
            time.sleep(self._rng.uniform(0.0, 1.0) * within)
            served.kill()

    def board(self) -> None:
        places, met = BoardPaths(self._settings), 0

        def has_board(served: Served) -> bool:
            return served.ask("/board.duckdb").status == 200

        delete_boards(self._settings)
        within = self._serve(has_board)
        for _ in range(TIMES):
            delete_boards(self._settings)
            self._serve_and_kill(within)
            met += any(path.name.startswith(".") for path in places.boards.glob(".*"))
        with serving(self._settings.folder, database=self._settings.database, people=False) as served:
            until(lambda: has_board(served))
            downloaded = self._here / "downloaded.duckdb"
            downloaded.write_bytes(served.ask("/board.duckdb").body)
        left = [path.name for path in places.boards.iterdir() if path.name.startswith(".")]
        self._claims(
            content(downloaded) == self._board and not left,
            f"a board killed {TIMES} times, {met} of them half made: the next is whole, nothing is left {left}",
        )
        self._is_as_before("after kills of boards")

    def _states(self) -> Counter[str]:
        with self._opened() as connection:
            return Counter(row.state for row in connection.execute(select(submissions.c.state)))

    def _wait_again(self) -> None:
        with self._opened() as connection:
            connection.execute(update(submissions).values(state=WAITING, score=None))

    def scoring(self) -> None:
        self._wait_again()
        within = self._serve(lambda _: self._states()[SCORED] == SUBMISSIONS)
        met: Counter[int] = Counter()
        for _ in range(TIMES):
            self._wait_again()
            self._serve_and_kill(within)
            met[self._states()[WAITING]] += 1
        self._serve(lambda _: not self._states()[WAITING])
        self._claims(
            any(left > 0 for left in met),
            f"scoring killed {TIMES} times, with so many of {SUBMISSIONS} left: {dict(sorted(met.items()))}",
        )
        self._is_as_before("after kills in scoring")

    def worker(self) -> None:
        """What scores is killed, as by a machine without memory; the server goes on, and is then ended well."""
        self._wait_again()
        killed = 0
        with serving(self._settings.folder, database=self._settings.database, people=False) as served:
            deadline = time.monotonic() + 120
            while not killed and time.monotonic() < deadline:
                for pid in scoring_below(served.process.pid):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
                time.sleep(0.01)
            until(lambda: self._states()[SCORED] >= SUBMISSIONS - killed)
            states = self._states()
        said = "the scoring of a submission failed" in served.log
        self._claims(
            killed and said and states == {WAITING: killed, SCORED: SUBMISSIONS - killed},
            f"{killed} process that scores killed: {dict(states)}, and the log says so",
        )
        self._serve(lambda _: not self._states()[WAITING])
        self._is_as_before("after a kill of what scores")

    def restore(self) -> None:
        with self._opened() as connection:
            many = [{"at": 1.0, "by": "", "did": "test", "to": f"{n}", "why": "x" * 60} for n in range(ACTS)]
            connection.execute(insert(acts), many)
        file = self._here / "large.backup"
        done = nip_run("server", "backup", self._settings.folder, file, *self._where, cwd=self._here, timeout=300)
        assert done.returncode == 0, done.stderr

        def new(name: str) -> tuple[Settings, list[str]]:
            found = Settings(folder=self._here / name, database=self._made() if self._where else None)
            found.folder.mkdir()
            where = [] if found.database is None else ["--database", found.database]
            return found, ["server", "restore", str(found.folder), str(file), "--json", *where]

        begun = time.monotonic()
        assert nip_run(*new("timed")[1], cwd=self._here, timeout=300).returncode == 0
        within, kills, half = time.monotonic() - begun, 0, []
        for number in range(TIMES):
            settings, words = new(f"restored-{number}")
            while self._kill(words, within, self._here):
                kills += 1
                half += [] if _count(settings) in (0, len(self._rows["accounts"])) else [str(number)]
                if kills > 4 * TIMES or self._rng.random() < 0.4:
                    break
            nip_run(*words, cwd=self._here, timeout=300)  # refused, where it was killed behind its end
            half += [] if rows(settings.database_url, submissions.c.scored) == self._rows else [str(number)]
        self._claims(kills and not half, f"restore killed {kills} times: all of it is there, or nothing {half}")


def _count(settings: Settings) -> int:
    with closing(Database(settings.database_url)) as database, database.reading() as connection:
        return len(connection.execute(select(accounts.c.id)).all())


def scoring_below(server: int) -> list[int]:
    """The processes below a server that have the processor time of a check, while nothing is published."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return [pid for pid, parent in parents.items() if parents.get(parent) == server and _is_bounded(pid)]


def _is_bounded(pid: int) -> bool:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        return any(line.startswith("Max cpu time") and f" {CHECK_SECONDS} " in line for line in lines)
    return False
