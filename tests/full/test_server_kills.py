"""A server killed under load: ten publishers of 20 runs each at once, and two readers.

The server is killed 20 times, at random moments over all of the work, and begun again. A publisher repeats what
failed, as somebody repeats a command, and writes down what was acknowledged. After each kill all that was acknowledged
is there; whatever is listed is whole; and in the end each run is there once, with its hash. All of that with SQLite,
and then with a PostgreSQL of its own; or with the one database that is named.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import select

from runner.base.errors import NipRunError
from runner.registry.transports.http.transport import HttpTransport
from runner.registry.transports.registry import Registry
from runner.registry.transports.timeouts import Timeouts
from runner.server.store.database import Database
from runner.server.store.schema import uploads
from runner.server.uploads.uploads import CHECKING, OPEN
from tests.support.claims import Claims
from tests.support.paths import ROOT
from tests.support.played import named, played_release
from tests.support.postgresql import cluster
from tests.support.processes import environment
from tests.support.serving import Served

CALM = Timeouts(wait=0.1, tries=8, longest_wait=3.0)
PUBLISH = """
import sys, time
from pathlib import Path
from runner.base.errors import NipRunError
from runner.registry.transports.http.transport import HttpTransport
from runner.registry.transports.timeouts import Timeouts
from runner.registry.transports.registry import Registry
from tests.support.played import local_release, named
where, work, log, number, runs = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])
release, contents = local_release(work)
for run in range(runs):
    bundle = named(release, contents, f"p{number}-r{run}")
    while True:
        try:
            with Registry(HttpTransport(where, timeouts=Timeouts(wait=0.1, longest_wait=3.0))) as registry:
                registry.publish([bundle], "Publish")
            break
        except NipRunError as error:
            print(error, file=sys.stderr, flush=True)
            time.sleep(0.2)
    with log.open("a") as file:
        file.write(f"{bundle.release.name} {bundle.sha256}\\n")
