"""The journal of a run, a write-ahead log: every paid completion is on disk before the run uses it.

The lines have the format of `runner.base.storage.log_lines`. Opening a journal locks the file, removes an incomplete
last line, and refuses a damaged file. After a failed write, the journal accepts no more records, because the state of
the disk is unknown. The same holds if the file is no longer at its path, which each write checks (see
`runner.base.storage.moved_files`).

Writes are group commits: records that arrive during a write, or shortly after it, are written together in the next
write, so that a thousand games share one fsync.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runner.base.errors import FolderGoneError, JournalError, RunDirectoryError, RunError
from runner.base.storage.log_lines import (
    MORE,
    Unnumbered,
    add_number,
    encode,
    is_bound_to_run,
    log_seed,
    record_at,
    scan,
)
from runner.base.storage.moved_files import check_not_moved
from runner.base.storage.safe_files import is_still_at, open_own, open_to_read


class Disk(Protocol):
    """The three system calls that can fail on a disk."""

    def write(self, fd: int, data: bytes) -> int: ...
    def fsync(self, fd: int) -> None: ...
    def truncate(self, fd: int, length: int) -> None: ...


class RealDisk:
    def write(self, fd: int, data: bytes) -> int:
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)


@dataclass(frozen=True)
class JournalState:
    """A journal's state when it was opened: the number of records, and the size of the removed incomplete line."""

    records: int
    torn_bytes: int


GROUP_COMMIT_SECONDS = 0.003
"""Minimum time between two writes, because a write uses a considerable part of the CPU time of a call."""

LOOK_SECONDS = 0.5
"""Time between two checks that the file is at its path, for a journal that is not durable."""

JOINED_BYTES = 4 << 20
"""Maximum total size of lines that are joined and written at once. More lines are written and released one by one,
because joining them would double the memory."""

_Batch = list[tuple[bytes, asyncio.Future[None]]]
"""Encoded records to write together, each with the future to resolve once the record is on disk."""

_Futures = list[asyncio.Future[None]]


def _join_short_lines(lines: list[bytes]) -> Iterator[bytes]:
    """Yield the lines, joined if they are short. Empties the list on the way, to free memory."""
    if sum(map(len, lines)) <= JOINED_BYTES:
        lines[:] = [b"".join(lines)]
    lines.reverse()
    while lines:
        yield lines.pop()


