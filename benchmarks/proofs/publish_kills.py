"""A publish into a folder that is killed, or fails, at each write, flush and rename: nothing half visible, ever.

    python benchmarks/proofs/publish_kills.py [--times N] [--seed S]

A played run whose journal has several times 64 KiB is published by the command line into a folder registry. N of its
calls on files there (all, where N is 0), among them one after every file and one for every 64 KiB of a larger one, each
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
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from shared import Claims, folder, times
from syscall_faults import shim

from runner.base.storage.locks import locked
from runner.registry.transports.locations import connect
from tests.support.processes import nip_run
from tests.support.runs import only_run, played
from tests.support.servers.chat_client import serving
from tests.support.specs import spec_file

AS = ("--as", "acme", "--licence", "MIT", "--force", "-q")
WORKERS = 2


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
                    self.wrong += registry.wrong(entry)
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
            assert list(registry.wrong(entry)) == []
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


@contextmanager
def small_disk(at: Path, kib: int) -> Iterator[bool]:
    at.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", at], check=False, capture_output=True)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", at], check=False)


def full_disk(claim: Claims, work: Path) -> None:
    with small_disk(work / "disk", 128) as mounted:
        if not mounted:
            print("no tmpfs can be mounted here: ENOSPC was made by the faults above alone")
            return
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


def main() -> int:
    asked, claim = times(__doc__, 12), Claims()
    with folder() as work:
        library = shim(work)
        if library is None:
            return 0
        with serving(length=6_000) as server:
            played(spec_file(work, server.base_url, size=8, benchmark="kills/v1"), work / "results")
        kills(claim, work, library, asked.times, random.Random(asked.seed))
        may_not_write(claim, work)
        full_disk(claim, work)
        being_played(claim, work)
    return claim.end()


if __name__ == "__main__":
    sys.exit(main())
