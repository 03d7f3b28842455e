"""An index of a journal by sample. It has only byte offsets in memory, and reads answers on demand.

Replays, resumed runs and all readers of finished games use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.base.storage.log_follower import PIECE, LogFollower
from runner.base.storage.log_lines import JournalReader, read_journal
from runner.models.interface import SampleKey
from runner.models.journal_records import (
    BatchRecord,
    CallRecord,
    EndedRecord,
    FailureRecord,
    IndexedRecord,
    RepeatRecord,
    parse_record,
)


class JournalIndex:
    """The index of a journal's completions. `read` returns the fields of the record at a byte offset."""

    def __init__(
        self,
        read: Callable[[int], dict[str, Any]],
        entries: Iterable[IndexedRecord],
        *,
        group_of: Callable[[SampleKey], str] = lambda sample: sample.agent,
    ) -> None:
        self._read = read
        self._offsets: dict[SampleKey, int] = {}
        self._names: dict[str, str] = {}
        """One string for each datapoint and agent, since every record has its own copies."""
        self._failures: dict[tuple[str, int], list[FailureRecord]] = {}
        self.batches: list[BatchRecord] = []
        self.answered: set[str] = set()
        """The model groups with an answer in the journal. Without `group_of`, these are names of agents."""
        self._group_of = group_of
        for entry in entries:
            self.add(entry)

    def add(self, entry: IndexedRecord) -> None:
        """Add the next record of the journal."""
        record = entry.record
        if isinstance(record, (CallRecord, RepeatRecord, EndedRecord)):
            self._offsets[record.sample] = entry.offset
            if isinstance(record, CallRecord):
                self.answered.add(self._group_of(record.sample))
        elif isinstance(record, FailureRecord):
            self._failures.setdefault((record.sample.datapoint, record.sample.repeat), []).append(record)
        elif isinstance(record, BatchRecord):
            self.batches.append(record)

    def add_json(self, offset: int, data: Mapping[str, Any]) -> None:
        """Add the next record as JSON. This does not parse the server's answer in a record."""
        if data["kind"] != CallRecord.KIND or "of" in data:
            self.add(IndexedRecord(offset, data["seq"], parse_record(data)))
            return
        datapoint, repeat, round_, agent, *rest = data["sample"]
        name_of = self._names.setdefault
        sample = SampleKey(name_of(datapoint, datapoint), repeat, round_, name_of(agent, agent), *rest)
        self._offsets[sample] = offset
        self.answered.add(self._group_of(sample))

    def __len__(self) -> int:
        return len(self._offsets)

    def get(self, sample: SampleKey) -> CallRecord | EndedRecord | None:
        """Return the record of a sample's answer, or of the error that ended its game; None if there is neither."""
        offset = self._offsets.get(sample)
        if offset is None:
            return None
        record = parse_record(self._read(offset))
        if isinstance(record, RepeatRecord):
            holder = self.get(record.holder)
            assert isinstance(holder, CallRecord)
            return record.extract_from(holder)
        assert isinstance(record, (CallRecord, EndedRecord))
        return record

    def failures(self, datapoint: str, repeat: int) -> Sequence[FailureRecord]:
        """Return the records of a rollout's failed attempts."""
        return self._failures.get((datapoint, repeat), ())


class FollowedIndex:
    """The index of a journal while another process may append to it."""

    def __init__(self, path: Path, run: str | None = None) -> None:
        self._path, self._follower = path, LogFollower(path, run)
        self._reader: JournalReader | None = None
        self.index = JournalIndex(self._record, ())

    def read(self, max_bytes: int = PIECE) -> list[IndexedRecord]:
        """Read and index the next records in at most `max_bytes` bytes, and return them.

        Raises:
            JournalError, NewerFormatError: see `LogFollower.read`.
        """
        lines = self._follower.read(max_bytes)
        entries = [IndexedRecord(offset, data["seq"], parse_record(data)) for offset, data in lines]
        if entries:
            self.close()  # because the reader's buffer may have bytes of an incomplete record that was removed since
        for entry in entries:
            self.index.add(entry)
        return entries

    def _record(self, offset: int) -> dict[str, object]:
        self._reader = self._reader or JournalReader(self._path)
        return self._reader.record(offset)

    def close(self) -> None:
        """Close the file. The next access to a record opens it again."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def open_index(path: Path, run: str | None = None) -> tuple[JournalReader, JournalIndex]:
    """Return a reader and an index of a journal. No process may append to it. The caller closes the reader.

    Raises:
        JournalError: the file is damaged before its last line, or does not belong to the run with the identity `run`.
        NewerFormatError: a newer version of nip-run wrote the journal.
    """
    reader = JournalReader(path)
    index = JournalIndex(reader.record, ())
    try:
        for offset, data in read_journal(path, run):
            index.add_json(offset, data)
    except BaseException:
        reader.close()
        raise
    return reader, index