"""


class Reader(threading.Thread):
    """Lists all that there is, and reads some of it, until it is told to stop. That nobody answers is no fault."""

    def __init__(self, where: str, wanted: dict[str, str], seed: int) -> None:
        super().__init__(daemon=True)
        self._where, self._wanted, self._rng = where, wanted, random.Random(seed)
        self.stopped = threading.Event()
        self.wrong: list[str] = []
        self.rounds = self.read = self.unanswered = 0

    def run(self) -> None:
        while not self.stopped.wait(0.25):
            try:
                with Registry(HttpTransport(self._where, timeouts=Timeouts(tries=1, wait=0.05))) as registry:
                    entries = registry.entries()
                    names = [entry.reference.name for entry in entries]
                    self.wrong += [f"{name} twice" for name in {name for name in names if names.count(name) > 1}]
                    for entry in self._rng.sample(entries, min(3, len(entries))):
                        if self._wanted[entry.reference.name] != entry.sha256:
                            self.wrong.append(f"{entry} is another")
                        self.wrong += registry.find_problems(entry) if self._answers() else []
                        self.read += 1
                self.rounds += 1
            except NipRunError:
                self.unanswered += 1

    def _answers(self) -> bool:
        return not self.stopped.is_set()


KILLS, PUBLISHERS, RUNS, SEED = 20, 10, 20, 1


@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
def test_a_server_that_is_killed_under_load_loses_nothing_that_it_acknowledged(
    tmp_path: Path, claims: Claims, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    release, contents = played_release(tmp_path / "work")
    names = [f"p{p}-r{r}" for p in range(PUBLISHERS) for r in range(RUNS)]
    wanted = {name: named(release, contents, name).sha256 for name in names}
    with cluster() as made:
        server = Served(tmp_path / "server", database=made() if database == "PostgreSQL" else None)
        monkeypatch.setenv("NIP_RUN_TOKEN", server.account("acme"))
        server.start()
        monkeypatch.setenv("NIP_RUN_REGISTRY", server.address)
        try:
            Load(claims, tmp_path / "work", server, wanted).run()
        finally:
            server.stop()


class Load:
    """Publishers and readers of one server that is killed."""

    def __init__(self, claims: Claims, work: Path, server: Served, wanted: dict[str, str]) -> None:
        self._claims, self._server, self._wanted = claims, server, wanted
        self._rng = random.Random(SEED)
        self._logs = [server.folder.with_name(f"acknowledged-{n}") for n in range(PUBLISHERS)]
        self._publishers = [publisher(work, server.address, n, RUNS, log) for n, log in enumerate(self._logs)]
        self._readers = [Reader(server.address, wanted, SEED + n) for n in range(2)]
        self._lost: list[str] = []
        self._met: Counter[str] = Counter()
        self._kills = 0

    def run(self) -> None:
        begun = time.monotonic()
        for reader in self._readers:
            reader.start()
        try:
            self._kill_it()
            errors = [one.communicate()[1].decode()[-300:] for one in self._publishers]
        finally:
            for one in self._publishers:
                one.kill()
            for reader in self._readers:
                reader.stopped.set()
                reader.join()
        self._claims(
            all(one.returncode == 0 for one in self._publishers),
            f"{len(self._wanted)} runs by {len(self._publishers)} publishers in {time.monotonic() - begun:.0f} s, "
            f"the server killed {self._kills} times",
        )
        lines = zip(self._publishers, errors, strict=True)
        print("".join(f"      {line}\n" for one, line in lines if one.returncode), end="")
        self._say()

    def _kill_it(self) -> None:
        """At moments that are spread over all of the work; some come as soon as it has begun again."""
        some = range(len(self._wanted) * 9 // 10)
        moments = sorted(self._rng.choices(some, k=KILLS))
        while any(one.poll() is None for one in self._publishers):
            time.sleep(0.05)
            if self._kills < len(moments) and len(acknowledged(self._logs)) >= moments[self._kills]:
                time.sleep(self._rng.uniform(0.0, 1.0))
                self._server.kill()
                self._kills += 1
                known = acknowledged(self._logs)
                self._met += uploads_left(self._server)
                self._server.start()
                there = listed(self._server.address)
                lost = [name for name, sha256 in known.items() if there.get(name) != sha256]
                self._lost += [f"after kill {self._kills}: {name}" for name in lost]

    def _say(self) -> None:
        claims, kills, server = self._claims, self._kills, self._server
        claims(kills == KILLS, f"killed {kills} of {KILLS} times under load")
        claims(
            self._met[OPEN] and self._met[CHECKING],
            f"the kills met {self._met[OPEN]} uploads that were being sent, {self._met[CHECKING]} that were checked",
        )
        claims(not self._lost, f"nothing that was acknowledged is lost {self._lost[:3]}")
        said = [line for reader in self._readers for line in reader.wrong]
        wrong = [line for line in said if "cannot reach" not in line and "broke" not in line]
        rounds, read = (sum(getattr(one, name) for one in self._readers) for name in ("rounds", "read"))
        claims(not wrong and rounds, f"{rounds} listings and {read} releases read meanwhile: nothing half {wrong[:3]}")
        with Registry(HttpTransport(server.address, timeouts=CALM)) as registry:
            entries = registry.entries()
            damaged = [line for entry in entries for line in registry.find_problems(entry)]
        once = sorted((entry.reference.name, entry.sha256) for entry in entries) == sorted(self._wanted.items())
        claims(once and not damaged, f"all {len(entries)} are there, once and whole {damaged[:3]}")
        left = [path.name for path in (server.folder / "incoming").iterdir()]
        claims(not left, f"nothing is left of uploads {left[:3]}")


def uploads_left(server: Served) -> Counter[str]:
    """How many uploads are in which state, while no server runs."""
    database = Database(server.settings.database_url)
    try:
        with database.reading() as connection:
            return Counter(row.state for row in connection.execute(select(uploads.c.state)))
    finally:
        database.close()


def publisher(work: Path, where: str, number: int, runs: int, log: Path) -> subprocess.Popen[bytes]:
    variables = {name: os.environ[name] for name in ("NIP_RUN_REGISTRY", "NIP_RUN_TOKEN")}
    words = [where, str(work), str(log), str(number), str(runs)]
    return subprocess.Popen(
        [sys.executable, "-c", PUBLISH, *words], cwd=ROOT, env=environment(**variables), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def acknowledged(logs: list[Path]) -> dict[str, str]:
    found = {}
    for log in logs:
        for line in log.read_text().splitlines() if log.is_file() else ():
            name, _, sha256 = line.partition(" ")
            if len(sha256) == 64:  # a line that is just being written is none
                found[name] = sha256
    return found


def listed(where: str) -> dict[str, str]:
    with Registry(HttpTransport(where, timeouts=CALM)) as registry:
        return {entry.reference.name: entry.sha256 for entry in registry.entries()}
