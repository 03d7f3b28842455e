"""Publishers and readers of one registry, in processes of their own and here, and releases for them.

python -m tests.support.publishing REGISTRY PUBLISHER COUNT SHARED [BYTES]
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from runner.documents.releases.bundle import Bundle, checked_copy
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind
from runner.registry.transports.locations import connect
from runner.registry.transports.registry import Registry, ReleaseEntry
from tests.support.paths import ROOT
from tests.support.processes import environment


def bundle(owner: str, name: str, size: int = 20_000) -> Bundle:
    """A release whose every byte follows from its name; its largest file has this many."""
    seed = f"{owner}/{name}".encode()
    large = (hashlib.sha256(seed).digest() * (size // 32 + 1))[:size]
    release = Release(kind=Kind.RUN, owner=owner, name=name, version="1", facts={"seed": seed.hex()})
    small = {f"data/part{n}.json": b'{"n": %d}\n' % n for n in range(3)}
    return Bundle.of(release, {"README.md": seed + b"\n", "data/journal.jsonl": large, "empty.txt": b"", **small})


def own(publisher: int, count: int) -> list[str]:
    return [f"p{publisher}-r{number}" for number in range(count)]


def shared_names(shared: int) -> list[str]:
    """Releases that every publisher publishes, alike."""
    return [f"same-{number}" for number in range(shared)]


def main(where: str, publisher: int, count: int, shared: int, size: int = 20_000) -> None:
    """Publish releases of one's own, each by a publish of its own, and between them those that all publish."""
    owned, alike = own(publisher, count), shared_names(shared)
    turns = [[name, *alike[n : n + 1]] for n, name in enumerate(owned)]
    with connect(where) as registry:
        for names in turns:
            registry.publish([bundle("acme", name, size) for name in names], "Publish")


def publisher(where: Path, number: int, count: int, shared: int, **variables: str) -> subprocess.Popen[bytes]:
    words = [str(where), str(number), str(count), str(shared)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.publishing", *words], cwd=ROOT, env=environment(**variables),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def whole(registry: Registry, entry: ReleaseEntry) -> list[str]:
    """What is wrong with a release that a registry lists: of itself, and beside what was published under its name."""
    wanted = bundle("acme", entry.reference.name, registry.read_manifest(entry)[0].files[1].size)
    return [*registry.find_problems(entry), *(["it is another"] if entry.sha256 != wanted.sha256 else [])]


class Reader(threading.Thread):
    """Lists and reads all of a registry again and again, until it is told to stop."""

    def __init__(self, where: Path) -> None:
        super().__init__()
        self._where, self._stopped = where, threading.Event()
        self.wrong: list[str] = []
        self.seen: Counter[str] = Counter()
        self.rounds = 0

    def run(self) -> None:
        while not self._stopped.is_set():
            with connect(str(self._where)) as registry:
                try:
                    for entry in registry.entries():
                        self.wrong += whole(registry, entry)
                        self.seen[str(entry.reference)] += 1
                except Exception as error:  # noqa: BLE001 - whatever it is, no reader may see it
                    self.wrong.append(repr(error))
            self.rounds += 1
            time.sleep(0.01)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def states(registry: Path, into: Path, order: list[Path]) -> Iterator[tuple[int, ReleaseEntry | None, list[str]]]:
    """A registry copied file by file in an order, each first by half: what is listed of its one release after each."""
    for number, path in enumerate(order):
        data = (registry / path).read_bytes()
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        for part in (data[: len(data) // 2], data):
            (into / path).write_bytes(part)
            with connect(str(into)) as copied:
                entries = copied.entries()
                yield number, entries[0] if entries else None, list(copied.find_problems(entries[0])) if entries else []


def read_all(registry: Registry, entry: ReleaseEntry) -> int:
    """Bytes of all files of a release, each checked."""
    release, _ = registry.read_manifest(entry)
    total = 0
    for file in release.files:
        with registry.open(entry, file.path) as source, tempfile.TemporaryFile() as target:
            checked_copy(source, file, target.write)
        total += file.size
    return total


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
