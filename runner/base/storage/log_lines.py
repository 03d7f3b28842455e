"""The line format of logs: encoding and decoding the records of a journal or a stage log.

Each line has one record with a sequence number: `crc32hex SP canonical-JSON LF`. Records that were appended together
are valid only together: all except the last have the key `more`, and a group at the end of the file without its last
record is a torn end, which readers ignore. The first record states the file's format (see
`runner.base.storage.format_versions`), except in files of 0.1.0.

From format 2 on, every line is bound to its log: the first record names the run and has a random number, and the
checksum of each later line starts from the checksum of the first. So a line from another log never passes the check,
not even one from another execution of the same spec. A complete line with a wrong checksum is damage, anywhere in the
log; only an incomplete line after an interrupted write is a torn end.

A record's `answer` is bytes: a server's JSON, stored verbatim at the end of the line, and not parsed with the record.
"""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from runner.base.errors import JournalError, os_errors_as
from runner.base.hashing import canonical
from runner.base.storage.fetched_markers import fetched_folder
from runner.base.storage.format_versions import KEY, LOG_FORMAT, refuse_newer
from runner.base.storage.safe_files import open_to_read
from runner.base.text import path_argument

JOURNAL = "journal.jsonl"
"""Name of the journal in a run's folder."""

BOUND = 2
"""The first format whose lines are bound to their file."""

RUN, RUN_ID = "run", "run_id"
"""Keys of the first record of a bound log: the hash that identifies the run, and the run's id, for people."""

SHARD = "shard"
"""Key of the first record of a shard's journal for the number of the shard and the number of all shards."""

NOT_BOUND = "not bound to the run: in the journal's old format, lines from other journals are not detected"
"""Message about a journal that is not bound to its run."""

ANSWER = "answer"
"""Key of a model server's answer, which is stored verbatim as bytes of JSON."""

_BEFORE_ANSWER = b', "answer": '
"""Separator before the answer. Canonical JSON never contains it, since it has spaces only inside strings, where quotes
are escaped."""

MORE = "more"
"""Key that is set in a record that is valid only together with the next."""


def encode(sequence: int, record: Mapping[str, object], seed: int = 0) -> bytes:
    """Encode a record as a line; `seed` is the `log_seed` of the log's first line."""
    body = to_json({**record, "seq": sequence})
    return b"%08x %b\n" % (zlib.crc32(body, seed), body)


Unnumbered = tuple[bytes, bytes]
"""A record's line without its sequence number: the bytes before the number, and those after it.

A plain tuple for speed, because thousands per second pass between processes.
"""


PLACEHOLDER = b"\0"
"""Placeholder for a record's number. JSON never contains it, because strings escape it."""

_NO_NUMBER: Any = orjson.Fragment(PLACEHOLDER)


def encode_unnumbered(records: Sequence[Mapping[str, object]]) -> list[Unnumbered]:
    """Encode records that are valid only together, without their sequence numbers, which `add_number` inserts."""
    last = len(records) - 1
    bodies = (
        to_json({**record, MORE: True, "seq": _NO_NUMBER} if index < last else {**record, "seq": _NO_NUMBER})
        for index, record in enumerate(records)
    )
    parts = (body.partition(PLACEHOLDER) for body in bodies)
    return [(before, after) for before, _, after in parts]


def add_number(sequence: int, record: Unnumbered, seed: int) -> bytes:
    """Insert the sequence number into an encoded record, which gives the line that `encode` would return."""
    before, after = record
    body = b"%b%d%b" % (before, sequence, after)
    return b"%08x %b\n" % (zlib.crc32(body, seed), body)


def to_json(record: Mapping[str, object]) -> bytes:
    """Encode a record as JSON in one line, with its answer last and verbatim."""
    answer = record.get(ANSWER)
    if not isinstance(answer, bytes):
        return canonical(record)
    rest = canonical({name: value for name, value in record.items() if name != ANSWER})
    return b"".join((rest[:-1], _BEFORE_ANSWER, answer, b"}"))


def from_json(line: bytes) -> Any:
    """Decode JSON that `to_json` wrote. The answer is returned as bytes."""
    split = line.find(_BEFORE_ANSWER)
    if split < 0:
        return orjson.loads(line)
    return {**orjson.loads(line[:split] + b"}"), ANSWER: line[split + len(_BEFORE_ANSWER) : -1]}


def _body(line: bytes) -> bytes:
    """Return the JSON of a line, without its checksum and line end."""
    return line[9:].removesuffix(b"\n")


def decode(line: bytes, sequence: int, seed: int = 0) -> dict[str, Any] | None:
    """Return the record of a line; None if the line is incomplete, damaged, from another log, or has another number."""
    if len(line) < 10 or line[8:9] != b" " or line[-1:] != b"\n":
        return None
    body = _body(line)
    if line[:8] != b"%08x" % zlib.crc32(body, seed):
        return None
    record = from_json(body)
    return record if isinstance(record, dict) and record.get("seq") == sequence else None


def log_seed(first: bytes, record: Mapping[str, object]) -> int:
    """Return the initial value of a log's checksums, from its first line and record."""
    return int(first[:8], 16) if is_bound_to_run(record) else 0


def is_bound_to_run(first: Mapping[str, Any]) -> bool:
    """Return whether a log with this first record is bound to its run."""
    return bool(first.get(KEY, 0) >= BOUND)


