"""`nip-run publish` into a folder, when a system call fails or the process is killed.

Another reader must never see a part of the release, and the same command must then finish the publication. The tests
need gcc, and root to mount a small disk.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Self

import pytest

from runner.base.storage.locks import locked
from runner.registry.transports.locations import connect
from tests.support.processes import nip_run
from tests.support.runs import only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.small_disks import mount_small_disk
from tests.support.soft_assertions import SoftAssertions
from tests.support.specs import spec_file
from tests.support.syscall_faults import fault_library

OPTIONS = ("--as", "acme", "--licence", "MIT", "--force", "-q")
FAULTS = 12


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a run whose journal is several times 64 KiB long."""
    with run_chat_server(length=6_000) as server:
        run_spec(spec_file(tmp_path, server.base_url, size=8, benchmark="kills/v1"), tmp_path / "results")
    return tmp_path


def test_killed_publish_publishes_all_or_nothing(work: Path, check: SoftAssertions) -> None:
    library, rng = fault_library(work), random.Random(1)
    calls, expected = record_calls(check, work, library)
    results: Counter[str] = Counter()
    problems: list[str] = []
    for number in sorted(rng.sample(range(len(calls)), FAULTS)):
        fault = ("kill", str(errno.ENOSPC))[number % 2]
        registry = work / f"registry-{number}-{fault}"
        variables = {"NIP_FAULT_FOLDER": str(registry), "NIP_FAULT_AT": str(number), "NIP_FAULT_HOW": fault}
        with RegistryReader(registry) as reader:
            code, output = publish(work, registry, LD_PRELOAD=str(library), **variables)
            hashes = list_hashes(registry)
            second_code, second_output = publish(work, registry)
        results["all" if hashes else "nothing"] += 1
        if code not in (0, 1, -9) or (fault != "kill" and code == 0 and not hashes):
            problems.append(f"{calls[number]}, {fault}: exit {code}: {output[-200:]}")
        if hashes not in ([], [expected]) or reader.problems:
            problems.append(f"{calls[number]}, {fault}: a reader saw {hashes} {reader.problems}")
        if second_code != 0 or list_hashes(registry) != [expected]:
            problems.append(f"{calls[number]}, {fault}: second publish: exit {second_code}: {second_output[-200:]}")
        shutil.rmtree(registry)
    check(
        not problems,
        f"{FAULTS} faults leave nothing ({results['nothing']}) or everything ({results['all']}), and the same command "
        f"then publishes the same manifest {problems[:3]}",
    )


def record_calls(check: SoftAssertions, work: Path, library: Path) -> tuple[list[str], str]:
    """Publish without a fault; return the system calls of the publish and the hash of the release."""
    log, registry = work / "calls.log", work / "undisturbed"
    variables = {"LD_PRELOAD": str(library), "NIP_FAULT_FOLDER": str(registry), "NIP_FAULT_LOG": str(log)}
    code, output = publish(work, registry, **variables)
    check(code == 0, f"a publish without a fault succeeds: {output}")
    calls = log.read_text().splitlines()
    (expected,) = list_hashes(registry)
    writes = sum(call.startswith("write") and call.endswith("journal.jsonl") for call in calls)
    check(writes >= 3, f"the publish writes the journal in several pieces: {writes} of {len(calls)} calls")
    return calls, expected


def test_publish_into_a_folder_without_write_access_is_refused(work: Path, check: SoftAssertions) -> None:
    folder = work / "closed"
    folder.mkdir(mode=0o555)
    if os.geteuid() == 0:  # root may write to any folder, so a file takes the place of the folder
        folder.rmdir()
        folder.write_bytes(b"")
    code, output = publish(work, folder / "registry")
    check(code == 1 and "cannot" in output and "Traceback" not in output, f"the error is clear: {output[:120]}")
    if folder.is_dir():
        folder.chmod(stat.S_IRWXU)


def test_publish_to_a_full_disk_fails_and_succeeds_with_space(work: Path, check: SoftAssertions) -> None:
    with mount_small_disk(work / "disk", 128):
        registry = work / "disk" / "registry"
        code, output = publish(work, registry)
        check(code == 1 and "No space left" in output, f"the error is clear: {output[:120]}")
        check(list_hashes(registry) == [], "nothing is published on a full disk")
        subprocess.run(["mount", "-o", "remount,size=64m", work / "disk"], check=True)
        code, output = publish(work, registry)
        check(code == 0 and len(list_hashes(registry)) == 1, f"the same command then publishes the run: {output}")


def test_run_in_progress_is_published_only_after_its_end(work: Path, check: SoftAssertions) -> None:
    registry = work / "registry"
    with locked(only_run(work / "results") / ".lock", "it"):
        code, output = publish(work, registry)
    check(code == 1 and "in use by process" in output, f"the error is clear: {output[:120]}")
    check(not registry.exists(), "nothing is published of a run in progress")
    code, output = publish(work, registry)
    check(code == 0, f"a run that has ended is published: {output}")


class RegistryReader:
    """Reads a registry again and again in a thread, and collects problems."""

    def __init__(self, registry: Path) -> None:
        self._registry, self._stopped = registry, threading.Event()
        self.problems: list[str] = []
        self._thread = threading.Thread(target=self._read_repeatedly, daemon=True)

    def _read_repeatedly(self) -> None:
        while not self._stopped.is_set():
            with connect(str(self._registry)) as registry:
                for entry in registry.entries():
                    self.problems += registry.find_problems(entry)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()


def publish(work: Path, registry: Path, **variables: str) -> tuple[int, str]:
    """Publish the last run; return the exit code and the output."""
    done = nip_run("publish", "last", "--to", registry, *OPTIONS, cwd=work, timeout=300, **variables)
    return done.returncode, (done.stdout + done.stderr).strip()


def list_hashes(registry: Path) -> list[str]:
    """Return the hashes of the listed manifests; fail if a release is incomplete or damaged."""
    with connect(str(registry)) as opened_registry:
        entries = opened_registry.entries()
        for entry in entries:
            assert list(opened_registry.find_problems(entry)) == []
        return [entry.sha256 for entry in entries]