class Journal:
    """An open journal. Records are on disk when `append` returns."""

    def __init__(
        self,
        path: Path,
        *,
        first: Mapping[str, Any] | None = None,
        run: str | None = None,
        durable: bool = True,
        disk: Disk | None = None,
    ) -> None:
        """Open or create a journal. A journal that is not `durable` never calls fsync.

        `first` is the record that starts an empty journal; a journal with records keeps its own first record. `run` is
        the identity of the run that a bound journal must belong to (see `runner.base.storage.log_lines`).

        Raises:
            RunDirectoryError: another process has the journal open.
            JournalError: the journal is damaged, belongs to another run, or cannot be opened.
            NewerFormatError: a newer version of nip-run wrote the journal; nothing is changed.
        """
        self._path = path
        self._absolute_path = path.absolute()  # a notebook may change its current folder
        self._first = first
        self._run = run
        self._durable = durable
        self._disk = disk or RealDisk()
        self._pending: _Batch = []
        self._flushed_at = 0.0
        self._idle = asyncio.Event()
        self._idle.set()
        self._failure: OSError | FolderGoneError | None = None
        self._thread: ThreadPoolExecutor | None = None
        try:
            self._fd = open_own(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise JournalError(
                f"cannot open {path}: {error.strerror}. Check the permissions of the file and its folder, and run the "
                "command again"
            ) from error
        try:
            self._lock()
            self.state_at_opening = self._repair()
        except BaseException:
            os.close(self._fd)
            raise
        self._sequence = self.state_at_opening.records
        self._next_offset = self._end
        """Byte offset of the next line."""
        # Some file systems report another inode for the same file each time. The path cannot be checked there.
        self._can_check_path = is_still_at(self._absolute_path, self._fd)
        self._checked_at = time.monotonic()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise JournalError(
                    f"cannot lock {self._path}: {error.strerror}. Use --results DIR on a file system that has locks"
                ) from error
            raise RunDirectoryError(
                f"{self._path} is in use by another process; wait until that process ends, or stop it"
            ) from error

    def _repair(self) -> JournalState:
        records, end, torn = 0, 0, 0
        self._seed, self.is_bound_to_run = 0, True
        self.journal_id: str | None = None if self._first is None else self._first.get("journal")
        with open_to_read(self._path) as file:
            for offset, line, record in scan(file, self._path, self._run):
                if record is None:
                    torn = len(line)
                    continue
                if records == 0:
                    self._use_first_line(line, record)
                records += 1
                end = offset + len(line)
        if torn:
            try:
                self._disk.truncate(self._fd, end)
                self._disk.fsync(self._fd)
            except OSError as error:
                raise JournalError(
                    f"{self._path} ends in an incomplete line from an interrupted write and cannot be repaired: "
                    f"{error.strerror}. Make the file writable, and run the command again"
                ) from error
        self._end = end
        return JournalState(records, torn)

    def _use_first_line(self, first: bytes, record: Mapping[str, Any]) -> None:
        """Use the seed and id of the journal's first line."""
        self._seed, self.is_bound_to_run = log_seed(first, record), is_bound_to_run(record)
        self.journal_id = record.get("journal")

    @property
    def records(self) -> int:
        """The number of records, written or pending."""
        return self._sequence

    async def append(self, *records: dict[str, Any]) -> None:
        """Write records atomically. They are on disk when this returns.

        Raises:
            JournalError: the records could not be written, and the journal accepts no more.
        """
        await self._append(self._encode_records(records))

    async def append_all(self, groups: Sequence[Sequence[Unnumbered]]) -> list[list[int]]:
        """Write groups of records in one write, and return the byte offsets of each group's records.

        Each group is written atomically, as by `append`.

        Raises:
            JournalError: the records could not be written, and the journal accepts no more.
        """
        lines, offsets = self._encode_groups(groups)
        await self._append(lines)
        return offsets

    def append_all_now(self, groups: Sequence[Sequence[Unnumbered]]) -> list[list[int]]:
        """Do the same as `append_all` synchronously. Only for a journal that is not durable."""
        lines, offsets = self._encode_groups(groups)
        self._write([lines])
        return offsets

    def _encode_groups(self, groups: Sequence[Sequence[Unnumbered]]) -> tuple[bytes, list[list[int]]]:
        """Return the lines of the next records, and the byte offsets of each group's records."""
        if self._failure is not None:
            raise self._write_error(self._failure)
        lines, offsets = self._encode_first(), []
        for records in groups:
            starts = []
            for record in records:
                line = add_number(self._sequence, record, self._seed)
                starts.append(self._next_offset)
                lines.append(line)
                self._next_offset += len(line)
                self._sequence += 1
            offsets.append(starts)
        return b"".join(lines), offsets

    async def _append(self, lines: bytes) -> None:
        if not self._durable:
            self._write([lines])
            return
        loop = asyncio.get_running_loop()
        flushed = loop.create_future()
        self._pending.append((lines, flushed))
        del lines  # the lines may be large, and `_flush` frees each one once it is written
        if self._idle.is_set():
            self._idle.clear()
            self._schedule_flush(loop)
        await flushed  # cancellation ends only the wait: the records are still written

    def append_now(self, record: dict[str, Any]) -> None:
        """Write one record outside an event loop. The record is on disk when this returns.

        Raises:
            JournalError: the record could not be written, and the journal accepts no more.
        """
        self._write([self._encode_records([record])])

    def _encode_records(self, records: Sequence[dict[str, Any]]) -> bytes:
        """Return the lines of the next records."""
        if self._failure is not None:
            raise self._write_error(self._failure)
        marked = (*({**record, MORE: True} for record in records[:-1]), records[-1])
        return b"".join((*self._encode_first(), *map(self._encode_next, marked)))

    def _encode_first(self) -> list[bytes]:
        """Return the line that starts an empty journal, as a list; an empty list if the journal has records."""
        return [] if self._sequence or self._first is None else [self._encode_next(self._first)]

    def _encode_next(self, record: Mapping[str, object]) -> bytes:
        """Encode the next record as a line."""
        line = encode(self._sequence, record, self._seed)
        if self._sequence == 0:
            self._use_first_line(line, record)
        self._sequence += 1
        self._next_offset += len(line)
        return line

    def _schedule_flush(self, loop: asyncio.AbstractEventLoop) -> None:
        # Do not flush immediately, so that other games that are ready can add their records.
        loop.call_at(max(loop.time(), self._flushed_at + GROUP_COMMIT_SECONDS), self._flush, loop)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass the pending records to the writer thread, which calls `_finish_batch` in the loop."""
        batch, self._pending = self._pending, []
        self._flushed_at = loop.time()
        self._thread = self._thread or ThreadPoolExecutor(1, "journal")
        lines, futures = [lines for lines, _ in batch], [flushed for _, flushed in batch]
        self._thread.submit(self._write_and_notify, lines, futures, loop)

    def _write_and_notify(self, lines: list[bytes], futures: _Futures, loop: asyncio.AbstractEventLoop) -> None:
        failure: Exception | None = None
        try:
            self._write(_join_short_lines(lines))
        except Exception as error:  # noqa: BLE001 - every waiting writer must receive the error
            failure = error
        loop.call_soon_threadsafe(self._finish_batch, futures, failure, loop)

    def _finish_batch(self, futures: _Futures, failure: Exception | None, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the writers of a batch, and start the next batch if records have arrived."""
        if failure is not None:
            futures = futures + [flushed for _, flushed in self._pending]
            self._pending = []
        for flushed in futures:
            if flushed.done():
                continue  # cancelled
            if failure is None:
                flushed.set_result(None)
            else:
                flushed.set_exception(failure)
                flushed.exception()  # mark the exception as retrieved, because its writer may be cancelled
        if self._pending:
            self._schedule_flush(loop)
        else:
            self._idle.set()

    def _write(self, parts: Iterable[bytes]) -> None:
        """Write complete lines. After a failure, truncate the file to the lines that were complete before."""
        end = self._end
        try:
            for data in parts:
                self._write_bytes(data)
                end += len(data)
            if self._durable:
                self._disk.fsync(self._fd)
        except (OSError, MemoryError) as error:
            self._failure = error if isinstance(error, OSError) else OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            with suppress(OSError):
                # If this fails too, the next opening removes the incomplete line. Complete lines of this batch that
                # stay in the file are harmless.
                self._disk.truncate(self._fd, self._end)
            raise self._write_error(self._failure) from error
        self._end = end
        if self._durable or time.monotonic() - self._checked_at > LOOK_SECONDS:
            self.check_not_moved()

    def _write_bytes(self, data: bytes) -> None:
        """Write all of the data, even if the disk accepts only a part at once."""
        written = 0
        while written < len(data):
            count = self._disk.write(self._fd, data[written:])
            if count <= 0:
                raise OSError(errno.EIO, "the disk accepted no data")
            written += count

    def check_not_moved(self) -> None:
        """Check that the journal is still at the path where it was opened.

        Raises:
            FolderGoneError: the file was deleted, moved, replaced or truncated; the message says where the records are.
        """
        self._checked_at = time.monotonic()
        if self._failure is not None or not self._can_check_path:
            return
        try:
            check_not_moved(self._absolute_path, self._fd, rescue=self._durable)
            size = os.fstat(self._fd).st_size
            if size < self._end:
                raise FolderGoneError(
                    f"the run stopped because another program truncated {self._absolute_path} from {self._end} to "
                    f"{size} bytes; restore the file from a backup, or resume with the records that are left"
                )
        except FolderGoneError as error:
            self._failure = error
            raise

    def _write_error(self, error: OSError | FolderGoneError) -> RunError:
        """Return the error that every writer after the first failure receives, since any of them may be reported."""
        if isinstance(error, FolderGoneError):
            return FolderGoneError(str(error), error.now)
        return JournalError(
            f"cannot write {self._path}: {error.strerror}; all earlier records are stored. "
            "Free disk space or repair the disk, and run the same command again"
        )

    async def close(self) -> None:
        """Wait for pending writes, then close the file."""
        await self._idle.wait()
        if self._thread is not None:
            self._thread.shutdown()
        os.close(self._fd)

    def record(self, offset: int) -> dict[str, Any]:
        """Return the record at a byte offset.

        Raises:
            JournalError: the record is no longer there.
        """
        size = 1 << 14
        line = os.pread(self._fd, size, offset)
        while b"\n" not in line:
            size *= 2  # read the line again from its start, which is faster than appending many small pieces
            longer = os.pread(self._fd, size, offset)
            if len(longer) == len(line):
                break
            line = longer
        return record_at(self._path, offset, line.partition(b"\n")[0], self._seed)
