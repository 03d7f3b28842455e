"""Disk calls of the journal: no failing call loses or repeats an acknowledged record."""

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
from tests.base.storage.test_journal import make_record, open_and_close, read_numbers, write_records


class FailingDisk:
    """A real disk whose N-th call fails, once or permanently."""

    def __init__(self, fail_at: int, failure: str, *, permanent: bool) -> None:
        self.fail_at, self.failure, self.permanent = fail_at, failure, permanent
        self.calls = 0
        self.failed = False
        self._disk = RealDisk()

    def _fails(self) -> bool:
        self.calls += 1
        fails = self.calls == self.fail_at or (self.permanent and self.calls > self.fail_at)
        self.failed |= fails
        return fails

    def write(self, fd: int, data: bytes) -> int:
        if not self._fails():
            return self._disk.write(fd, data)
        if self.failure == "short":
            return self._disk.write(fd, data[: len(data) // 2] or data)
        if self.failure == "short_then_full":
            self._disk.write(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.failure == "nothing":
            return 0
        raise OSError(getattr(errno, self.failure), os.strerror(getattr(errno, self.failure)))

    def fsync(self, fd: int) -> None:
        if self._fails():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._disk.fsync(fd)

    def truncate(self, fd: int, length: int) -> None:
        if self._fails():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._disk.truncate(fd, length)


class RecordingDisk(RealDisk):
    """A disk that records its calls."""

    def __init__(self) -> None:
        self.calls_made: list[str] = []

    def write(self, fd: int, data: bytes) -> int:
        self.calls_made.append("write")
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        self.calls_made.append("fsync")


def test_record_is_flushed_before_append_returns(tmp_path: Path) -> None:
    async def write() -> None:
        disk = RecordingDisk()
        journal = Journal(tmp_path / "journal.jsonl", disk=disk)
        for count in range(1, 4):
            await journal.append(make_record(count))
            assert disk.calls_made == ["write", "fsync"] * count
        journal.append_now(make_record(4))
        assert disk.calls_made == ["write", "fsync"] * 4
        await journal.close()

    asyncio.run(write())


async def append_records(path: Path, disk: Disk, first_index: int, count: int, *, at_once: bool) -> list[int]:
    """Append records until the first failure, and return the numbers of the acknowledged ones."""
    acknowledged: list[int] = []
    journal = Journal(path, disk=disk)

    async def append_record(number: int) -> None:
        await journal.append(make_record(number))
        acknowledged.append(number)

    try:
        if at_once:
            await asyncio.gather(
                *(append_record(index) for index in range(first_index, first_index + count)), return_exceptions=True
            )
        else:
            for index in range(first_index, first_index + count):
                await append_record(index)
    except JournalError:
        with pytest.raises(JournalError, match=r"cannot write .*; all earlier records are stored\. Free disk space"):
            await journal.append(make_record(first_index + count))
    finally:
        await journal.close()
    return acknowledged


@pytest.mark.sample(6)
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("permanent", [False, True])
@pytest.mark.parametrize("failure", ["ENOSPC", "EIO", "short", "short_then_full", "nothing"])
def test_failing_disk_call_neither_loses_nor_repeats_acknowledged_records(
    tmp_path: Path, failure: str, permanent: bool, at_once: bool
) -> None:
    for fail_at in range(1, 40):
        path = tmp_path / f"journal-{fail_at}.jsonl"
        disk = FailingDisk(fail_at, failure, permanent=permanent)
        acknowledged = asyncio.run(append_records(path, disk, 0, 6, at_once=at_once))
        if not disk.failed:
            break
        # Repeat the work on a healthy disk: stored records stay, missing ones are appended.
        open_and_close(path)
        stored = read_numbers(path)
        assert set(acknowledged) <= set(stored)
        assert stored == list(range(len(stored)))
        write_records(path, 6 - len(stored), start=len(stored))
        assert read_numbers(path) == list(range(6))
    else:
        pytest.fail("every call failed")
    assert fail_at > 2


def test_torn_end_is_an_error_until_it_can_be_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_records(path, 3)
    torn_data = path.read_bytes()[:-5]
    path.write_bytes(torn_data)
    for fail_at in (1, 2):
        with pytest.raises(JournalError, match=r"ends in an incomplete line .* cannot be repaired"):
            Journal(path, disk=FailingDisk(fail_at, "EIO", permanent=True))
    assert open_and_close(path).records == 2
    assert read_numbers(path) == [0, 1]


def test_error_names_a_full_disk(tmp_path: Path) -> None:
    async def write() -> None:
        journal = Journal(tmp_path / "journal.jsonl", disk=FailingDisk(1, "ENOSPC", permanent=True))
        try:
            await journal.append(make_record(0))
        finally:
            await journal.close()

    with pytest.raises(JournalError, match=r"No space left on device.*run the same command again"):
        asyncio.run(write())


@pytest.mark.full
def test_long_record_is_read_in_linear_time(tmp_path: Path) -> None:
    """Reading in small pieces and joining them copied the record 2,000 times."""
    text = "x" * (32 << 20)
    journal = Journal(tmp_path / "journal.jsonl", durable=False)
    journal.append_now({"kind": "call", "text": text})
    journal.append_now({"kind": "call", "text": "short"})
    ((first_offset, _), (second_offset, _)) = read_journal(tmp_path / "journal.jsonl")
    started = time.process_time()
    assert journal.record(first_offset)["text"] == text
    assert journal.record(second_offset)["text"] == "short"
    assert time.process_time() - started < 2.0
    asyncio.run(journal.close())


class DiskFullAtThirdWrite(RecordingDisk):
    """A disk that is full at the third line of a batch."""

    def write(self, fd: int, data: bytes) -> int:
        if self.calls_made.count("write") == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(fd, data)


def test_long_lines_of_a_batch_are_written_separately_and_flushed_together(tmp_path: Path) -> None:
    async def write(path: Path, disk: RecordingDisk) -> list[BaseException | None]:
        journal = Journal(path, disk=disk)
        text = "x" * (2 << 20)
        outcomes = await asyncio.gather(
            *(journal.append({**make_record(index), "text": text}) for index in range(3)), return_exceptions=True
        )
        await journal.close()
        return outcomes

    disk, full_disk = RecordingDisk(), DiskFullAtThirdWrite()
    assert asyncio.run(write(tmp_path / "whole.jsonl", disk)) == [None] * 3
    assert disk.calls_made == ["write", "write", "write", "fsync"]
    assert read_numbers(tmp_path / "whole.jsonl") == [0, 1, 2]
    assert {type(error) for error in asyncio.run(write(tmp_path / "full.jsonl", full_disk))} == {JournalError}
    assert full_disk.calls_made == ["write", "write"]
    assert read_numbers(tmp_path / "full.jsonl") == []


class DiskWithoutMemory(RealDisk):
    """A disk whose writes fail because the system has no memory."""

    def write(self, fd: int, data: bytes) -> int:
        raise MemoryError


def test_write_without_memory_fails_permanently(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl", disk=DiskWithoutMemory())
    for _ in range(2):
        with pytest.raises(JournalError, match="Cannot allocate memory"):
            journal.append_now(make_record(0))
    asyncio.run(journal.close())
