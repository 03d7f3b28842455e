"""The lines of a log: records as they stand in a journal or a stage log, and the way back.

One record a line: `crc32hex SP canonical-JSON LF`, each with a sequence number. A line is whole or absent. Records
that were appended together count together: all but the last say `more`, and a group whose last is missing is a torn
end. The first record says the file's format (see `formats`); one of 0.1.0 says none.

From format 2 on, every line is bound to its file: the first record says which run the log is of and holds a random
number, and the checksum of each later line starts from that of the first. So a line of another log never checks, be it
of another play of the same spec. A line that is whole and does not check is damage, wherever it stands; only what a
write that was cut off leaves is a torn end.

A record's `answer` is bytes: JSON of somebody else's, which stands last in its line as it is, and is not read with the
record.
"""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import orjson

from runner.base.errors import JournalError
from runner.base.hashing import canonical
from runner.base.storage.fetched_markers import fetched_folder
from runner.base.storage.format_versions import KEY, LOG_FORMAT, refuse_newer
from runner.base.storage.safe_files import open_to_read

BOUND = 2
"""The first format whose lines are bound to their file."""

RUN, RUN_ID = "run", "run_id"
"""In the first record of a bound log: the identity of its run, and the id that the run had then, for people."""

NOT_BOUND = "not bound to the run: begun in an earlier format, in which lines of other journals go unnoticed"
"""What there is to say of a journal that is not bound to its run."""

ANSWER = "answer"
"""The one value of a record that is kept as it came, as bytes of JSON."""

_BEFORE_ANSWER = b', "answer": '
"""Found in no line before an answer: what we write has no blank outside its texts, and in them quotes are escaped."""

MORE = "more"
"""Set in a record that does not count without the next."""


def encode(sequence: int, record: Mapping[str, Any], seed: int = 0) -> bytes:
    """One record as its line; `seed` is `seed_of` the log's first."""
    body = to_json({**record, "seq": sequence})
    return b"%08x %b\n" % (zlib.crc32(body, seed), body)


Unnumbered = tuple[bytes, bytes]
"""A record as its line has it, without the number that it gets in its log: what stands before that, and behind.

A plain tuple: thousands a second go from process to process.
"""


_NUMBER = b"\0"
"""Stands for a record's number: found in no JSON, whose texts have it escaped."""

_NO_NUMBER: Any = orjson.Fragment(_NUMBER)


def unnumbered(records: Sequence[Mapping[str, Any]]) -> list[Unnumbered]:
    """Records that count together, for `numbered` to make lines of."""
    last = len(records) - 1
    bodies = (
        to_json({**record, MORE: True, "seq": _NO_NUMBER} if index < last else {**record, "seq": _NO_NUMBER})
        for index, record in enumerate(records)
    )
    parts = (body.partition(_NUMBER) for body in bodies)
    return [(before, behind) for before, _, behind in parts]


def numbered(sequence: int, record: Unnumbered, seed: int) -> bytes:
    """A record as its line, as `encode` would write it."""
    before, behind = record
    body = b"%b%d%b" % (before, sequence, behind)
    return b"%08x %b\n" % (zlib.crc32(body, seed), body)


def to_json(record: Mapping[str, Any]) -> bytes:
    """A record as JSON in one line, its answer last and as it is."""
    answer = record.get(ANSWER)
    if not isinstance(answer, bytes):
        return canonical(record)
    rest = canonical({name: value for name, value in record.items() if name != ANSWER})
    return b"".join((rest[:-1], _BEFORE_ANSWER, answer, b"}"))


def from_json(line: bytes) -> Any:
    """The record that `to_json` wrote; its answer as bytes."""
    at = line.find(_BEFORE_ANSWER)
    if at < 0:
        return orjson.loads(line)
    return {**orjson.loads(line[:at] + b"}"), ANSWER: line[at + len(_BEFORE_ANSWER) : -1]}


def _body(line: bytes) -> bytes:
    """The record of a line, behind its checksum."""
    return line[9:].removesuffix(b"\n")


def decode(line: bytes, sequence: int, seed: int = 0) -> dict[str, Any] | None:
    """A line as its record; None where it is not whole or not the one that belongs here."""
    if len(line) < 10 or line[8:9] != b" " or line[-1:] != b"\n":
        return None
    body = _body(line)
    if line[:8] != b"%08x" % zlib.crc32(body, seed):
        return None
    record = from_json(body)
    return record if isinstance(record, dict) and record.get("seq") == sequence else None


def seed_of(first: bytes, record: Mapping[str, Any]) -> int:
    """What the checksums of a log start from, by its first line and record."""
    return int(first[:8], 16) if is_bound(record) else 0


def is_bound(first: Mapping[str, Any]) -> bool:
    """Whether a log that begins with this record is bound to its run."""
    return bool(first.get(KEY, 0) >= BOUND)


