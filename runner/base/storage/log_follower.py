"""Reads a log while another process appends to it: each group of records once, as soon as the group is complete."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

from runner.base.errors import JournalError
from runner.base.storage.log_lines import MORE, check_first_record, decode, is_bound_to_run, log_seed
from runner.base.storage.safe_files import open_to_read

PIECE = 8 << 20
"""Number of bytes that one read takes; more if a single group of records is larger."""


class LogFollower:
    """A position in a growing log. The file is open only during `read`."""

    def __init__(self, path: Path, run: str | None = None) -> None:
        self._path, self._run = path, run
        self._offset = self._sequence = self._seed = 0
        self._bound = True
        self._file: tuple[int, int] | None = None
        self.is_at_end = False
        """True if the last read reached the end of the file."""

    def read(self, most: int = PIECE) -> list[tuple[int, dict[str, Any]]]:
        """Return the records since the last read, each with its byte offset. An incomplete group is left for later.

        Raises:
            JournalError: the log is damaged, belongs to another run, or is not the file that was read before.
            NewerFormatError: a newer version of nip-run wrote the log.
        """
        try:
            with open_to_read(self._path) as file:
                status = os.fstat(file.fileno())
                if self._file not in (None, (status.st_dev, status.st_ino)) or status.st_size < self._offset:
                    raise JournalError(
                        f"{self._path} was replaced or truncated by another process while nip-run read it; run the "
                        "same command again"
                    )
                self._file = status.st_dev, status.st_ino
                return self._read_groups(file, most)
        except FileNotFoundError:
            self.is_at_end = True
            return []
        except OSError as error:
            raise JournalError(f"cannot read {self._path}: {error.strerror}") from error

    def _read_groups(self, file: IO[bytes], most: int) -> list[tuple[int, dict[str, Any]]]:
        """Return the next records, from at most `most` bytes; from more bytes if a group is longer."""
        while True:
            file.seek(self._offset)
            data = file.read(most)
            self.is_at_end = len(data) < most
            records = self._decode_groups(data)
            if records or self.is_at_end:
                return records
            most *= 2

    def _decode_groups(self, data: bytes) -> list[tuple[int, dict[str, object]]]:
        """Return the records of the complete groups in `data`, and move the position behind them."""
        complete_groups: list[tuple[int, dict[str, Any]]] = []
        group: list[tuple[int, dict[str, Any]]] = []
        offset, sequence = self._offset, self._sequence
        lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]
        for number, line_text in enumerate(lines, 1):
            line = line_text + b"\n"
            record = decode(line, sequence, self._seed)
            if record is None:
                if number == len(lines) and (b"\0" in line or not self._bound):
                    break  # the remains of a power failure, which the next writer of the run cuts off
                raise JournalError(f"{self._path} is damaged at byte {offset}; run `nip-run verify RUN` for details")
            if sequence == 0:
                check_first_record(self._path, record, self._run)
                self._bound, self._seed = is_bound_to_run(record), log_seed(line, record)
            group.append((offset, record))
            offset, sequence = offset + len(line), sequence + 1
            if not record.get(MORE):
                complete_groups.extend(group)
                group = []
                self._offset, self._sequence = offset, sequence
        return complete_groups
