"""Handle errors of one release among many: the release is skipped with a reason, and the others are read."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path

from runner.base.errors import NipRunError
from runner.base.storage.duckdb_connections import is_machine_error
from runner.spec.origin import DATA

_NO_MEMORY = re.compile("(?i)failed to map|cannot (?:allocate|map)|can't start new thread")


def describe_error(error: Exception, folder: Path | None = None) -> str:
    """Return in one line why a release is skipped, with paths in `folder` replaced by paths in the release.

    The code that reads a malformed release can raise any exception, which must not affect the other releases.

    Raises:
        MemoryError: memory ran out, and the next release would not have enough either.
    """
    if lacks_memory(error):
        raise MemoryError from error
    message = str(error).partition("\n")[0]
    if folder is not None:
        message = message.replace(f"{folder}/", f"{DATA}/").replace(str(folder), DATA)
    if isinstance(error, (NipRunError, OSError)) and message:
        return message
    return f"the release is malformed ({type(error).__name__}: {message})" if message else type(error).__name__


def lacks_memory(error: BaseException) -> bool:
    """Return whether too little memory caused an error; failed imports and threads do not raise MemoryError."""
    return any(
        isinstance(cause, MemoryError)
        or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM)
        or (isinstance(cause, (ImportError, RuntimeError)) and _NO_MEMORY.search(str(cause)) is not None)
        for cause in _causes(error)
    )


def is_temporary(error: BaseException, folder: Path) -> bool:
    """Return whether reading the same files in `folder` again may succeed.

    That is so after a full disk, too many open files or too little memory, but not if the release lacks a file.
    """
    return any(
        isinstance(cause, (OSError, MemoryError, RecursionError)) or is_machine_error(cause)
        for cause in _causes(error)
        if not (isinstance(cause, FileNotFoundError) and Path(str(cause.filename)).is_relative_to(folder))
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
