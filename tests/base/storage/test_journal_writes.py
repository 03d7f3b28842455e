"""What the journal asks of the disk: nothing acknowledged is lost or doubled, whatever call of it fails."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path

import pytest

from runner.base.errors import JournalError
from runner.base.storage.journal import Disk, Journal, RealDisk
from runner.base.storage.log_lines import read_journal
from tests.base.storage.test_journal import numbers, opened_and_closed, record, write_records


class Failing:
    """A real disk whose N-th call fails, once or from then on."""

    def __init__(self, fail_at: int, how: str, *, for_good: bool) -> None:
        self.fail_at, self.how, self.for_good = fail_at, how, for_good
        self.calls = 0
        self.failed = False
        self._disk = RealDisk()

    def _fails(self) -> bool:
        self.calls += 1
        fails = self.calls == self.fail_at or (self.for_good and self.calls > self.fail_at)
        self.failed |= fails
        return fails

    def write(self, fd: int, data: bytes) -> int:
        if not self._fails():
            return self._disk.write(fd, data)
        if self.how == "short":
            return self._disk.write(fd, data[: len(data) // 2] or data)
        if self.how == "short_then_full":
            self._disk.write(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.how == "nothing":
            return 0
        raise OSError(getattr(errno, self.how), os.strerror(getattr(errno, self.how)))

    def fsync(self, fd: int) -> None:
        if self._fails():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._disk.fsync(fd)

    def truncate(self, fd: int, length: int) -> None:
        if self._fails():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._disk.truncate(fd, length)


class Noting(RealDisk):
    """Notes what is asked of the disk."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def write(self, fd: int, data: bytes) -> int:
        self.asked.append("write")
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        self.asked.append("fsync")


def test_a_record_is_flushed_before_its_writer_goes_on(tmp_path: Path) -> None:
    async def write() -> None:
        disk = Noting()
        journal = Journal(tmp_path / "journal.jsonl", disk=disk)
        for count in range(1, 4):
            await journal.append(record(count))
            assert disk.asked == ["write", "fsync"] * count
        journal.append_now(record(4))
        assert disk.asked == ["write", "fsync"] * 4
        await journal.close()

    asyncio.run(write())


async def _appended(path: Path, disk: Disk, first: int, count: int, *, at_once: bool) -> list[int]:
    """The numbers of the records that were acknowledged; appending stops at the first failure."""
    acknowledged: list[int] = []
    journal = Journal(path, disk=disk)

    async def one(index: int) -> None:
        await journal.append(record(index))
        acknowledged.append(index)

    try:
        if at_once:
            await asyncio.gather(*(one(index) for index in range(first, first + count)), return_exceptions=True)
        else:
            for index in range(first, first + count):
                await one(index)
    except JournalError:
        with pytest.raises(JournalError, match=r"cannot write .*; all earlier records are stored\. Free disk space"):
            await journal.append(record(first + count))
    finally:
        await journal.close()
    return acknowledged


@pytest.mark.sample(6)
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("how", ["ENOSPC", "EIO", "short", "short_then_full", "nothing"])
def test_whatever_disk_call_fails_nothing_acknowledged_is_lost_or_doubled(
    tmp_path: Path, how: str, for_good: bool, at_once: bool
) -> None:
    for fail_at in range(1, 40):
        path = tmp_path / f"journal-{fail_at}.jsonl"
        disk = Failing(fail_at, how, for_good=for_good)
        acknowledged = asyncio.run(_appended(path, disk, 0, 6, at_once=at_once))
        if not disk.failed:
            break
        # The same work again on a healthy disk: what is there stays, what is missing is appended.
        opened_and_closed(path)
        there = numbers(path)
        assert set(acknowledged) <= set(there)
        assert there == list(range(len(there)))
        write_records(path, 6 - len(there), start=len(there))
        assert numbers(path) == list(range(6))
    else:
        pytest.fail("every call failed")
    assert fail_at > 2


def test_a_torn_end_that_cannot_be_cut_is_an_error_until_it_can(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_records(path, 3)
    torn = path.read_bytes()[:-5]
    path.write_bytes(torn)
    for fail_at in (1, 2):
        with pytest.raises(JournalError, match=r"ends in an incomplete line .* cannot be repaired"):
            Journal(path, disk=Failing(fail_at, "EIO", for_good=True))
    assert opened_and_closed(path).records == 2
    assert numbers(path) == [0, 1]


def test_a_full_disk_is_named_in_the_error(tmp_path: Path) -> None:
    async def write() -> None:
        journal = Journal(tmp_path / "journal.jsonl", disk=Failing(1, "ENOSPC", for_good=True))
        try:
            await journal.append(record(0))
        finally:
            await journal.close()

    with pytest.raises(JournalError, match=r"No space left on device.*run the same command again"):
        asyncio.run(write())


@pytest.mark.full
def test_a_long_record_is_read_in_the_time_that_its_bytes_take(tmp_path: Path) -> None:
    """Read in small pieces that are added up, it was copied two thousand times."""
    text = "x" * (32 << 20)
    journal = Journal(tmp_path / "journal.jsonl", durable=False)
    journal.append_now({"kind": "call", "text": text})
    journal.append_now({"kind": "call", "text": "short"})
    ((first, _), (second, _)) = read_journal(tmp_path / "journal.jsonl")
    begun = time.process_time()
    assert journal.record(first)["text"] == text
    assert journal.record(second)["text"] == "short"
    assert time.process_time() - begun < 2.0
    asyncio.run(journal.close())


class FullAtThird(Noting):
    """A disk that has no room for the third line of a batch."""

    def write(self, fd: int, data: bytes) -> int:
        if self.asked.count("write") == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(fd, data)


def test_long_lines_of_a_batch_go_to_the_disk_one_by_one_and_together(tmp_path: Path) -> None:
    async def write(path: Path, disk: Noting) -> list[BaseException | None]:
        journal = Journal(path, disk=disk)
        text = "x" * (2 << 20)
        done = await asyncio.gather(
            *(journal.append({**record(index), "text": text}) for index in range(3)), return_exceptions=True
        )
        await journal.close()
        return done

    disk, full = Noting(), FullAtThird()
    assert asyncio.run(write(tmp_path / "whole.jsonl", disk)) == [None] * 3
    assert disk.asked == ["write", "write", "write", "fsync"]
    assert numbers(tmp_path / "whole.jsonl") == [0, 1, 2]
    assert {type(told) for told in asyncio.run(write(tmp_path / "full.jsonl", full))} == {JournalError}
    assert full.asked == ["write", "write"]
    assert numbers(tmp_path / "full.jsonl") == []


class WithoutMemory(RealDisk):
    """The system has no memory for a write."""

    def write(self, fd: int, data: bytes) -> int:
        raise MemoryError


def test_a_write_without_memory_fails_for_good_like_any_other(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl", disk=WithoutMemory())
    for _ in range(2):
        with pytest.raises(JournalError, match="Cannot allocate memory"):
            journal.append_now(record(0))
    asyncio.run(journal.close())