def _is_whole(line: bytes) -> bool:
    """Whether a line was written to its end, whoever wrote it.

    A write that was cut off lacks its end, or, after a power cut, has zeros where a page did not reach the disk; what
    is written has neither.
    """
    return line[-1:] == b"\n" and b"\0" not in line


def read_journal(path: Path, run: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every whole record of a log with the offset of its line, without locking it.

    Raises:
        JournalError: the file is damaged before its last line, or is not of the run with the identity `run`.
        NewerFormatError: a newer nip-run wrote it.
    """
    with _to_read(path) as file:
        for offset, _, record in scan(file, path, run):
            if record is not None:
                yield offset, record


class JournalReader:
    """Single records of a journal, wherever they stand, without locking it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _to_read(path)
        first = self._file.readline()
        record = decode(first, 0)
        self._seed = 0 if record is None else seed_of(first, record)
        self.is_bound = record is None or is_bound(record)
        self.number: str | None = None if record is None else record.get("journal")
        """The number that no other journal has; None in one of 0.1.0."""

    def record(self, offset: int) -> dict[str, Any]:
        """The record at an offset that reading the journal gave.

        Raises:
            JournalError: it is not there any more.
        """
        self._file.seek(offset)
        return record_at(self._path, offset, self._file.readline(), self._seed)

    def close(self) -> None:
        self._file.close()


def record_at(path: Path, offset: int, line: bytes, seed: int) -> dict[str, Any]:
    """A line that was read again as its record.

    Raises:
        JournalError: it is not the line that it was.
    """
    body = _body(line)
    if line[:8] != b"%08x" % zlib.crc32(body, seed if offset else 0):
        raise JournalError(f"{path} was changed while it was read: the record at byte {offset} is not there any more")
    record: dict[str, Any] = from_json(body)
    return record


def check_log_format(path: Path, run: str | None = None) -> None:
    """Read no more of a journal than its first record. One that cannot be read is for whoever opens it.

    Raises:
        NewerFormatError: a newer nip-run wrote it.
        JournalError: it is not of the run with the identity `run`.
    """
    first = first_record(path)
    if first is not None:
        check_first(path, first, run)


def first_record(path: Path) -> dict[str, Any] | None:
    """What a log begins with; None where there is none, or it cannot be read."""
    with suppress(OSError), open_to_read(path) as file:
        return decode(file.readline(), 0)
    return None


def is_bound_to_run(path: Path) -> bool:
    """Whether the records of a log are bound to its run; so are those of one that has none."""
    first = first_record(path)
    return first is None or is_bound(first)


def _to_read(path: Path) -> IO[bytes]:
    try:
        return open_to_read(path)
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error


def check_first(path: Path, record: Mapping[str, Any], run: str | None) -> None:
    """Check the first record of a log. Raises as `check_log_format`."""
    refuse_newer(path, record.get(KEY, 0), LOG_FORMAT)
    if run is not None and is_bound(record) and record.get(RUN) != run:
        raise JournalError(
            f"{path} is of another run, {record.get(RUN_ID)!r}, whose identity is {str(record.get(RUN))[:12]} and not "
            f"{run[:12]}. Put back the file that belongs here, or move this one away, and run the same command again"
        )


def scan(file: IO[bytes], path: Path, run: str | None = None) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    """The lines that count, with their offsets and records; at last the torn end, if there is one, with None."""
    offset = seed = 0
    torn, bound = False, True
    group: list[tuple[int, bytes, dict[str, Any] | None]] = []
    for sequence, line in enumerate(file):
        if torn:
            bad = group[-1][0]
            raise JournalError(f"{path} is damaged at byte {bad}, and records follow; {_advice(path, bad)}")
        record = decode(line, sequence, seed)
        if sequence == 0 and record is not None:
            check_first(path, record, run)
            bound, seed = is_bound(record), seed_of(line, record)
        group.append((offset, line, record))
        if record is None:
            if bound and _is_whole(line):
                raise JournalError(
                    f"{path} is damaged at byte {offset}: what stands there is whole, but not a record of this log; it "
                    f"is of another one, or was changed; {_advice(path, offset)}"
                )
            torn = True
        elif not record.get(MORE):
            yield from group
            group = []
        offset += len(line)
    if group:
        yield group[0][0], b"".join(line for _, line, _ in group), None


FROM_ELSEWHERE = "it was got from elsewhere"


def _advice(path: Path, bad: int) -> str:
    got = fetched_folder([path.parent])
    if got is not None:
        return f"{FROM_ELSEWHERE}: nip-run verify {shlex.quote(str(got))} says whether it was changed since"
    cut = f"truncate -s {bad} {shlex.quote(str(path))}"
    return f"restore it from a backup, or cut it there ({cut}) and run the same command again"
