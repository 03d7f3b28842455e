"""Ten publishers at once on one shared folder, and two readers: every release once, and never half of one.

Each publisher is a process that publishes N releases of its own, one by one, and between them those that all of them
publish alike. Two readers list the registry and read every byte of it all the time. Then each publisher again, with
nothing left to do; and some of them killed on the way, as often as there are publishers.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from runner.registry.transports.locations import connect
from tests.support.claims import Claims
from tests.support.processes import until
from tests.support.publishing import Reader, own, publisher, shared_names, whole
from tests.support.release_trees import snapshot

PUBLISHERS, READERS, SHARED = 10, 2, 5
RELEASES = 20


def test_publishers_at_once_leave_every_release_once_and_whole(tmp_path: Path, claims: Claims) -> None:
    at_once(claims, tmp_path / "registry", RELEASES, expected_names())


def test_publishers_that_are_killed_leave_nothing_half(tmp_path: Path, claims: Claims) -> None:
    killed(claims, tmp_path / "killed", RELEASES, expected_names(), random.Random(1))


def expected_names() -> list[str]:
    names = (name for number in range(PUBLISHERS) for name in own(number, RELEASES))
    return sorted([*names, *shared_names(min(SHARED, RELEASES))])


def at_once(claims: Claims, where: Path, count: int, wanted: list[str]) -> None:
    readers = [Reader(where) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    begun = time.monotonic()
    said = together(where, count)
    seconds = time.monotonic() - begun
    for reader in readers:
        reader.stop()
    claims(said == [], f"{PUBLISHERS} publishers of {count} releases, {len(wanted)} in all: {seconds:.1f} s {said[:3]}")
    wrong = [line for reader in readers for line in reader.wrong]
    rounds, read = sum(reader.rounds for reader in readers), sum(reader.seen.total() for reader in readers)
    claims(not wrong and rounds > READERS, f"{rounds} listings and {read} releases read meanwhile, wrong {wrong[:3]}")
    ended(claims, where, wanted)
    before = snapshot(where)
    claims(together(where, count) == [] and snapshot(where) == before, "all of it again changes nothing")


def killed(claims: Claims, where: Path, count: int, wanted: list[str], rng: random.Random) -> None:
    """Each publisher is killed at a random moment; what is listed is whole; then all publish again."""
    wrong: list[str] = []
    kills = 0
    for turn in range(3):
        processes = [publisher(where, number, count, SHARED) for number in range(PUBLISHERS)]
        until(lambda more=5 * turn: len(list(where.glob("run/*/*/*"))) > more)  # type: ignore[misc]
        for process in rng.sample(processes, len(processes)):
            time.sleep(rng.uniform(0.0, 0.1))
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.communicate()
        with connect(str(where)) as registry:
            wrong += [line for entry in registry.entries() for line in whole(registry, entry)]
    left = len(list((where / ".incoming").iterdir()))
    claims(not wrong and kills, f"{kills} publishers killed, {left} leftovers that nobody sees, wrong {wrong[:3]}")
    claims(together(where, count) == [], "the same publishes finish")
    ended(claims, where, wanted, left)


def together(where: Path, count: int) -> list[str]:
    """What went wrong with the publishers."""
    processes = [publisher(where, number, count, SHARED) for number in range(PUBLISHERS)]
    said = [(process.communicate()[1].decode(), process) for process in processes]
    return [text[-300:] for text, process in said if process.returncode]


def ended(claims: Claims, where: Path, wanted: list[str], left: int = 0) -> None:
    with connect(str(where)) as registry:
        begun = time.monotonic()
        entries = registry.entries()
        seconds = time.monotonic() - begun
        names = sorted(entry.reference.name for entry in entries)
        wrong = [line for entry in entries for line in whole(registry, entry)]
    claims(
        names == wanted and not wrong, f"all {len(names)} releases are there, once and whole; listed in {seconds:.2f} s"
    )
    there = len(list((where / ".incoming").iterdir()))
    claims(there == left, f"left in .incoming: {there}")
