"""A shared folder with concurrent publishers and readers, copies and damage: no partial release appears complete."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from runner.registry.transports.locations import connect
from tests.support.hang_guard import HANG_SECONDS
from tests.support.registry_publishers import (
    RegistryReader,
    bundle,
    copy_by_file,
    find_all_problems,
    own_names,
    shared_names,
    start_publisher,
)
from tests.support.release_trees import snapshot_folder


def wait_for_error(process: subprocess.Popen[bytes]) -> str:
    _, stderr = process.communicate(timeout=HANG_SECONDS)
    return stderr.decode() if process.returncode else ""


def test_concurrent_publishers_lose_nothing_and_readers_see_no_partial_release(tmp_path: Path) -> None:
    publishers, runs, shared = 3, 4, 3
    reader = RegistryReader(tmp_path)
    reader.start()
    try:
        processes = [start_publisher(tmp_path, number, runs, shared) for number in range(publishers)]
        errors = [wait_for_error(process) for process in processes]
    finally:
        reader.stop()
    assert errors == [""] * publishers
    assert reader.problems == []
    assert reader.rounds > 1
    names = [name for number in range(publishers) for name in own_names(number, runs)] + shared_names(shared)
    with connect(str(tmp_path)) as registry:
        entries = registry.entries()
        assert sorted(entry.reference.name for entry in entries) == sorted(names)
        assert [line for entry in entries for line in find_all_problems(registry, entry)] == []
    assert list((tmp_path / ".incoming").iterdir()) == []


@pytest.mark.full
def test_killed_publishers_leave_no_partial_release_and_can_be_repeated(tmp_path: Path) -> None:
    rng = random.Random(3)
    for _ in range(6):
        process = start_publisher(tmp_path, 0, 20, 0)
        time.sleep(rng.uniform(0.2, 1.2))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with connect(str(tmp_path)) as registry:
            assert [line for entry in registry.entries() for line in find_all_problems(registry, entry)] == []
    assert wait_for_error(start_publisher(tmp_path, 0, 20, 0)) == ""
    with connect(str(tmp_path)) as registry:
        assert sorted(entry.reference.name for entry in registry.entries()) == sorted(own_names(0, 20))


def test_flipped_byte_in_any_file_is_reported_with_the_file(tmp_path: Path) -> None:
    with connect(str(tmp_path)) as registry:
        registry.publish([bundle("acme", "one", 3_000)], "Publish")
        registry.yank(registry.entries()[0].reference, "why it was yanked")
    folder = tmp_path / "run" / "acme" / "one" / "1"
    before, flipped = snapshot_folder(tmp_path), 0
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data, name = path.read_bytes(), str(path.relative_to(folder))
        for offset in {*range(0, len(data), 64), len(data) - 1} if data else ():
            path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
            with connect(str(tmp_path)) as registry:
                (entry,) = registry.entries()
                (problem,) = registry.find_problems(entry)
            assert name in problem.replace(str(tmp_path), ""), (name, offset, problem)
            assert "damaged" in problem
            flipped += 1
        path.write_bytes(data)
    assert snapshot_folder(tmp_path) == before
    assert flipped > 80


@pytest.mark.parametrize("seed", range(3))
def test_partly_copied_registry_is_reported_as_incomplete(tmp_path: Path, seed: int) -> None:
    with connect(str(tmp_path / "from")) as registry:
        registry.publish([bundle("acme", "one", 3_000)], "Publish")
    order = [path.relative_to(tmp_path / "from") for path in (tmp_path / "from").rglob("*") if path.is_file()]
    random.Random(seed).shuffle(order)
    for number, entry, problems in copy_by_file(tmp_path / "from", tmp_path / "to", order):
        if entry is not None and problems == []:
            assert number == len(order) - 1 or not any((tmp_path / "from" / path).stat().st_size
                                                       for path in order[number + 1 :])  # fmt: skip
        assert all("is missing" in line or "is damaged" in line for line in problems)
    assert entry is not None
    assert problems == []
    assert snapshot_folder(tmp_path / "to") == {
        path: content for path, content in snapshot_folder(tmp_path / "from").items() if path != ".incoming"
    }
