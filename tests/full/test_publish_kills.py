"""A publish into a folder that is killed, or fails, at each write, flush and rename: nothing half visible, ever.

A played run whose journal has several times 64 KiB is published by the command line into a folder registry. Some of its
calls on files there, among them one after every file and one for every 64 KiB of a larger one, each
go wrong once: the process is killed, or the disk is full. A reader looks all the time. After each, nothing or all of
the release is there, the same command finishes, and the manifest is the same. Then a registry folder that may not be
written to, a disk that is full, and a run that goes on while it is published. Needs gcc; and root for the last disk.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
import subprocess
import threading
from pathlib import Path
from typing import Self

import pytest

from runner.base.storage.locks import locked
from runner.registry.transports.locations import connect
from tests.support.claims import Claims
from tests.support.processes import nip_run
from tests.support.runs import only_run, played
from tests.support.servers.chat_client import serving
from tests.support.small_disks import mounted
from tests.support.specs import spec_file
from tests.support.syscall_faults import fault_library

AS = ("--as", "acme", "--licence", "MIT", "--force", "-q")
TIMES = 12


class Reader:
    """Reads a registry over and over, as somebody else would, and keeps whatever was wrong."""

    def __init__(self, where: Path) -> None:
        self._where, self._ended = where, threading.Event()
        self.looks, self.wrong = 0, list[str]()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._ended.is_set():
            with connect(str(self._where)) as registry:
                for entry in registry.entries():
                    self.wrong += registry.find_problems(entry)
            self.looks += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def publish(work: Path, where: Path, **variables: str) -> tuple[int, str]:
    done = nip_run("publish", "last", "--to", where, *AS, cwd=work, timeout=300, **variables)
    return done.returncode, done.stdout + done.stderr


def releases(where: Path) -> list[str]:
    """The manifests that a reader sees, each with all of its files whole."""
    with connect(str(where)) as registry:
        for entry in registry.entries():
            assert list(registry.find_problems(entry)) == []
        return [entry.sha256 for entry in registry.entries()]


def kills(claim: Claims, work: Path, library: Path, most: int, rng: random.Random) -> None:
    log, where = work / "calls.log", work / "counted"
    variables = {"LD_PRELOAD": str(library), "NIP_FAULT_FOLDER": str(where), "NIP_FAULT_LOG": str(log)}
    code, said = publish(work, where, **variables)
    calls = log.read_text().splitlines()
    (expected,) = releases(where)
    pieces = sum(line.startswith("write") and line.endswith("journal.jsonl") for line in calls)
    claim(code == 0, f"published: {len(calls)} writes, flushes and renames, {pieces} of them writes of the journal")
    claim(pieces >= 3, "its journal takes more than one write of 64 KiB")
    chosen = range(len(calls)) if most == 0 or most >= len(calls) else sorted(rng.sample(range(len(calls)), most))
    seen = {"nothing": 0, "all": 0}
    wrong: list[str] = []
    for number in chosen:
        how = ("kill", str(errno.ENOSPC))[number % 2] if most else "kill"
        for fault in {how} if most else ("kill", str(errno.ENOSPC)):
            there = work / f"registry-{number}-{fault}"
            fault_of = {"NIP_FAULT_FOLDER": str(there), "NIP_FAULT_AT": str(number), "NIP_FAULT_HOW": fault}
            with Reader(there) as reader:
                code, said = publish(work, there, LD_PRELOAD=str(library), **fault_of)
                left = releases(there)
                again, said_again = publish(work, there)
            seen["all" if left else "nothing"] += 1
            if code not in (0, 1, -9) or (fault != "kill" and code == 0 and not left):
                wrong.append(f"{calls[number]}, {fault}: exit {code}: {said[-200:]}")
            if left not in ([], [expected]) or reader.wrong or again != 0 or releases(there) != [expected]:
                wrong.append(
                    f"{calls[number]}, {fault}: left {left}, again {again}, {reader.wrong} {said_again[-200:]}"
                )
            shutil.rmtree(there)
    claim(not wrong, f"{len(chosen)} calls gone wrong: nothing is left ({seen['nothing']}) or all ({seen['all']}), "
          f"the same command finished, one manifest {wrong[:3]}")  # fmt: skip


def may_not_write(claim: Claims, work: Path) -> None:
    """As another user, since root may write anywhere."""
    where = work / "closed"
    where.mkdir(mode=0o555)
    if os.geteuid() == 0:
        print("root may write anywhere: a file stands where the folder belongs")
        where.rmdir()
        where.write_bytes(b"")
    code, said = publish(work, where / "registry")
    claim(code == 1 and "cannot" in said and "Traceback" not in said, f"it may not be written: {said.strip()[:120]}")
    if where.is_dir():
        where.chmod(stat.S_IRWXU)


def full_disk(claim: Claims, work: Path) -> None:
    with mounted(work / "disk", 128):
        where = work / "disk" / "registry"
        code, said = publish(work, where)
        claim(code == 1 and "No space left" in said and releases(where) == [], f"a full disk: {said.strip()[:120]}")
        subprocess.run(["mount", "-o", "remount,size=64m", work / "disk"], check=True)
        code, said = publish(work, where)
        claim(code == 0 and len(releases(where)) == 1, "and with room the same command finishes")


def being_played(claim: Claims, work: Path) -> None:
    where = work / "while-played"
    with locked(only_run(work / "results") / ".lock", "it"):
        code, said = publish(work, where)
    claim(code == 1 and "in use by process" in said and not where.exists(), "a run that is being played is refused")
    code, _ = publish(work, where)
    claim(code == 0, "and published once it is not")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a played run, whose journal is several times 64 KiB long."""
    with serving(length=6_000) as server:
        played(spec_file(tmp_path, server.base_url, size=8, benchmark="kills/v1"), tmp_path / "results")
    return tmp_path


def test_a_publish_by_command_is_all_or_nothing_wherever_it_is_killed(work: Path, claims: Claims) -> None:
    kills(claims, work, fault_library(work), TIMES, random.Random(1))


def test_a_publish_into_a_folder_that_takes_nothing_is_refused(work: Path, claims: Claims) -> None:
    may_not_write(claims, work)
    full_disk(claims, work)
    being_played(claims, work)
