"""Stores the calls in flight in a file, so that the next process can count their cost if this process is killed.

A provider bills a call that it received even if the process is killed before it reads the answer. So each call has a
slot in a file of the run's folder, from before it is sent until its journal record is on disk. The slot has a hash of
the call's sample, the number of journal records when the call was sent, and its maximum cost. The file is written
without fsync, so it survives a kill of the process, but not a power failure.

The next process that opens the run writes the total cost to the journal as a `lost` record, and then removes the file.
Nothing is counted twice: a slot does not count if its call has a record, and a file does not count if a `lost` record
has its name. Calls in a batch have no slot, because the next process finds the batch.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from contextlib import suppress
from pathlib import Path

from runner.base.errors import ANSWERS_ARE_SAVED, RunError
from runner.base.hashing import canonical
from runner.base.storage.safe_files import create_only, is_still_at, open_to_read
from runner.models.interface import SampleKey
from runner.models.journal_records import BatchRecord, LostRecord, Record
from runner.models.usage_totals import UsageTotals

_NAME_BYTES = 16
_SLOT = struct.Struct("<16sqdqq")
"""The format of a slot: the sample's hash, the number of journal records, dollars, tokens, and 1 (0 in a free slot)."""


def _sample_hash(sample: SampleKey) -> bytes:
    """Return a hash of 16 bytes that identifies a sample."""
    return hashlib.blake2b(canonical(sample.fields()), digest_size=16).digest()


class InFlightFile:
    """The file of one process with its calls in flight.

    It is created for the first call, and removed at the end if no call is in flight.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._offsets: dict[SampleKey, int] = {}
        self._free: list[int] = []
        self._end = _NAME_BYTES

    def add_call(self, sample: SampleKey, cost: UsageTotals, records: int) -> None:
        """Store the maximum cost of a call before it is sent, and the number of journal records.

        Raises:
            RunError: the file cannot be written; the call must then not be sent.
        """
        if self._free:
            offset = self._free.pop()
        else:
            offset, self._end = self._end, self._end + _SLOT.size
        self._offsets[sample] = offset
        try:
            self._write(offset, _SLOT.pack(_sample_hash(sample), records, cost.usd, cost.tokens, cost.completions))
        except OSError as error:
            raise RunError(
                f"cannot write {self._path}: {error.strerror}. Check the disk and its free space, and run the same "
                f"command again. {ANSWERS_ARE_SAVED}"
            ) from error

    def settle_call(self, sample: SampleKey) -> None:
        """Free the slot of a call whose record is on disk. Calls without a slot are ignored."""
        offset = self._offsets.pop(sample, None)
        if offset is not None:
            self._free.append(offset)

    def discard_call(self, sample: SampleKey) -> None:
        """Free the slot of a call that the provider refused, which has no record. Calls without a slot are ignored."""
        if sample in self._offsets:
            with suppress(OSError):  # after an error, the call counts with its maximum cost, although it cost nothing
                self._write(self._offsets[sample], bytes(_SLOT.size))
            self.settle_call(sample)

    def count_calls(self) -> int:
        """Return the number of calls in flight."""
        return len(self._offsets)

    def _write(self, offset: int, data: bytes) -> None:
        if self._file is None:
            self._file = create_only(self._path, os.O_WRONLY)
            self._write(0, os.urandom(_NAME_BYTES))
        if os.pwrite(self._file, data, offset) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file, and remove it if no call is in flight."""
        if self._file is not None:
            # If another folder has replaced the run's folder, the file at this path belongs to another process.
            if not self._offsets and is_still_at(self._path, self._file):
                self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


class AbandonedCalls:
    """The calls that an earlier process left in flight.

    Pass each record of the journal to `apply_record` before you use the calls.
    """

    def __init__(self, path: Path) -> None:
        try:
            with open_to_read(path) as file:
                data = file.read()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise RunError(
                f"cannot read {path}: {error.strerror}. Make the file readable, because it has the cost of calls that "
                "were in flight"
            ) from error
        self.name = data[:_NAME_BYTES].hex()
        self._slots: dict[bytes, tuple[int, UsageTotals]] = {}
        slots = data[_NAME_BYTES:]
        for sample_hash, records, *totals in _SLOT.iter_unpack(slots[: len(slots) // _SLOT.size * _SLOT.size]):
            # If a sample has two slots, only the later call is in flight, because the earlier one has a record.
            if totals[-1] and records >= self._slots.get(sample_hash, (0,))[0]:
                self._slots[sample_hash] = (records, UsageTotals(*totals))
        self._first_sequence = min((records for records, _ in self._slots.values()), default=0)

    @property
    def is_empty(self) -> bool:
        """Whether no call is left, so that further records do not matter."""
        return not self._slots

    def apply_record(self, sequence: int, record: Record) -> None:
        """Remove the call of a record of the journal, or all calls if the record has already counted their cost."""
        if not self._slots:
            return
        if isinstance(record, LostRecord):
            if record.source == self.name:
                self._slots.clear()
        elif not isinstance(record, BatchRecord) and record.sample is not None and sequence >= self._first_sequence:
            sample_hash = _sample_hash(record.sample)
            # Records before the slot was written belong to earlier attempts of the call.
            if sample_hash in self._slots and sequence >= self._slots[sample_hash][0]:
                del self._slots[sample_hash]

    @property
    def max_cost(self) -> UsageTotals:
        """Maximum total cost of the calls."""
        return sum((cost for _, cost in self._slots.values()), UsageTotals())

    def to_record(self) -> LostRecord:
        """Return the journal record that counts the cost of the calls."""
        return LostRecord(self.name, self.max_cost)
