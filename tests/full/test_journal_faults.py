"""A journal cut at every byte, and one whose disk fails at the N-th call of each kind, for every N.

Random schedules of several faults follow.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from pathlib import Path
from typing import Any

from runner.base.errors import JournalError
from runner.base.storage.journal import Journal, RealDisk
from runner.base.storage.log_lines import read_journal
from runner.models.journal_records import log_header
from tests.support.claims import Claims
from tests.support.hang_guard import HANG_SECONDS
from tests.support.runs import derived_files, only_run, played
from tests.support.servers.chat_client import serving
from tests.support.specs import spec_file

RECORDS = 24
SCHEDULES, SEED = 300, 1
KINDS = ("write", "fsync", "truncate")
FAULTS = ("ENOSPC", "EIO", "short", "nothing")


class Failing(RealDisk):
    """Fails at the given calls: `(kind, number) -> fault`; with `for_good`, at all that follow too."""

    def __init__(self, at: dict[tuple[str, int], str], *, for_good: bool) -> None:
        self.at, self.for_good = at, for_good
        self.calls = dict.fromkeys(KINDS, 0)
        self.broken: str | None = None
        self.failed = 0

    def _fault(self, kind: str) -> str | None:
        number = self.calls[kind]
        self.calls[kind] += 1
        fault = self.broken or self.at.get((kind, number))
        if fault is not None:
            self.failed += 1
            if self.for_good:
                self.broken = fault
        return fault

    def write(self, fd: int, data: bytes) -> int:
        fault = self._fault("write")
        if fault == "nothing":
            return 0
        if fault is not None:
            # What a full disk took of a write stays on it.
            taken = os.write(fd, data[: len(data) // 2]) if len(data) > 1 else 0
            if fault == "short" and taken:
                return taken
            raise OSError(getattr(errno, fault, errno.EIO), "a fault of the disk")
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        fault = self._fault("fsync")
        if fault is not None and fault != "short":
            raise OSError(getattr(errno, fault, errno.EIO), "a fault of the disk")
        super().fsync(fd)

    def truncate(self, fd: int, length: int) -> None:
        fault = self._fault("truncate")
        if fault is not None and fault != "short":
            raise OSError(getattr(errno, fault, errno.EIO), "a fault of the disk")
        super().truncate(fd, length)


async def write(path: Path, disk: Failing, bunch: int) -> tuple[list[int], list[int]]:
    """Append until it fails: the numbers of the records that were acknowledged, and of those that were tried."""
    acknowledged: list[int] = []
    tried: list[int] = []
    journal = Journal(path, first=log_header("a run", "its-id"), run="a run", disk=disk)

    async def one(index: int) -> None:
        tried.append(index)
        await journal.append({"kind": "call", "n": index, "text": "x" * (index * 37 % 300)})
        acknowledged.append(index)

    try:
        start = max(journal.opened.records - 1, 0)  # the first record is of no call
        for first in range(start, start + RECORDS, bunch):
            found = await asyncio.gather(*(one(index) for index in range(first, first + bunch)), return_exceptions=True)
            for error in found:
                if error is not None and not isinstance(error, JournalError):
                    raise error
    finally:
        await asyncio.wait_for(journal.close(), HANG_SECONDS)
    return acknowledged, tried


def judged(path: Path, at: dict[tuple[str, int], str], *, for_good: bool, bunch: int) -> tuple[int, int, int, bool]:
    """Acknowledged records lost, records doubled or misplaced, unacknowledged ones kept, and whether a fault struck."""
    path.unlink(missing_ok=True)
    disk = Failing(at, for_good=for_good)
    acknowledged, _ = asyncio.run(write(path, disk, bunch))
    opened = asyncio.run(write(path, Failing({}, for_good=False), bunch))[1][0]
    numbers = [record["n"] for _, record in read_journal(path) if record["kind"] == "call"]
    lost = len(set(acknowledged) - set(numbers))
    doubled = numbers != list(range(len(numbers)))
    return lost, int(doubled), opened - len(acknowledged), disk.failed > 0


def every_fault(claims: Claims, here: Path) -> None:
    path = here / "journal.jsonl"
    tried = lost = doubled = kept = 0
    for bunch in (1, 4):
        for kind in KINDS:
            for fault in FAULTS:
                for for_good in (False, True):
                    number = 0
                    while True:
                        at = {(kind, number): fault}
                        if kind == "truncate":
                            at[("fsync", number)] = "EIO"  # a journal truncates only after another fault
                        gone, twice, more, struck = judged(path, at, for_good=for_good, bunch=bunch)
                        if not struck or number > 2 * RECORDS:
                            break
                        tried, lost, doubled, kept = tried + 1, lost + gone, doubled + twice, kept + more
                        number += 1
    claims(
        lost == 0,
        f"{tried} faults (each call; ENOSPC, EIO, short, nothing; once, for good): acknowledged lost {lost}",
    )
    claims(doubled == 0, f"doubled or out of order: {doubled}; unacknowledged that survived, which is allowed: {kept}")


def random_faults(claims: Claims, here: Path, count: int, seed: int) -> None:
    rng, path = random.Random(seed), here / "random.jsonl"
    lost = doubled = 0
    for _ in range(count):
        at = {(rng.choice(KINDS), rng.randrange(RECORDS)): rng.choice(FAULTS) for _ in range(rng.randrange(1, 6))}
        gone, twice, _, _ = judged(path, at, for_good=rng.random() < 0.3, bunch=rng.choice((1, 3, 8)))
        lost, doubled = lost + gone, doubled + twice
    claims(lost == doubled == 0, f"{count} random schedules of faults: acknowledged lost {lost}, doubled {doubled}")


def cut_everywhere(claims: Claims, here: Path) -> None:
    """A small run's own journal."""
    with serving() as server:
        path = spec_file(here, server.base_url, size=4)
        run = played(path, here / "results").folder.path
        journal, files = run / "journal.jsonl", derived_files(run)
        data = journal.read_bytes()
        wanted = [record for _, record in read_journal(journal)]
        ends = [index + 1 for index, byte in enumerate(data) if byte == 10]
        wrong = 0
        cut_file = here / "cut.jsonl"
        for cut in range(len(data) + 1):
            cut_file.write_bytes(data[:cut])
            whole = sum(end <= cut for end in ends)
            opened = asyncio.run(_opened(cut_file))
            wrong += opened.records != whole
            wrong += [record for _, record in read_journal(cut_file)] != wanted[:whole]
            wrong += cut_file.stat().st_size != (ends[whole - 1] if whole else 0)
        claims(wrong == 0, f"cut at {len(data) + 1} bytes: wrong {wrong}")
        differing = paid = 0
        for cut in random.Random(1).sample(range(len(data)), 12):
            journal.write_bytes(data[:cut])
            manifest = (run / "manifest.json").read_text().replace('"done"', '"running"')
            (run / "manifest.json").write_text(manifest)
            before = server.requests
            played(path, here / "results")
            kept = max(sum(end <= cut for end in ends), 1)  # the first record is of no call
            paid += server.requests - before - (len(wanted) - kept)
            differing += derived_files(only_run(here / "results")) != files
        claims(
            differing == paid == 0, f"resumed from 12 of the cuts: files that differ {differing}, calls too many {paid}"
        )


async def _opened(path: Path) -> Any:
    journal = Journal(path)
    await journal.close()
    return journal.opened


def test_no_acknowledged_record_is_lost_or_doubled_wherever_the_journal_or_its_disk_fails(
    tmp_path: Path, claims: Claims
) -> None:
    cut_everywhere(claims, tmp_path)
    every_fault(claims, tmp_path)
    random_faults(claims, tmp_path, SCHEDULES, SEED)
