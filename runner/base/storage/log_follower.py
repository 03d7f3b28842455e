"""A log that somebody else appends to, read as it grows: each record once, when all that counts with it is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from runner.base.errors import JournalError
from runner.base.storage.log_lines import MORE, check_first, decode, is_bound, seed_of
from runner.base.storage.safe_files import open_to_read

PIECE = 8 << 20
"""Bytes that are read at once; more where one group of records needs them."""


class LogFollower:
    """The end of a log as far as it was read. The file is opened for each look alone."""

    def __init__(self, path: Path, run: str | None = None) -> None:
        self._path, self._run = path, run
        self._offset = self._sequence = self._seed = 0
        self._bound = True
        self._file: tuple[int, int] | None = None
        self.is_at_end = False
        """Whether the last look came to the end of what was there."""

    def read(self, most: int = PIECE) -> list[tuple[int, dict[str, Any]]]:
        """The records that came since the last look, each with its offset; a torn end is waited for.

        Raises:
            JournalError: it is damaged, of another run, or not the file that was read before.
            NewerFormatError: a newer nip-run wrote it.
        """
        try:
            with open_to_read(self._path) as file:
                found = os.fstat(file.fileno())
                if self._file not in (None, (found.st_dev, found.st_ino)) or found.st_size < self._offset:
                    raise JournalError(f"{self._path} was replaced or cut while it was read")
                self._file = found.st_dev, found.st_ino
                while True:
                    file.seek(self._offset)
                    data = file.read(most)
                    self.is_at_end = len(data) < most
                    records = self._taken(data)
                    if records or self.is_at_end:
                        return records
                    most *= 2
        except FileNotFoundError:
            self.is_at_end = True
            return []
        except OSError as error:
            raise JournalError(f"cannot read {self._path}: {error.strerror}") from error

    def _taken(self, data: bytes) -> list[tuple[int, dict[str, Any]]]:
        taken: list[tuple[int, dict[str, Any]]] = []
        group: list[tuple[int, dict[str, Any]]] = []
        at, sequence = self._offset, self._sequence
        lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]
        for number, said in enumerate(lines, 1):
            line = said + b"\n"
            record = decode(line, sequence, self._seed)
            if record is None:
                if number == len(lines) and (b"\0" in line or not self._bound):
                    break  # what a power cut leaves; whoever goes on with the run cuts it off
                raise JournalError(f"{self._path} is damaged at byte {at}; `nip-run verify RUN` says more")
            if sequence == 0:
                check_first(self._path, record, self._run)
                self._bound, self._seed = is_bound(record), seed_of(line, record)
            group.append((at, record))
            at, sequence = at + len(line), sequence + 1
            if not record.get(MORE):
                taken.extend(group)
                group = []
                self._offset, self._sequence = at, sequence
        return taken
