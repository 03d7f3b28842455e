"""A server that is killed again and again while clients publish to it and read from it.

Ten processes publish 20 runs each. The server is killed 20 times at random moments and started again. A publisher
repeats a publish that failed, and logs each release that the server acknowledged.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select

from runner.base.errors import NipRunError
from runner.registry.transports.http.transport import HttpTransport
from runner.registry.transports.registry import Registry
from runner.registry.transports.timeouts import Timeouts
from runner.server.store.schema import uploads
from runner.server.uploads.uploads import CHECKING, OPEN
from tests.support.paths import ROOT
from tests.support.postgresql import run_postgresql
from tests.support.processes import environment
from tests.support.run_releases import play_and_publish, rename_release
from tests.support.server_process import ServerProcess
from tests.support.soft_assertions import SoftAssertions

KILLS, PUBLISHERS, RUNS, SEED = 20, 10, 20, 1
RETRY_TIMEOUTS = Timeouts(wait=0.1, tries=8, longest_wait=3.0)
PUBLISH_SCRIPT = """
import sys, time
from pathlib import Path
from runner.base.errors import NipRunError
from runner.registry.transports.http.transport import HttpTransport
from runner.registry.transports.timeouts import Timeouts
from runner.registry.transports.registry import Registry
from tests.support.run_releases import load_local_release, rename_release
url, work, log, number, runs = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])
release, contents = load_local_release(work)
for run in range(runs):
    bundle = rename_release(release, contents, f"p{number}-r{run}")
    while True:
        try:
            with Registry(HttpTransport(url, timeouts=Timeouts(wait=0.1, longest_wait=3.0))) as registry:
                registry.publish([bundle], "Publish")
            break
        except NipRunError as error:
            print(error, file=sys.stderr, flush=True)
            time.sleep(0.2)
    with log.open("a") as file:
        file.write(f"{bundle.release.name} {bundle.sha256}\\n")
