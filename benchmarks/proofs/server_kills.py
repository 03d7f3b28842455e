"""A server killed under load: ten publishers of 20 runs each at once, and two readers.

    python benchmarks/proofs/server_kills.py [--times N] [--publishers N] [--runs N] [--seed S] [--database URL]
                                             [--blobs URL]

The server is killed N times (20), each at a random moment, and begun again. A publisher repeats what failed, as
somebody repeats a command, and writes down what was acknowledged. After each kill all that was acknowledged is there;
whatever is listed is whole; and in the end each run is there once, with its hash. With a PostgreSQL URL the records are
there.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

from shared import ROOT, Claims, folder

from runner.errors import NipRunError
from runner.transports.http import HttpTransport
from runner.transports.patience import Patience
from runner.transports.registry import Registry
from tests.support.played import named, played_release
from tests.support.processes import environment
from tests.support.serving import Served

CALM = Patience(wait=0.1, tries=8, longest_wait=3.0)
PUBLISH = """
import sys, time
from pathlib import Path
from runner.errors import NipRunError
from runner.transports.http import HttpTransport
from runner.transports.patience import Patience
from runner.transports.registry import Registry
from tests.support.played import local_release, named
where, work, log, number, runs = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])
release, contents = local_release(work)
for run in range(runs):
    bundle = named(release, contents, f"p{number}-r{run}")
    while True:
        try:
            with Registry(HttpTransport(where, patience=Patience(wait=0.1, longest_wait=3.0))) as registry:
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
        while not self.stopped.wait(0.05):
            try:
                with Registry(HttpTransport(self._where, patience=Patience(tries=1, wait=0.05))) as registry:
                    entries = registry.entries()
                    names = [entry.reference.name for entry in entries]
                    self.wrong += [f"{name} twice" for name in {name for name in names if names.count(name) > 1}]
                    for entry in self._rng.sample(entries, min(3, len(entries))):
                        if self._wanted[entry.reference.name] != entry.sha256:
                            self.wrong.append(f"{entry} is another")
                        self.wrong += registry.wrong(entry) if self._answers() else []
                        self.read += 1
                self.rounds += 1
            except NipRunError:
                self.unanswered += 1

    def _answers(self) -> bool:
        return not self.stopped.is_set()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("times", 20), ("publishers", 10), ("runs", 20), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N")
    parser.add_argument("--database", metavar="URL")
    parser.add_argument("--blobs", metavar="URL")
    asked, claims = parser.parse_args(), Claims()
    with folder() as here:
        (here / "work").mkdir()
        release, contents = played_release(here / "work")
        names = [f"p{p}-r{r}" for p in range(asked.publishers) for r in range(asked.runs)]
        wanted = {name: named(release, contents, name).sha256 for name in names}
        server = Served(here / "server", database=asked.database, blobs=asked.blobs)
        os.environ["NIP_RUN_TOKEN"] = server.account("acme")
        server.start()
        os.environ["NIP_RUN_REGISTRY"] = server.address
        try:
            under_load(claims, here, server, wanted, asked)
        finally:
            server.stop()
    return claims.end()


def under_load(claims: Claims, here: Path, server: Served, wanted: dict[str, str], asked: argparse.Namespace) -> None:
    rng, logs = random.Random(asked.seed), [here / f"acknowledged-{n}" for n in range(asked.publishers)]
    readers = [Reader(server.address, wanted, asked.seed + n) for n in range(2)]
    begun = time.monotonic()
    publishers = [publisher(here, server.address, n, asked.runs, logs[n]) for n in range(asked.publishers)]
    for reader in readers:
        reader.start()
    lost: list[str] = []
    kills = 0
    while any(one.poll() is None for one in publishers):
        time.sleep(rng.uniform(0.3, 3.0))
        if kills < asked.times:
            server.kill()
            kills += 1
            known = acknowledged(logs)
            server.start()
            there = listed(server.address)
            lost += [f"after kill {kills}: {name}" for name, sha256 in known.items() if there.get(name) != sha256]
    errors = [one.communicate()[1].decode()[-300:] for one in publishers]
    for reader in readers:
        reader.stopped.set()
        reader.join()
    seconds = time.monotonic() - begun
    claims(
        all(one.returncode == 0 for one in publishers),
        f"{len(wanted)} runs by {asked.publishers} publishers in {seconds:.0f} s, the server killed {kills} times",
    )
    print("".join(f"      {line}\n" for one, line in zip(publishers, errors, strict=True) if one.returncode), end="")
    claims(kills == asked.times, f"killed {kills} of {asked.times} times under load")
    claims(not lost, f"nothing that was acknowledged is lost {lost[:3]}")
    wrong = [line for reader in readers for line in reader.wrong if "cannot reach" not in line and "broke" not in line]
    rounds, read = sum(one.rounds for one in readers), sum(one.read for one in readers)
    claims(not wrong and rounds, f"{rounds} listings and {read} releases read meanwhile: nothing half {wrong[:3]}")
    with Registry(HttpTransport(server.address, patience=CALM)) as registry:
        entries = registry.entries()
        damaged = [line for entry in entries for line in registry.wrong(entry)]
    once = sorted((entry.reference.name, entry.sha256) for entry in entries) == sorted(wanted.items())
    claims(once and not damaged, f"all {len(entries)} are there, once and whole {damaged[:3]}")
    left = [path.name for path in (server.folder / "incoming").iterdir()]
    claims(not left, f"nothing is left of uploads {left[:3]}")


def publisher(here: Path, where: str, number: int, runs: int, log: Path) -> subprocess.Popen[bytes]:
    variables = {name: os.environ[name] for name in ("NIP_RUN_REGISTRY", "NIP_RUN_TOKEN")}
    words = [where, str(here / "work"), str(log), str(number), str(runs)]
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
    with Registry(HttpTransport(where, patience=CALM)) as registry:
        return {entry.reference.name: entry.sha256 for entry in registry.entries()}


if __name__ == "__main__":
    sys.exit(main())
