"""Files that are replaced atomically: a reader sees the old or the new content, never a part."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runner.base.errors import RunError
from runner.base.storage.safe_files import create, read_bounded
from runner.base.storage.strict_json import parse_strict_json

MAX_JSON = 64 << 20
"""Maximum size in bytes of a JSON file that nip-run wrote, which is read into memory at once."""


_REPLACE = "; replace the file with an intact copy"


def atomic_write(path: Path, data: bytes | str | Iterable[bytes], *, mode: int | None = None) -> None:
    """Write a file under a temporary name next to it, flush it, and rename it: a reader sees the old or the new file.

    `data` may be an iterable of parts, so that a large file is never in memory at once. `mode` restricts access from
    the first byte on.

    Raises:
        RunError: the file cannot be written; the old file is unchanged.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        with create(temporary) as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            content = data.encode() if isinstance(data, str) else data
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        fsync_dir(path.parent)
    except OSError as error:
        with suppress(OSError):  # something else than a file may be at the temporary name, such as a folder
            temporary.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path next to `target`. What the block writes there replaces `target` when the block ends.

    If the block fails, the temporary file is removed. Its name is random, so that several processes can write the same
    file or folder at once, and has only characters that DuckDB accepts.

    Raises:
        OSError: the target cannot be replaced.
    """
    temporary = target.with_name(f".nip-run-{secrets.token_hex(8)}.new")
    try:
        yield temporary
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def fsync_dir(folder: Path) -> None:
    """Flush a folder to disk, so that renames in it survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that nip-run wrote.

    Raises:
        RunError: the file is missing or damaged, or has a duplicate key, which readers could interpret differently.
    """
    try:
        data = parse_strict_json(read_bounded(path, MAX_JSON))
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}{_REPLACE}") from error
    if not isinstance(data, dict):
        raise RunError(f"{path} is damaged: the file is not a JSON object{_REPLACE}")
    return data
