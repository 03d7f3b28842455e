"""Processes that publish to one registry at the same time, and a thread that reads it.

python -m tests.support.registry_publishers REGISTRY PUBLISHER COUNT SHARED [BYTES]
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from runner.documents.releases.bundle import Bundle
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind
from runner.registry.transports.locations import connect
from runner.registry.transports.registry import Registry, ReleaseEntry
from tests.support.paths import ROOT
from tests.support.processes import environment


def bundle(owner: str, name: str, size: int = 20_000) -> Bundle:
    """Return a release whose content is derived from its name; `size` is the size of its largest file."""
    seed = f"{owner}/{name}".encode()
    large = (hashlib.sha256(seed).digest() * (size // 32 + 1))[:size]
    release = Release(kind=Kind.RUN, owner=owner, name=name, version="1", facts={"seed": seed.hex()})
    small = {f"data/part{n}.json": b'{"n": %d}\n' % n for n in range(3)}
    return Bundle.of(release, {"README.md": seed + b"\n", "data/journal.jsonl": large, "empty.txt": b"", **small})


def own_names(publisher: int, count: int) -> list[str]:
    return [f"p{publisher}-r{number}" for number in range(count)]


def shared_names(shared: int) -> list[str]:
    """Return the names of the releases that every publisher publishes with the same content."""
    return [f"same-{number}" for number in range(shared)]


def main(registry_url: str, publisher: int, count: int, shared: int, size: int = 20_000) -> None:
    """Publish the releases of one publisher one by one, each together with the next shared release."""
    shared_releases = shared_names(shared)
    turns = [[name, *shared_releases[n : n + 1]] for n, name in enumerate(own_names(publisher, count))]
    with connect(registry_url) as registry:
        for names in turns:
            registry.publish([bundle("acme", name, size) for name in names], "Publish")


def start_publisher(registry: Path, number: int, count: int, shared: int, **variables: str) -> subprocess.Popen[bytes]:
    arguments = [str(registry), str(number), str(count), str(shared)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.registry_publishers", *arguments], cwd=ROOT, env=environment(**variables),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def find_all_problems(registry: Registry, entry: ReleaseEntry) -> list[str]:
    """Return the problems of a listed release, also if it differs from the release that was published."""
    expected = bundle("acme", entry.reference.name, registry.read_manifest(entry)[0].files[1].size)
    return [*registry.find_problems(entry), *(["it has another hash"] if entry.sha256 != expected.sha256 else [])]


class RegistryReader(threading.Thread):
    """Lists and reads all releases of a registry again and again until `stop` is called."""

    def __init__(self, registry: Path) -> None:
        super().__init__()
        self._registry, self._stopped = registry, threading.Event()
        self.problems: list[str] = []
        self.read_counts: Counter[str] = Counter()
        self.rounds = 0

    def run(self) -> None:
        while not self._stopped.is_set():
            with connect(str(self._registry)) as registry:
                try:
                    for entry in registry.entries():
                        self.problems += find_all_problems(registry, entry)
                        self.read_counts[str(entry.reference)] += 1
                except Exception as error:  # noqa: BLE001 - no error at all is expected
                    self.problems.append(repr(error))
            self.rounds += 1
            time.sleep(0.01)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def copy_by_file(registry: Path, into: Path, order: list[Path]) -> Iterator[tuple[int, ReleaseEntry | None, list[str]]]:
    """Copy a registry with one release file by file, each file first by half.

    After each step, yield the number of the file, the listed release, if any, and its problems.
    """
    for number, path in enumerate(order):
        data = (registry / path).read_bytes()
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        for part in (data[: len(data) // 2], data):
            (into / path).write_bytes(part)
            with connect(str(into)) as copied_registry:
                entries = copied_registry.entries()
                yield (
                    number,
                    entries[0] if entries else None,
                    list(copied_registry.find_problems(entries[0])) if entries else [],
                )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
