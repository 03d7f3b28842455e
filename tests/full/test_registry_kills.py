"""Publishes into a folder with a fault in each system call in turn, and damaged or copied registries.

The release has a file of 512 KiB, which is written in pieces of 64 KiB, and small files.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.registry.transports.locations import connect
from tests.support.paths import ROOT
from tests.support.processes import environment
from tests.support.registry_publishers import bundle, copy_by_file, find_all_problems
from tests.support.release_trees import snapshot_folder
from tests.support.soft_assertions import SoftAssertions
from tests.support.syscall_faults import FAULTS, Fault, count_kinds, fault_library

SIZE = 512 << 10
ORDERS = 20

PUBLISH = f"""
import sys
from runner.base.errors import NipRunError
from runner.registry.transports.locations import connect
from tests.support.registry_publishers import bundle
try:
    with connect(sys.argv[1]) as registry:
        registry.publish([bundle("acme", "one", {SIZE})], "Publish")
except NipRunError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
"""


def test_publish_survives_every_fault_of_a_system_call(tmp_path: Path, check: SoftAssertions, origin: Path) -> None:
    check_all_faults(check, tmp_path, fault_library(tmp_path), read_release(origin))


def test_every_flipped_byte_of_a_release_is_reported(tmp_path: Path, check: SoftAssertions) -> None:
    check_flipped_bytes(check, tmp_path)


def test_partial_copy_of_a_registry_is_never_read_as_complete(
    tmp_path: Path, check: SoftAssertions, origin: Path
) -> None:
    check_copies(check, tmp_path, origin)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A registry with one release."""
    with connect(str(tmp_path / "origin")) as registry:
        registry.publish([bundle("acme", "one", SIZE)], "Publish")
    return tmp_path / "origin"


def read_release(registry: Path) -> dict[str, str]:
    """Return the content of a registry without hidden folders, which readers ignore."""
    return {path: content for path, content in snapshot_folder(registry).items() if not path.startswith(".")}


def publish(registry_folder: Path, library: Path, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PUBLISH, str(registry_folder)], cwd=ROOT, capture_output=True, text=True, check=False,
        env=environment(LD_PRELOAD=str(library), NIP_FAULT_FOLDER=str(registry_folder), **variables),
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stderr


def check_all_faults(check: SoftAssertions, folder: Path, library: Path, expected: dict[str, str]) -> None:
    log, undisturbed = folder / "calls.log", folder / "undisturbed"
    code, output = publish(undisturbed, library, NIP_FAULT_LOG=str(log))
    assert code == 0, output
    calls = log.read_text().splitlines()
    writes = sum(call.startswith("write") and call.endswith("journal.jsonl") for call in calls)
    print(f"a publish makes {len(calls)} calls: {count_kinds(calls)}; {writes} write the file of {SIZE >> 10} KiB")
    check(writes >= SIZE >> 16, f"the file of {SIZE >> 10} KiB is written in pieces of at most 64 KiB: {writes} writes")
    for first, fault in enumerate(FAULTS):
        codes: Counter[int] = Counter()
        problems = []
        for number in range(first, len(calls), len(FAULTS)):
            registry_folder = folder / "disturbed"
            code, problem = publish_with_fault(registry_folder, library, fault, number, expected)
            codes[code] += 1
            problems += [f"at call {number} ({calls[number]}): {problem}"] if problem else []
            shutil.rmtree(registry_folder)
        check(
            not problems,
            f"{fault.name}, at every fifth of {len(calls)} calls: {len(problems)} problems, exit codes {dict(codes)}",
        )
        print("".join(f"      {line}\n" for line in problems[:3]), end="")


def publish_with_fault(
    registry_folder: Path, library: Path, fault: Fault, number: int, expected: dict[str, str]
) -> tuple[int, str | None]:
    """Publish with a fault, then again without one; return the exit code of the first publish, and a problem."""
    code, output = publish(registry_folder, library, NIP_FAULT_AT=str(number), **fault.variables)
    if code not in ((-signal.SIGKILL, 0) if fault.how == "kill" else (0, 1)) or "Traceback" in output:
        return code, f"exit {code}: {output[-300:]}"
    with connect(str(registry_folder)) as registry:
        visible_problems = [line for entry in registry.entries() for line in find_all_problems(registry, entry)]
    if visible_problems or (code == 0 and read_release(registry_folder) != expected):
        return code, f"a reader sees {visible_problems or 'another release'}"
    second_code, output = publish(registry_folder, library)
    if second_code or read_release(registry_folder) != expected:
        return code, f"the second publish: exit {second_code} {output[-300:]}"
    leftover = list((registry_folder / ".incoming").iterdir())
    return code, f"files are left: {leftover}" if leftover and fault.how != "kill" and not fault.lasts else None


def check_flipped_bytes(check: SoftAssertions, folder: Path) -> None:
    registry_folder = folder / "flipped"
    with connect(str(registry_folder)) as registry:
        registry.publish([bundle("acme", "one", 64 << 10)], "Publish")
        registry.yank(registry.entries()[0].reference, "the reason of the yank")
    root = registry_folder / "run" / "acme" / "one" / "1"
    attempts, missed = 0, []
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        data = path.read_bytes()
        for position in range(0, len(data), 64):
            path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
            attempts += 1
            with connect(str(registry_folder)) as registry:
                output = list(registry.find_problems(registry.entries()[0]))
            if not any(str(path.relative_to(root)) in line and "damaged" in line for line in output):
                missed.append((path.name, position))
        path.write_bytes(data)
    check(attempts and not missed, f"each of {attempts} flipped bytes is reported (except {len(missed)}) {missed[:3]}")


def check_copies(check: SoftAssertions, folder: Path, origin: Path) -> None:
    files = [path.relative_to(origin) for path in sorted(origin.rglob("*")) if path.is_file()]
    results: Counter[str] = Counter()
    for seed in range(ORDERS):
        order = random.Random(seed).sample(files, len(files))
        copy = folder / f"copy-{seed}"
        for _, entry, problems in copy_by_file(origin, copy, order):
            results[describe_copy(origin, copy, entry is not None, problems)] += 1
        shutil.rmtree(copy)
    check(
        not results["incomplete without a problem"] and results["complete"] >= ORDERS,
        f"a partial copy is never read as complete, in {ORDERS} orders: {dict(results)}",
    )


def describe_copy(origin: Path, copy: Path, listed: bool, problems: list[str]) -> str:
    if not listed:
        return "not listed"
    if problems:
        return "incomplete with a problem"
    is_complete = all((copy / path).read_bytes() == (origin / path).read_bytes() for path in list_files(origin))
    return "complete" if is_complete else "incomplete without a problem"


def list_files(registry: Path) -> Iterator[Path]:
    return (path.relative_to(registry) for path in registry.rglob("*") if path.is_file())
