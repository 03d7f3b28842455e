"""Append-only files with a JSON object in each line, for several writers.

An incomplete last line, as after a kill, is ignored, and the next write removes it. All lines of a write are appended,
or none.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import fields
from pathlib import Path
from typing import IO, Any, TypeVar, cast, get_type_hints

from runner.base.errors import RunError, os_errors_as
from runner.base.hashing import canonical
from runner.base.storage.locks import locked
from runner.base.storage.safe_files import append_to, make_folders, read_bounded
from runner.base.storage.strict_json import parse_strict_json

T = TypeVar("T")

MAX_FILE = 64 << 20
LOCK_SECONDS = 5.0


class LineFile:
    """A file of JSON lines, and its lock."""

    def __init__(self, path: Path, lock: Path, subject: str) -> None:
        """`subject` is the name of the file in the message about a lock of another process."""
        self.path, self._lock, self._subject = path, lock, subject

    def hold_lock(self) -> AbstractContextManager[None]:
        """Lock the file. Raises the errors of `locked`."""
        return locked(self._lock, self._subject, LOCK_SECONDS, "; run the same command again")

    def complete_lines(self) -> bytes:
        """Return the lines that were written completely; nothing if there is no file.

        Raises:
            RunError: the file cannot be read.
        """
        data = b""
        with os_errors_as(RunError, f"cannot read {self.path}"), suppress(FileNotFoundError):
            data = read_bounded(self.path, MAX_FILE)
        return data[: data.rfind(b"\n") + 1]

    def append(self, records: Iterable[Mapping[str, object]]) -> None:
        """Append records. The caller holds the lock.

        Raises:
            RunError: the file cannot be written, or would be too large.
        """
        end = len(self.complete_lines())
        data = b"".join(canonical(record) + b"\n" for record in records)
        if end + len(data) > MAX_FILE:
            raise RunError(f"{self.path} would exceed {MAX_FILE >> 20} MiB; export its content and move the file away")
        with os_errors_as(RunError, f"cannot write {self.path}"):
            make_folders(self.path.parent)
            with append_to(self.path) as file:
                _write_at(file, end, data)


def _write_at(file: IO[bytes], end: int, data: bytes) -> None:
    """Replace what follows the first `end` bytes of a file with `data`; if this fails, only remove it."""
    os.ftruncate(file.fileno(), end)
    try:
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, "no space left on device")
        os.fsync(file.fileno())
    except OSError:
        os.ftruncate(file.fileno(), end)
        raise


def parse_record(record_type: type[T], line: bytes) -> T:
    """Return the flat dataclass in a line. Unknown keys, as of a newer version, are ignored.

    Raises:
        ValueError: the line is not a JSON object, a key is missing, or its value has the wrong type.
    """
    data, values = parse_strict_json(line), {}
    if not isinstance(data, Mapping):
        raise ValueError("the line is not a JSON object")  # noqa: TRY004 - callers report it as wrong data
    hints = get_type_hints(record_type)
    for field in fields(cast("Any", record_type)):
        value, hint = data.get(field.name), hints[field.name]
        if isinstance(value, int) and isinstance(0.0, hint):
            value = float(value)
        if not isinstance(value, hint):
            problem = "is missing" if value is None else "has the wrong type"
            raise ValueError(f"`{field.name}` {problem}")  # noqa: TRY004
        values[field.name] = value
    return record_type(**values)