def _is_complete(line: bytes) -> bool:
    """Return whether a line was written completely, to this log or to another.

    An interrupted write leaves a line without a line feed at its end or, after a power failure, with zeros in place of
    a page that did not reach the disk.
    """
    return line[-1:] == b"\n" and b"\0" not in line


def read_journal(path: Path, run: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield every complete record of a log with the byte offset of its line, without locking the log.

    Raises:
        JournalError: the file is damaged before its last line, or does not belong to the run with the identity `run`.
        NewerFormatError: a newer version of nip-run wrote the log.
    """
    with _open_for_reading(path) as file:
        for offset, _, record in scan(file, path, run):
            if record is not None:
                yield offset, record


class JournalReader:
    """Random access to the records of a journal, without locking it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _open_for_reading(path)
        first = self._file.readline()
        record = decode(first, 0)
        self._seed = 0 if record is None else log_seed(first, record)
        self.is_bound_to_run = record is None or is_bound_to_run(record)
        self.journal_id: str | None = None if record is None else record.get("journal")
        """A random number that identifies the journal; None in journals of 0.1.0."""

    def record(self, offset: int) -> dict[str, Any]:
        """Return the record at a byte offset.

        Raises:
            JournalError: the file was changed, so the record is no longer at the offset.
        """
        self._file.seek(offset)
        return record_at(self._path, offset, self._file.readline(), self._seed)

    def close(self) -> None:
        self._file.close()


def record_at(path: Path, offset: int, line: bytes, seed: int) -> dict[str, object]:
    """Return the record of a line that was read and checked before.

    Raises:
        JournalError: the line has changed.
    """
    body = _body(line)
    if line[:8] != b"%08x" % zlib.crc32(body, seed if offset else 0):
        raise JournalError(f"{path} changed while it was read: the record at byte {offset} is gone; repeat the command")
    record: dict[str, Any] = from_json(body)
    return record


def check_log_format(path: Path, run: str | None = None) -> None:
    """Check the first record of a log. A log that cannot be read passes, since its next reader reports that.

    Raises:
        NewerFormatError: a newer version of nip-run wrote the log.
        JournalError: the log does not belong to the run with the identity `run`.
    """
    first = first_record(path)
    if first is not None:
        check_first_record(path, first, run)


def first_record(path: Path) -> dict[str, Any] | None:
    """Return the first record of a log, or None if there is none or it cannot be read."""
    with suppress(OSError), open_to_read(path) as file:
        return decode(file.readline(), 0)
    return None


def is_log_bound_to_run(path: Path) -> bool:
    """Return whether the lines of a log are bound to its run; an empty log counts as bound."""
    first = first_record(path)
    return first is None or is_bound_to_run(first)


def _open_for_reading(path: Path) -> IO[bytes]:
    with os_errors_as(JournalError, f"cannot read {path}"):
        return open_to_read(path)


def check_first_record(path: Path, record: Mapping[str, object], run: str | None) -> None:
    """Check the first record of a log, and raise as `check_log_format` does."""
    refuse_newer(path, record.get(KEY, 0), LOG_FORMAT)
    if run is not None and is_bound_to_run(record) and record.get(RUN) != run:
        raise JournalError(
            f"{path} belongs to another run, {record.get(RUN_ID)!r} with the identity {str(record.get(RUN))[:12]} "
            f"instead of {run[:12]}. Restore the right file, or move the folder away, then run the same command again"
        )


class ScannedLine(NamedTuple):
    """A line of a log, or the torn end of a log."""

    offset: int
    """The byte offset of the line in the file."""
    line: bytes
    record: dict[str, Any] | None
    """The record in the line; None for a torn end."""


def scan(file: IO[bytes], path: Path, run: str | None = None) -> Iterator[ScannedLine]:
    """Yield the valid lines, then the torn end, if there is one.

    Raises:
        JournalError: the log is damaged, or belongs to another run.
        NewerFormatError: a newer version of nip-run wrote the log.
    """
    offset = seed = 0
    torn, bound = False, True
    group: list[ScannedLine] = []
    for sequence, line in enumerate(file):
        if torn:
            bad = group[-1].offset
            raise JournalError(f"{path} is damaged at byte {bad}, before more records; {_advice(path, bad)}")
        record = decode(line, sequence, seed)
        if sequence == 0 and record is not None:
            check_first_record(path, record, run)
            bound, seed = is_bound_to_run(record), log_seed(line, record)
        group.append(ScannedLine(offset, line, record))
        if record is None:
            if bound and _is_complete(line):
                raise JournalError(
                    f"{path} is damaged at byte {offset}: a line there was changed, or is from another log; "
                    f"{_advice(path, offset)}"
                )
            torn = True
        elif not record.get(MORE):
            yield from group
            group = []
        offset += len(line)
    if group:
        yield ScannedLine(group[0].offset, b"".join(item.line for item in group), None)


FROM_ELSEWHERE = "it was fetched"


def _advice(path: Path, bad: int) -> str:
    folder = fetched_folder([path.parent])
    if folder is not None:
        verify = f"nip-run verify {shlex.quote(path_argument(folder))}"
        return f"{FROM_ELSEWHERE}: {verify} tells whether it was changed since"
    cut = f"truncate -s {bad} {shlex.quote(path_argument(path))}"
    return f"restore the file from a backup, or truncate it ({cut}), then run the same command again"
