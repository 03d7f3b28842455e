"""The journal of a run, a write-ahead log: every completion that was paid for, on disk before anything derived from it.

One record a line: `crc32hex SP canonical-JSON LF`, each with a sequence number. A line is whole or absent: a torn
last line is cut off on opening, a bad line with good ones after it is damage and stops. Records that were appended
together count together: all but the last say `more`, and a group whose last is missing is a torn end. The file is
locked while it is open. After a failed write the journal takes no more, because nobody knows what the disk holds. The
first record says the file's format (see `formats`); one of 0.1.0 says none.

Writes are group commits: records that arrive while one write is under way, or shortly after it, go out together in
the next, so that a thousand games share one fsync.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import orjson

from runner.errors import JournalError, RunDirectoryError
from runner.hashing import canonical
from runner.storage.formats import KEY, LOG_FORMAT, refuse_newer

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

MORE = "more"
"""Set in a record that does not count without the next."""


def encode(sequence: int, record: Mapping[str, Any]) -> bytes:
    """One record as its line."""
    body = canonical({**record, "seq": sequence})
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _body(line: bytes) -> bytes:
    """The record of a line, behind its checksum."""
    return line[9:].removesuffix(b"\n")


def decode(line: bytes, sequence: int) -> dict[str, Any] | None:
    """A line as its record; None where it is not whole or not the one that belongs here."""
    if len(line) < 10 or line[8:9] != b" " or line[-1:] != b"\n":
        return None
    body = _body(line)
    if line[:8] != b"%08x" % zlib.crc32(body):
        return None
    record = orjson.loads(body)
    return record if isinstance(record, dict) and record.get("seq") == sequence else None


def read_journal(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every whole record of a journal with the offset of its line, without locking it.

    Raises:
        JournalError: the file is damaged before its last line.
        NewerFormatError: a newer nip-run wrote it.
    """
    with path.open("rb") as file:
        for offset, _, record in _scan(file, path):
            if record is not None:
                yield offset, record