"""


@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
def test_server_killed_under_load_loses_no_acknowledged_release(
    tmp_path: Path, check: SoftAssertions, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    release, contents = play_and_publish(tmp_path / "work")
    names = [f"p{publisher}-r{run}" for publisher in range(PUBLISHERS) for run in range(RUNS)]
    hashes = {name: rename_release(release, contents, name).sha256 for name in names}
    with run_postgresql() as create_database:
        server = ServerProcess(tmp_path / "server", database=create_database() if database == "PostgreSQL" else None)
        monkeypatch.setenv("NIP_RUN_TOKEN", server.create_token("acme"))
        server.start()
        monkeypatch.setenv("NIP_RUN_REGISTRY", server.address)
        try:
            LoadTest(check, tmp_path / "work", server, hashes).run()
        finally:
            server.stop()


class LoadTest:
    """Publishers and readers of a server, and the kills of the server.

    `hashes` has the expected hash of each release by name.
    """

    def __init__(self, check: SoftAssertions, work: Path, server: ServerProcess, hashes: dict[str, str]) -> None:
        self._check, self._server, self._hashes = check, server, hashes
        self._rng = random.Random(SEED)
        self._logs = [server.folder.with_name(f"acknowledged-{number}") for number in range(PUBLISHERS)]
        self._publishers = [start_publisher(work, server.address, number, log) for number, log in enumerate(self._logs)]
        self._readers = [ReleaseReader(server.address, hashes, SEED + number) for number in range(2)]
        self._lost: list[str] = []
        self._interrupted: Counter[str] = Counter()
        """Uploads that the kills interrupted, by state."""
        self._kills = 0

    def run(self) -> None:
        started = time.monotonic()
        for reader in self._readers:
            reader.start()
        try:
            self._kill_repeatedly()
            errors = [publisher.communicate()[1].decode()[-300:] for publisher in self._publishers]
        finally:
            for publisher in self._publishers:
                publisher.kill()
            for reader in self._readers:
                reader.stopped.set()
                reader.join()
        self._check(
            all(publisher.returncode == 0 for publisher in self._publishers),
            f"{len(self._publishers)} publishers publish {len(self._hashes)} runs in {time.monotonic() - started:.0f} "
            f"s, while the server is killed {self._kills} times",
        )
        for publisher, error in zip(self._publishers, errors, strict=True):
            if publisher.returncode:
                print(f"      {error}")
        self._check_kills()
        self._check_readers()
        self._check_releases()

    def _kill_repeatedly(self) -> None:
        """Kill the server after random numbers of acknowledged releases, until all publishers have ended."""
        counts = sorted(self._rng.choices(range(len(self._hashes) * 9 // 10), k=KILLS))
        while any(publisher.poll() is None for publisher in self._publishers):
            time.sleep(0.05)
            if self._kills < len(counts) and len(read_acknowledged(self._logs)) >= counts[self._kills]:
                time.sleep(self._rng.uniform(0.0, 1.0))
                self._kill_once()

    def _kill_once(self) -> None:
        """Kill the server, start it again and compare its releases with the acknowledged ones."""
        self._server.kill()
        self._kills += 1
        acknowledged = read_acknowledged(self._logs)
        self._interrupted += count_uploads(self._server)
        self._server.start()
        listed = list_releases(self._server.address)
        lost = [name for name, sha256 in acknowledged.items() if listed.get(name) != sha256]
        self._lost += [f"after kill {self._kills}: {name}" for name in lost]

    def _check_kills(self) -> None:
        self._check(self._kills == KILLS, f"{self._kills} of {KILLS} kills happened under load")
        open_uploads, checking_uploads = self._interrupted[OPEN], self._interrupted[CHECKING]
        self._check(
            open_uploads and checking_uploads,
            f"the kills interrupted {open_uploads} uploads in transfer, and {checking_uploads} during checks",
        )
        self._check(not self._lost, f"no acknowledged release is lost {self._lost[:3]}")

    def _check_readers(self) -> None:
        problems = [
            problem
            for reader in self._readers
            for problem in reader.problems
            if "cannot reach" not in problem and "broke" not in problem
        ]
        rounds = sum(reader.rounds for reader in self._readers)
        read_count = sum(reader.read for reader in self._readers)
        self._check(
            not problems and rounds,
            f"{rounds} listings and {read_count} releases read at the same time are valid {problems[:3]}",
        )

    def _check_releases(self) -> None:
        with Registry(HttpTransport(self._server.address, timeouts=RETRY_TIMEOUTS)) as registry:
            entries = registry.entries()
            problems = [problem for entry in entries for problem in registry.find_problems(entry)]
        is_complete = sorted((entry.reference.name, entry.sha256) for entry in entries) == sorted(self._hashes.items())
        self._check(is_complete and not problems, f"each of {len(entries)} runs is published once {problems[:3]}")
        left = [path.name for path in (self._server.folder / "incoming").iterdir()]
        self._check(not left, f"no file of an upload is left {left[:3]}")


class ReleaseReader(threading.Thread):
    """Lists all releases and reads some of them until `stopped` is set. The server may be unreachable."""

    def __init__(self, url: str, hashes: dict[str, str], seed: int) -> None:
        super().__init__(daemon=True)
        self._url, self._hashes, self._rng = url, hashes, random.Random(seed)
        self.stopped = threading.Event()
        self.problems: list[str] = []
        self.rounds = self.read = 0

    def run(self) -> None:
        while not self.stopped.wait(0.25):
            try:
                with Registry(HttpTransport(self._url, timeouts=Timeouts(tries=1, wait=0.05))) as registry:
                    self._read_releases(registry)
                self.rounds += 1
            except NipRunError:
                pass  # the server is down

    def _read_releases(self, registry: Registry) -> None:
        entries = registry.entries()
        names = Counter(entry.reference.name for entry in entries)
        self.problems += [f"{name} is listed {count} times" for name, count in names.items() if count > 1]
        for entry in self._rng.sample(entries, min(3, len(entries))):
            if self._hashes[entry.reference.name] != entry.sha256:
                self.problems.append(f"{entry} has another hash")
            self.problems += [] if self.stopped.is_set() else registry.find_problems(entry)
            self.read += 1


def count_uploads(server: ServerProcess) -> Counter[str]:
    """Return the number of uploads by state, while the server does not run."""
    with closing(server.open_database()) as database, database.reading() as connection:
        return Counter(row.state for row in connection.execute(select(uploads.c.state)))


def start_publisher(work: Path, url: str, number: int, log: Path) -> subprocess.Popen[bytes]:
    variables = {name: os.environ[name] for name in ("NIP_RUN_REGISTRY", "NIP_RUN_TOKEN")}
    arguments = [url, str(work), str(log), str(number), str(RUNS)]
    return subprocess.Popen(
        [sys.executable, "-c", PUBLISH_SCRIPT, *arguments], cwd=ROOT, env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def read_acknowledged(logs: list[Path]) -> dict[str, str]:
    """Return the hashes of the acknowledged releases by name, from the logs of the publishers."""
    hashes = {}
    for log in logs:
        for line in log.read_text().splitlines() if log.is_file() else ():
            name, _, sha256 = line.partition(" ")
            if len(sha256) == 64:  # otherwise the publisher has not finished writing the line
                hashes[name] = sha256
    return hashes


def list_releases(url: str) -> dict[str, str]:
    """Return the hashes of the listed releases by name."""
    with Registry(HttpTransport(url, timeouts=RETRY_TIMEOUTS)) as registry:
        return {entry.reference.name: entry.sha256 for entry in registry.entries()}
