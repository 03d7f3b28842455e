"""Describe errors in one release among many. Boards, `verify` and servers skip such a release and read the others."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path

from runner.base.errors import NipRunError, RunError
from runner.base.storage.duckdb_connections import is_machine_error
from runner.spec.origin import DATA

_NO_MEMORY = re.compile("(?i)failed to map|cannot (?:allocate|map)|can't start new thread")


class RegistryUnavailableError(RunError):
    """A registry's storage does not answer, so the registry cannot be read. The release may be fine."""


def describe_error(error: Exception, folder: Path | None = None) -> str:
    """Describe any exception from reading a release in one line. Paths in `folder` become paths in the release.

    Raises:
        MemoryError: memory ran out, and the next release would not have enough either.
        RegistryUnavailableError: the registry cannot be read, and the next release could not be read either.
    """
    for cause in causes_of(error):
        if isinstance(cause, RegistryUnavailableError):
            raise cause
    if lacks_memory(error):
        raise MemoryError from error
    message = str(error).partition("\n")[0]
    if folder is not None:
        message = message.replace(f"{folder}/", f"{DATA}/").replace(str(folder), DATA)
    if isinstance(error, (NipRunError, OSError)) and message:
        return message
    return f"the release is malformed ({type(error).__name__}: {message})" if message else type(error).__name__


def lacks_memory(error: BaseException) -> bool:
    """Return whether too little memory caused an error. Imports and threads then raise other errors."""
    return any(
        isinstance(cause, MemoryError)
        or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM)
        or (isinstance(cause, (ImportError, RuntimeError)) and _NO_MEMORY.search(str(cause)) is not None)
        for cause in causes_of(error)
    )


def is_temporary(error: BaseException, folder: Path) -> bool:
    """Return whether reading the same files in `folder` again may succeed.

    It may succeed after a full disk, too many open files or too little memory, but not if the release lacks a file.
    """
    return any(
        isinstance(cause, (OSError, MemoryError, RecursionError)) or is_machine_error(cause)
        for cause in causes_of(error)
        if not (isinstance(cause, FileNotFoundError) and Path(str(cause.filename)).is_relative_to(folder))
    )


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, the error that caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
