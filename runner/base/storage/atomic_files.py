"""Files that are whole or absent."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runner.base.errors import RunError
from runner.base.storage.safe_files import create, read_bounded
from runner.base.storage.strict_json import loads

MAX_JSON = 64 << 20
"""The largest file of ours that is read whole."""


def atomic_write(path: Path, data: bytes | str | Iterable[bytes], *, mode: int | None = None) -> None:
    """Write a file beside its place, flush it, and put it there: a reader sees the old or the new one.

    `data` may come in parts, so that a large file is never whole in memory. With a `mode` nobody else may ever open it.

    Raises:
        RunError: it cannot be written; the old file is untouched.
    """
    beside = path.with_name(path.name + ".new")
    try:
        with create(beside) as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            whole = data.encode() if isinstance(data, str) else data
            file.writelines([whole] if isinstance(whole, bytes) else whole)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        fsync_dir(path.parent)
    except OSError as error:
        with suppress(OSError):  # a folder that was planted there is no more ours to remove than to write to
            beside.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A new name beside a file, for what takes its place when the block ends; where it fails, nothing stands there.

    No other process has this name, so that each of several that write the same file, or in the same folder, puts its
    own there. The name's characters are ones that DuckDB takes.

    Raises:
        OSError: it cannot take the file's place.
    """
    beside = target.with_name(f".nip-run-{secrets.token_hex(8)}.new")
    try:
        yield beside
        beside.replace(target)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def fsync_dir(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of our own making.

    Raises:
        RunError: it is missing or damaged, or has a key twice, so that readers could differ in what it says.
    """
    try:
        data = loads(read_bounded(path, MAX_JSON))
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if not isinstance(data, dict):
        raise RunError(f"{path} is damaged: it holds no mapping")
    return data
