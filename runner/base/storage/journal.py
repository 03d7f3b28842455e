"""The journal of a run, a write-ahead log: every completion that was paid for, on disk before anything derived from it.

Its lines are those of `log_lines`: a torn last line is cut off on opening, and damage stops. The file is locked while
it is open. After a failed write the journal takes no more, because nobody knows what the disk holds; nor does it once
the file is not at its place any more, which each write looks at (see `gone`).

Writes are group commits: records that arrive while one write is under way, or shortly after it, go out together in
the next, so that a thousand games share one fsync.
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
from runner.base.storage.log_lines import MORE, Unnumbered, encode, is_bound, numbered, record_at, scan, seed_of
from runner.base.storage.moved_files import check_there
from runner.base.storage.safe_files import is_there, open_own, open_to_read

JOURNAL = "journal.jsonl"
"""Its name in the folder of a run."""


class Disk(Protocol):
    """The three calls that a disk can fail at."""

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
class Opened:
    """What opening found: how many records are whole, and how many torn bytes were cut off."""

    records: int
    torn_bytes: int


GROUP_COMMIT_SECONDS = 0.003
"""The least time from one write to the next: each costs as much CPU as a good part of a call."""

LOOK_SECONDS = 0.5
"""How often a journal that is not flushed looks for its file."""

JOINED_BYTES = 4 << 20
"""Lines that are longer together are written one after the other, each dropped once it is: joined they take as much
memory once more."""

_Batch = list[tuple[bytes, asyncio.Future[None]]]
"""What was appended at once, as lines, each with what tells its writer that it is on disk."""

_Waiting = list[asyncio.Future[None]]


def _together(lines: list[bytes]) -> Iterator[bytes]:
    """The lines, joined where they are short; the list is emptied."""
    if sum(map(len, lines)) <= JOINED_BYTES:
        lines[:] = [b"".join(lines)]
    lines.reverse()
    while lines:
        yield lines.pop()


class Journal:
    """An open journal: append records, each on disk when `append` returns."""

    def __init__(
        self,
        path: Path,
        *,
        first: Mapping[str, Any] | None = None,
        run: str | None = None,
        durable: bool = True,
        disk: Disk | None = None,
    ) -> None:
        """Open or create; with `durable` false records are written and left to the system to flush.

        `first` is written before the first record that is appended to an empty journal; one that has records stays as
        it was begun. `run` is the identity of the run that it must be of, where it says of which it is.

        Raises:
            RunDirectoryError: another process has it open.
            JournalError: it is damaged, is of another run, or cannot be opened.
            NewerFormatError: a newer nip-run wrote it; nothing is changed.
        """
        self._path = path
        self._standing = path.absolute()  # a notebook may change its folder meanwhile
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
            raise JournalError(f"cannot open {path}: {error.strerror}") from error
        try:
            self._lock()
            self.opened = self._repair()
        except BaseException:
            os.close(self._fd)
            raise
        self._sequence = self.opened.records
        self._tail = self._end
        """Where the next line will stand."""
        # A file system may number its files anew at each look: there nothing can be said.
        self._watched = is_there(self._standing, self._fd)
        self._looked_at = time.monotonic()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise JournalError(f"cannot lock {self._path}: {error.strerror}") from error
            raise RunDirectoryError(f"{self._path} is in use by another process") from error

    def _repair(self) -> Opened:
        records, end, torn = 0, 0, 0
        self._seed, self.is_bound = 0, True
        self.number: str | None = None if self._first is None else self._first.get("journal")
        with open_to_read(self._path) as file:
            for offset, line, record in scan(file, self._path, self._run):
                if record is None:
                    torn = len(line)
                else:
                    if records == 0:
                        self._bind(line, record)
                    records += 1
                    end = offset + len(line)
        if torn:
            try:
                self._disk.truncate(self._fd, end)
                self._disk.fsync(self._fd)
            except OSError as error:
                raise JournalError(f"cannot cut the torn end of {self._path}: {error.strerror}") from error
        self._end = end
        return Opened(records, torn)

    def _bind(self, first: bytes, record: Mapping[str, Any]) -> None:
        """Go on as the first line says."""
        self._seed, self.is_bound = seed_of(first, record), is_bound(record)
        self.number = record.get("journal")

    @property
    def records(self) -> int:
        """How many records it has, those on their way to the disk included."""
        return self._sequence

    async def append(self, *records: dict[str, Any]) -> None:
        """Write records, all of them or, whenever the process is killed, none; they are kept when this returns.

        Raises:
            JournalError: they could not be written; nor can anything after them.
        """
        await self._append(self._lines(records))

    async def append_all(self, groups: Sequence[Sequence[Unnumbered]]) -> list[list[int]]:
        """Write these groups, each as `append` would, all in one write; for each of them where its records stand.

        Raises:
            JournalError: they could not be written; nor can anything after them.
        """
        lines, offsets = self._placed(groups)
        await self._append(lines)
        return offsets

    def append_all_now(self, groups: Sequence[Sequence[Unnumbered]]) -> list[list[int]]:
        """`append_all` in a journal that is not durable, whose records wait for nothing."""
        lines, offsets = self._placed(groups)
        self._write([lines])
        return offsets

    def _placed(self, groups: Sequence[Sequence[Unnumbered]]) -> tuple[bytes, list[list[int]]]:
        """The next records as their lines, and where they will stand."""
        if self._failure is not None:
            raise self._cannot(self._failure)
        lines, offsets = self._opening(), []
        for records in groups:
            starts = []
            for record in records:
                line = numbered(self._sequence, record, self._seed)
                starts.append(self._tail)
                lines.append(line)
                self._tail += len(line)
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
        del lines  # it may be long, and what is written needs no memory
        if self._idle.is_set():
            self._idle.clear()
            self._flush_in_time(loop)
        await flushed  # who is cancelled here gives up waiting, and the record is written all the same

    def append_now(self, record: dict[str, Any]) -> None:
        """Write one record where no event loop runs; it is kept when this returns.

        Raises:
            JournalError: it could not be written; nor can anything after it.
        """
        self._write([self._lines([record])])

    def _lines(self, records: Sequence[dict[str, Any]]) -> bytes:
        """The next records as their lines."""
        if self._failure is not None:
            raise self._cannot(self._failure)
        lines = self._opening()
        own = [self._line({**record, MORE: True}) for record in records[:-1]]
        own.append(self._line(records[-1]))
        self._tail += sum(map(len, own))
        return b"".join((*lines, *own))

    def _opening(self) -> list[bytes]:
        """What stands before the first record that is appended to an empty journal."""
        if self._sequence or self._first is None:
            return []
        first = self._line(self._first)
        self._tail += len(first)
        return [first]

    def _line(self, record: Mapping[str, Any]) -> bytes:
        """The next record as its line."""
        line = encode(self._sequence, record, self._seed)
        if self._sequence == 0:
            self._bind(line, record)
        self._sequence += 1
        return line

    def _flush_in_time(self, loop: asyncio.AbstractEventLoop) -> None:
        # Never at once: games that are ready now send their records along.
        loop.call_at(max(loop.time(), self._flushed_at + GROUP_COMMIT_SECONDS), self._flush, loop)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand what is pending to the thread, which tells the loop directly: each detour through it costs a wait."""
        batch, self._pending = self._pending, []
        self._flushed_at = loop.time()
        self._thread = self._thread or ThreadPoolExecutor(1, "journal")
        lines, waiting = [lines for lines, _ in batch], [flushed for _, flushed in batch]
        self._thread.submit(self._write_and_tell, lines, waiting, loop)

    def _write_and_tell(self, lines: list[bytes], waiting: _Waiting, loop: asyncio.AbstractEventLoop) -> None:
        failure: Exception | None = None
        try:
            self._write(_together(lines))
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            failure = error
        loop.call_soon_threadsafe(self._flushed, waiting, failure, loop)

    def _flushed(self, waiting: _Waiting, failure: Exception | None, loop: asyncio.AbstractEventLoop) -> None:
        """Wake who waits for a batch, and go on with what has come meanwhile."""
        if failure is not None:
            waiting = waiting + [flushed for _, flushed in self._pending]
            self._pending = []
        for flushed in waiting:
            if flushed.done():
                continue  # cancelled
            if failure is None:
                flushed.set_result(None)
            else:
                flushed.set_exception(failure)
                flushed.exception()  # seen: those who wait may be cancelled before they look
        if self._pending:
            self._flush_in_time(loop)
        else:
            self._idle.set()

    def _write(self, parts: Iterable[bytes]) -> None:
        """Write whole lines, or none that count: after a failure the file is cut back to what was whole."""
        end = self._end
        try:
            for data in parts:
                written = 0
                while written < len(data):
                    count = self._disk.write(self._fd, data[written:])
                    if count <= 0:
                        raise OSError(errno.EIO, "the disk took nothing")
                    written += count
                end += written
            if self._durable:
                self._disk.fsync(self._fd)
        except (OSError, MemoryError) as error:
            self._failure = error if isinstance(error, OSError) else OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            with suppress(OSError):
                # Where this fails too, opening cuts the torn line off; whole unacknowledged lines do no harm.
                self._disk.truncate(self._fd, self._end)
            raise self._cannot(self._failure) from error
        self._end = end
        if self._durable or time.monotonic() - self._looked_at > LOOK_SECONDS:
            self.check_there()

    def check_there(self) -> None:
        """See that the journal is still where it was opened.

        Raises:
            FolderGoneError: it was deleted, moved or replaced; the message says where its records are.
        """
        self._looked_at = time.monotonic()
        if self._failure is not None or not self._watched:
            return
        try:
            check_there(self._standing, self._fd, rescue=self._durable)
            size = os.fstat(self._fd).st_size
            if size < self._end:
                raise FolderGoneError(
                    f"{self._standing} was cut to {size} bytes by something else while the run went on, which stops; "
                    f"{self._end} bytes were written. Restore it from a backup, or resume with what is whole in it"
                )
        except FolderGoneError as error:
            self._failure = error
            raise

    def _cannot(self, error: OSError | FolderGoneError) -> RunError:
        """What every writer is told from the first failure on: which of them is heard is chance."""
        if isinstance(error, FolderGoneError):
            return FolderGoneError(str(error), error.now)
        return JournalError(
            f"cannot write {self._path}: {error.strerror}; everything written before is kept. "
            "Make room, and run the same command again"
        )

    async def close(self) -> None:
        """Wait for what is being written, and let go of the file."""
        await self._idle.wait()
        if self._thread is not None:
            self._thread.shutdown()
        os.close(self._fd)

    def record(self, offset: int) -> dict[str, Any]:
        """The record at an offset that reading this journal gave.

        Raises:
            JournalError: it is not there any more.
        """
        size = 1 << 14
        line = os.pread(self._fd, size, offset)
        while b"\n" not in line:
            size *= 2  # from the start again: adding up small pieces of a long line would copy it each time
            longer = os.pread(self._fd, size, offset)
            if len(longer) == len(line):
                break
            line = longer
        return record_at(self._path, offset, line.partition(b"\n")[0], self._seed)
