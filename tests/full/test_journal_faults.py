"""A journal that is cut at every byte, and a journal on a disk that fails.

The disk fails at the N-th call of each kind for every N, and in random combinations. No acknowledged record may be
lost, and no record may be repeated.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from runner.base.errors import JournalError
from runner.base.storage.journal import Journal, RealDisk
from runner.base.storage.log_lines import read_journal
from runner.models.journal_records import log_header
from tests.support.hang_guard import HANG_SECONDS
from tests.support.runs import derived_files, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.soft_assertions import SoftAssertions
from tests.support.specs import spec_file

RECORDS = 24
SCHEDULES, SEED = 300, 1
KINDS = ("write", "fsync", "truncate")
FAULTS = ("ENOSPC", "EIO", "short", "nothing")


class FaultyDisk(RealDisk):
    """A disk that fails at the calls in `faults`, a mapping from `(kind, number)` to the fault.

    If `permanent` is true, all later calls fail as well.
    """

    def __init__(self, faults: dict[tuple[str, int], str], *, permanent: bool) -> None:
        self.faults, self.permanent = faults, permanent
        self.calls = dict.fromkeys(KINDS, 0)
        self.permanent_fault: str | None = None
        self.fault_count = 0

    def _fault(self, kind: str) -> str | None:
        number = self.calls[kind]
        self.calls[kind] += 1
        fault = self.permanent_fault or self.faults.get((kind, number))
        if fault is not None:
            self.fault_count += 1
            if self.permanent:
                self.permanent_fault = fault
        return fault

    def write_journal(self, fd: int, data: bytes) -> int:
        fault = self._fault("write")
        if fault == "nothing":
            return 0
        if fault is not None:
            # A full disk keeps the part that it could write.
            written = os.write(fd, data[: len(data) // 2]) if len(data) > 1 else 0
            if fault == "short" and written:
                return written
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


async def write_journal(path: Path, disk: FaultyDisk, batch: int) -> tuple[list[int], list[int]]:
    """Append records until the disk fails; return the numbers of the acknowledged and of the attempted records."""
    acknowledged: list[int] = []
    attempted: list[int] = []
    journal = Journal(path, first=log_header("a run", "its-id"), run="a run", disk=disk)

    async def append(index: int) -> None:
        attempted.append(index)
        await journal.append({"kind": "call", "n": index, "text": "x" * (index * 37 % 300)})
        acknowledged.append(index)

    try:
        start = max(journal.state_at_opening.records - 1, 0)  # the first record is the header
        for first in range(start, start + RECORDS, batch):
            appends = (append(index) for index in range(first, first + batch))
            for error in await asyncio.gather(*appends, return_exceptions=True):
                if error is not None and not isinstance(error, JournalError):
                    raise error
    finally:
        await asyncio.wait_for(journal.close(), HANG_SECONDS)
    return acknowledged, attempted


class Outcome(NamedTuple):
    """The contents of a journal after faults: numbers of records, and whether a fault occurred."""

    lost: int
    """Acknowledged records that are missing."""
    is_disordered: bool
    """Whether records are repeated or out of order."""
    unacknowledged: int
    """Stored records that were not acknowledged, which is allowed."""
    has_failed: bool


def write_with_faults(path: Path, faults: dict[tuple[str, int], str], *, permanent: bool, batch: int) -> Outcome:
    """Write a journal on a faulty disk, continue it on a good disk, and read it."""
    path.unlink(missing_ok=True)
    disk = FaultyDisk(faults, permanent=permanent)
    acknowledged, _ = asyncio.run(write_journal(path, disk, batch))
    first_new_record = asyncio.run(write_journal(path, FaultyDisk({}, permanent=False), batch))[1][0]
    numbers = [record["n"] for _, record in read_journal(path) if record["kind"] == "call"]
    return Outcome(
        lost=len(set(acknowledged) - set(numbers)),
        is_disordered=numbers != list(range(len(numbers))),
        unacknowledged=first_new_record - len(acknowledged),
        has_failed=disk.fault_count > 0,
    )


def check_single_faults(check: SoftAssertions, folder: Path) -> None:
    """Let each call of each kind fail in each way."""
    outcomes = [
        outcome
        for batch, kind, fault, permanent in itertools.product((1, 4), KINDS, FAULTS, (False, True))
        for outcome in fail_at_each_call(folder / "journal.jsonl", kind, fault, permanent=permanent, batch=batch)
    ]
    lost = sum(outcome.lost for outcome in outcomes)
    disordered = sum(outcome.is_disordered for outcome in outcomes)
    unacknowledged = sum(outcome.unacknowledged for outcome in outcomes)
    check(
        lost == 0,
        f"{len(outcomes)} faults ({', '.join(FAULTS)}; once, permanently) lose no acknowledged record: {lost}",
    )
    check(
        disordered == 0,
        f"no record is repeated or out of order: {disordered} (stored without acknowledgement: {unacknowledged})",
    )


def fail_at_each_call(path: Path, kind: str, fault: str, *, permanent: bool, batch: int) -> Iterator[Outcome]:
    """Let the first call of a kind fail, then the second call, and so on, until the journal makes no such call."""
    for number in range(2 * RECORDS + 1):
        faults = {(kind, number): fault}
        if kind == "truncate":
            faults[("fsync", number)] = "EIO"  # a journal truncates only after another fault
        outcome = write_with_faults(path, faults, permanent=permanent, batch=batch)
        if not outcome.has_failed:
            return
        yield outcome


def check_random_faults(check: SoftAssertions, folder: Path, count: int, seed: int) -> None:
    rng, path = random.Random(seed), folder / "random.jsonl"
    lost = disordered = 0
    for _ in range(count):
        faults = {(rng.choice(KINDS), rng.randrange(RECORDS)): rng.choice(FAULTS) for _ in range(rng.randrange(1, 6))}
        outcome = write_with_faults(path, faults, permanent=rng.random() < 0.3, batch=rng.choice((1, 3, 8)))
        lost, disordered = lost + outcome.lost, disordered + outcome.is_disordered
    check(
        lost == disordered == 0,
        f"{count} random combinations of faults lose no record ({lost}) and repeat none ({disordered})",
    )


def check_cuts(check: SoftAssertions, folder: Path) -> None:
    """Cut the journal of a small run at every byte, and resume the run from some of the cuts."""
    with run_chat_server() as server:
        path = spec_file(folder, server.base_url, size=4)
        run = run_spec(path, folder / "results").folder.path
        journal, files = run / "journal.jsonl", derived_files(run)
        data = journal.read_bytes()
        expected = [record for _, record in read_journal(journal)]
        ends = [index + 1 for index, byte in enumerate(data) if byte == 10]
        errors = 0
        cut_file = folder / "cut.jsonl"
        for cut in range(len(data) + 1):
            cut_file.write_bytes(data[:cut])
            complete = sum(end <= cut for end in ends)
            state = asyncio.run(open_and_close(cut_file))
            errors += state.records != complete
            errors += [record for _, record in read_journal(cut_file)] != expected[:complete]
            errors += cut_file.stat().st_size != (ends[complete - 1] if complete else 0)
        check(
            errors == 0, f"after a cut at each of {len(data) + 1} bytes, all complete records are read: {errors} errors"
        )
        different = extra_calls = 0
        for cut in random.Random(1).sample(range(len(data)), 12):
            journal.write_bytes(data[:cut])
            manifest = (run / "manifest.json").read_text().replace('"done"', '"running"')
            (run / "manifest.json").write_text(manifest)
            requests_before = server.requests
            run_spec(path, folder / "results")
            complete = max(sum(end <= cut for end in ends), 1)  # the first record is the header
            extra_calls += server.requests - requests_before - (len(expected) - complete)
            different += derived_files(only_run(folder / "results")) != files
        check(different == 0, f"runs resumed from 12 of the cuts have the same files ({different} differ)")
        check(extra_calls == 0, f"runs resumed from 12 of the cuts repeat no recorded call ({extra_calls} repeated)")


async def open_and_close(path: Path) -> Any:
    journal = Journal(path)
    await journal.close()
    return journal.state_at_opening


def test_cuts_and_disk_faults_neither_lose_nor_repeat_acknowledged_records(
    tmp_path: Path, check: SoftAssertions
) -> None:
    check_cuts(check, tmp_path)
    check_single_faults(check, tmp_path)
    check_random_faults(check, tmp_path, SCHEDULES, SEED)