class JournalReader:
    """Single records of a journal, wherever they stand, without locking it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")

    def record(self, offset: int) -> dict[str, Any]:
        """The record at an offset that reading the journal gave."""
        self._file.seek(offset)
        record: dict[str, Any] = orjson.loads(_body(self._file.readline()))
        return record

    def close(self) -> None:
        self._file.close()


def check_log_format(path: Path) -> None:
    """Read no more of a journal than its format. One that cannot be read is for whoever opens it.

    Raises:
        NewerFormatError: a newer nip-run wrote it.
    """
    with suppress(OSError), path.open("rb") as file:
        _check_first(path, decode(file.readline(), 0))


def _check_first(path: Path, record: dict[str, Any] | None) -> None:
    if record is not None:
        refuse_newer(path, record.get(KEY, 0), LOG_FORMAT)


def _scan(file: IO[bytes], path: Path) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    """The lines that count, with their offsets and records; at last the torn end, if there is one, with None."""
    offset = 0
    torn = False
    group: list[tuple[int, bytes, dict[str, Any] | None]] = []
    for sequence, line in enumerate(file):
        if torn:
            bad = group[-1][0]
            raise JournalError(
                f"{path} is damaged at byte {bad}, and records follow; restore it from a backup, or cut it there "
                f"(truncate -s {bad} {path}) and run the same command again"
            )
        record = decode(line, sequence)
        if sequence == 0:
            _check_first(path, record)
        group.append((offset, line, record))
        if record is None:
            torn = True
        elif not record.get(MORE):
            yield from group
            group = []
        offset += len(line)
    if group:
        yield group[0][0], b"".join(line for _, line, _ in group), None


_Batch = list[tuple[bytes, asyncio.Future[None]]]
"""What was appended at once, as lines, each with what tells its writer that it is on disk."""


class Journal:
    """An open journal: append records, each on disk when `append` returns."""

    def __init__(
        self, path: Path, *, first: Mapping[str, Any] | None = None, durable: bool = True, disk: Disk | None = None
    ) -> None:
        """Open or create; with `durable` false records are written and left to the system to flush.

        `first` is written before the first record that is appended to an empty journal; one that has records stays as
        it was begun.

        Raises:
            RunDirectoryError: another process has it open.
            JournalError: it is damaged, or cannot be opened.
            NewerFormatError: a newer nip-run wrote it; nothing is changed.
        """
        self._path = path
        self._first = first
        self._durable = durable
        self._disk = disk or RealDisk()
        self._pending: _Batch = []
        self._flushed_at = 0.0
        self._idle = asyncio.Event()
        self._idle.set()
        self._failure: OSError | None = None
        self._thread: ThreadPoolExecutor | None = None
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise JournalError(f"cannot open {path}: {error.strerror}") from error
        try:
            self._lock()
            self.opened = self._repair()
        except BaseException:
            os.close(self._fd)
            raise
        self._sequence = self.opened.records

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise JournalError(f"cannot lock {self._path}: {error.strerror}") from error
            raise RunDirectoryError(f"{self._path} is in use by another process") from error

    def _repair(self) -> Opened:
        records, end, torn = 0, 0, 0
        with self._path.open("rb") as file:
            for offset, line, record in _scan(file, self._path):
                if record is None:
                    torn = len(line)
                else:
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

    @property
    def records(self) -> int:
        """How many records it has, those on their way to the disk included."""
        return self._sequence

    async def append(self, *records: dict[str, Any]) -> None:
        """Write records, all of them or, whenever the process is killed, none; they are kept when this returns.

        Raises:
            JournalError: they could not be written; nor can anything after them.
        """
        lines = self._lines(records)
        if not self._durable:
            self._write(lines)
            return
        loop = asyncio.get_running_loop()
        flushed = loop.create_future()
        self._pending.append((lines, flushed))
        if self._idle.is_set():
            self._idle.clear()
            self._flush_in_time(loop)
        await flushed  # who is cancelled here gives up waiting, and the record is written all the same

    def append_now(self, record: dict[str, Any]) -> None:
        """Write one record where no event loop runs; it is kept when this returns.

        Raises:
            JournalError: it could not be written; nor can anything after it.
        """
        self._write(self._lines([record]))

    def _lines(self, records: Sequence[dict[str, Any]]) -> bytes:
        """The next records as their lines."""
        if self._failure is not None:
            raise self._cannot(self._failure)
        begun = [encode(0, self._first)] if self._sequence == 0 and self._first is not None else []
        self._sequence += len(begun)
        first, last = self._sequence, len(records) - 1
        lines = [
            encode(first + index, record if index == last else {**record, MORE: True})
            for index, record in enumerate(records)
        ]
        self._sequence += len(lines)
        return b"".join([*begun, *lines])

    def _flush_in_time(self, loop: asyncio.AbstractEventLoop) -> None:
        # Never at once: games that are ready now send their records along.
        loop.call_at(max(loop.time(), self._flushed_at + GROUP_COMMIT_SECONDS), self._flush, loop)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand what is pending to the thread, which tells the loop directly: each detour through it costs a wait."""
        batch, self._pending = self._pending, []
        self._flushed_at = loop.time()
        self._thread = self._thread or ThreadPoolExecutor(1, "journal")
        self._thread.submit(self._write_and_tell, batch, loop)

    def _write_and_tell(self, batch: _Batch, loop: asyncio.AbstractEventLoop) -> None:
        failure: Exception | None = None
        try:
            self._write(b"".join([lines for lines, _ in batch]))
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            failure = error
        loop.call_soon_threadsafe(self._flushed, batch, failure, loop)

    def _flushed(self, batch: _Batch, failure: Exception | None, loop: asyncio.AbstractEventLoop) -> None:
        """Wake who waits for a batch, and go on with what has come meanwhile."""
        if failure is not None:
            batch, self._pending = batch + self._pending, []
        for _, flushed in batch:
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

    def _write(self, data: bytes) -> None:
        """Write whole lines, or none that count: after a failure the file is cut back to what was whole."""
        try:
            written = 0
            while written < len(data):
                count = self._disk.write(self._fd, data[written:])
                if count <= 0:
                    raise OSError(errno.EIO, "the disk took nothing")
                written += count
            if self._durable:
                self._disk.fsync(self._fd)
        except OSError as error:
            self._failure = error
            with suppress(OSError):
                # Where this fails too, opening cuts the torn line off; whole unacknowledged lines do no harm.
                self._disk.truncate(self._fd, self._end)
            raise self._cannot(error) from error
        self._end += len(data)

    def _cannot(self, error: OSError) -> JournalError:
        """What every writer is told from the first failure on: which of them is heard is chance."""
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
        """The record at an offset that reading this journal gave."""
        size = 1 << 14
        line = os.pread(self._fd, size, offset)
        while b"\n" not in line:
            size *= 2  # from the start again: adding up small pieces of a long line would copy it each time
            longer = os.pread(self._fd, size, offset)
            if len(longer) == len(line):
                break
            line = longer
        record: dict[str, Any] = orjson.loads(_body(line.partition(b"\n")[0]))
        return record
