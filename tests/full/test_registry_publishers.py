"""Ten processes that publish to one shared folder at the same time, while two threads read it.

Each process publishes its own releases, and between them the same shared releases as the others.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from runner.registry.transports.locations import connect
from tests.support.processes import wait_until
from tests.support.registry_publishers import (
    RegistryReader,
    find_all_problems,
    own_names,
    shared_names,
    start_publisher,
)
from tests.support.release_trees import snapshot_folder
from tests.support.soft_assertions import SoftAssertions

PUBLISHERS, READERS, SHARED = 10, 2, 5
RELEASES = 20


def test_concurrent_publishers_publish_every_release_once_and_completely(tmp_path: Path, check: SoftAssertions) -> None:
    check_concurrent_publishers(check, tmp_path / "registry", RELEASES, list_expected_names())


def test_killed_publishers_leave_no_partial_release(tmp_path: Path, check: SoftAssertions) -> None:
    check_killed_publishers(check, tmp_path / "killed", RELEASES, list_expected_names(), random.Random(1))


def list_expected_names() -> list[str]:
    names = (name for number in range(PUBLISHERS) for name in own_names(number, RELEASES))
    return sorted([*names, *shared_names(min(SHARED, RELEASES))])


def check_concurrent_publishers(check: SoftAssertions, registry_folder: Path, count: int, expected: list[str]) -> None:
    readers = [RegistryReader(registry_folder) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    started = time.monotonic()
    errors = publish_concurrently(registry_folder, count)
    seconds = time.monotonic() - started
    for reader in readers:
        reader.stop()
    check(errors == [], f"{PUBLISHERS} processes publish {len(expected)} releases in {seconds:.1f} s {errors[:3]}")
    problems = [line for reader in readers for line in reader.problems]
    rounds, read_count = sum(reader.rounds for reader in readers), sum(reader.read_counts.total() for reader in readers)
    check(
        not problems and rounds > READERS,
        f"{rounds} listings and {read_count} releases read at the same time are valid {problems[:3]}",
    )
    check_releases(check, registry_folder, expected)
    before = snapshot_folder(registry_folder)
    check(
        publish_concurrently(registry_folder, count) == [] and snapshot_folder(registry_folder) == before,
        "publishing the same releases again changes nothing",
    )


def check_killed_publishers(
    check: SoftAssertions, registry_folder: Path, count: int, expected: list[str], rng: random.Random
) -> None:
    """Kill each publisher at a random moment, check the listed releases, then publish everything again."""
    problems: list[str] = []
    kills = 0
    for round_ in range(3):
        processes = [start_publisher(registry_folder, number, count, SHARED) for number in range(PUBLISHERS)]
        wait_until(lambda more=5 * round_: len(list(registry_folder.glob("run/*/*/*"))) > more)  # type: ignore[misc]
        for process in rng.sample(processes, len(processes)):
            time.sleep(rng.uniform(0.0, 0.1))
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.communicate()
        with connect(str(registry_folder)) as registry:
            problems += [line for entry in registry.entries() for line in find_all_problems(registry, entry)]
    leftover_folders = len(list((registry_folder / ".incoming").iterdir()))
    check(
        not problems and kills,
        f"after {kills} kills, all listed releases are valid ({leftover_folders} temporary folders are left) "
        f"{problems[:3]}",
    )
    check(publish_concurrently(registry_folder, count) == [], "the same publishes finish")
    check_releases(check, registry_folder, expected, leftover_folders)


def publish_concurrently(registry_folder: Path, count: int) -> list[str]:
    """Run all publishers at the same time; return their error messages."""
    processes = [start_publisher(registry_folder, number, count, SHARED) for number in range(PUBLISHERS)]
    errors = [(process.communicate()[1].decode(), process) for process in processes]
    return [error[-300:] for error, process in errors if process.returncode]


def check_releases(
    check: SoftAssertions, registry_folder: Path, expected: list[str], expected_leftovers: int = 0
) -> None:
    with connect(str(registry_folder)) as registry:
        started = time.monotonic()
        entries = registry.entries()
        seconds = time.monotonic() - started
        names = sorted(entry.reference.name for entry in entries)
        problems = [line for entry in entries for line in find_all_problems(registry, entry)]
    check(
        names == expected and not problems,
        f"each release is listed once and valid: {len(names)}, in {seconds:.2f} s {problems[:3]}",
    )
    remaining = len(list((registry_folder / ".incoming").iterdir()))
    check(remaining == expected_leftovers, f"no other temporary folders are left: {remaining}")
