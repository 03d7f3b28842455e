"""Files that are whole or absent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from runner.errors import RunError


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write a file beside its place, flush it, and put it there: a reader sees the old or the new one.

    Raises:
        RunError: it cannot be written; the old file is untouched.
    """
    beside = path.with_name(path.name + ".new")
    try:
        with beside.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        fsync_dir(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror}") from error


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
        RunError: it is missing or damaged.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if not isinstance(data, dict):
        raise RunError(f"{path} is damaged: it holds no mapping")
    return data
