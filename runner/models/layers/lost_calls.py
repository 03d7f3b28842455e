"""Calls in flight, in a file that outlives a killed process, so that what they may cost is counted by the next one.

A provider bills a call that it got, whether or not we live to read the answer. So each call has a slot in a file of
the run folder from before it is sent until its journal record is on disk: which call it is, how long the journal was,
and its worst case. A slot is written in the system's page cache, without waiting for a disk: it outlives the process
however that ends, but not a power cut, after which as many calls as were in flight may be uncounted.

Whoever opens the run next writes the sum into the journal as a `lost` record, and removes the file once that is on
disk. Nothing is counted twice: a slot whose call has a record by then does not count, and a file whose name stands in
a `lost` record has been counted. Calls that wait in a batch have no slot, because the next process finds the batch.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from contextlib import suppress
from pathlib import Path

from runner.base.errors import RunError
from runner.base.hashing import canonical
from runner.base.storage.safe_files import create_only, is_there, open_to_read
from runner.models.interface import SampleKey
from runner.models.journal_records import BatchRecord, LostRecord, Record
from runner.models.usage_totals import UsageTotals

_NAME_BYTES = 16
_SLOT = struct.Struct("<16sqdqq")
"""The call, the journal's length, dollars, tokens, and calls: 1, or 0 where the slot is free."""


def _call(sample: SampleKey) -> bytes:
    """A sample in 16 bytes."""
    return hashlib.blake2b(canonical(sample.fields()), digest_size=16).digest()


class InFlight:
    """The file of one process: made with its first call, gone with its last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._taken: dict[SampleKey, int] = {}
        self._free: list[int] = []
        self._end = _NAME_BYTES

    def sent(self, sample: SampleKey, most: UsageTotals, records: int) -> None:
        """A call is about to be sent: what it may cost, and how many records the journal has.

        Raises:
            RunError: that cannot be kept, so the call must not be sent.
        """
        if self._free:
            at = self._free.pop()
        else:
            at, self._end = self._end, self._end + _SLOT.size
        self._taken[sample] = at
        try:
            self._write(at, _SLOT.pack(_call(sample), records, most.usd, most.tokens, most.completions))
        except OSError as error:
            raise RunError(f"cannot write {self._path}: {error.strerror}") from error

    def settled(self, sample: SampleKey) -> None:
        """A call's record is on disk, by which its slot counts no more. One without a slot is ignored."""
        at = self._taken.pop(sample, None)
        if at is not None:
            self._free.append(at)

    def refused(self, sample: SampleKey) -> None:
        """The provider has refused a call, of which there is no record. One without a slot is ignored."""
        at = self._taken.pop(sample, None)
        if at is not None:
            with suppress(OSError):  # counted as spent, and at no cost
                self._write(at, bytes(_SLOT.size))
            self._free.append(at)

    def count(self) -> int:
        """How many calls wait for their answers, or for the journal to have them."""
        return len(self._taken)

    def _write(self, at: int, data: bytes) -> None:
        if self._file is None:
            self._file = create_only(self._path, os.O_WRONLY)
            self._write(0, os.urandom(_NAME_BYTES))
        if os.pwrite(self._file, data, at) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Let go of the file, and remove it if no call is left in it."""
        if self._file is not None:
            # Of a folder that took the place of ours, the file is another process's.
            if not self._taken and is_there(self._path, self._file):
                self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


class AbandonedCalls:
    """The calls that an earlier process left in flight; `see` must be told of every record of the journal."""

    def __init__(self, path: Path) -> None:
        try:
            with open_to_read(path) as file:
                data = file.read()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror}") from error
        self.name = data[:_NAME_BYTES].hex()
        self._slots: dict[bytes, tuple[int, UsageTotals]] = {}
        slots = data[_NAME_BYTES:]
        for call, records, *most in _SLOT.iter_unpack(slots[: len(slots) // _SLOT.size * _SLOT.size]):
            # Of two slots of one call the later sent is in flight: the other's attempt has its record.
            if most[-1] and records >= self._slots.get(call, (0,))[0]:
                self._slots[call] = (records, UsageTotals(*most))
        self._since = min((records for records, _ in self._slots.values()), default=0)

    @property
    def is_empty(self) -> bool:
        """Whether none is left, so that no record changes that."""
        return not self._slots

    def see(self, sequence: int, record: Record) -> None:
        """Leave out what this record settles."""
        if not self._slots:
            return
        if isinstance(record, LostRecord):
            if record.of == self.name:
                self._slots.clear()
        elif not isinstance(record, BatchRecord) and record.sample is not None and sequence >= self._since:
            call = _call(record.sample)
            # Records from before the call was sent are of earlier attempts.
            if call in self._slots and sequence >= self._slots[call][0]:
                del self._slots[call]

    @property
    def most(self) -> UsageTotals:
        """What they may have cost."""
        return sum((most for _, most in self._slots.values()), UsageTotals())

    def lost(self) -> LostRecord:
        """They as a journal record."""
        return LostRecord(self.name, self.most)
