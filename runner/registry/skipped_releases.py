"""What goes wrong with one release of many, in words: that one is left out by name, and the others stay."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path

from runner.base.errors import NipRunError
from runner.base.storage.duckdb_connections import of_the_machine
from runner.spec.origin import DATA

_NO_MEMORY = re.compile("(?i)failed to map|cannot (?:allocate|map)|can't start new thread")


def in_words(error: Exception, folder: Path | None = None) -> str:
    """Why a release is left out, in one line, with the paths of the release for those of the `folder` it was read in.

    A release may set off any error of the code that reads it: that is its own fault, and not the others'.

    Raises:
        MemoryError: it was one, and the next release would have no memory either.
    """
    if lacks_memory(error):
        raise MemoryError from error
    said = str(error).partition("\n")[0]
    if folder is not None:
        said = said.replace(f"{folder}/", f"{DATA}/").replace(str(folder), DATA)
    if isinstance(error, (NipRunError, OSError)) and said:
        return said
    return f"it says what cannot be ({type(error).__name__}: {said})" if said else type(error).__name__


def lacks_memory(error: BaseException) -> bool:
    """Whether too little memory is behind an error, which may say that a module or a thread cannot be begun with."""
    return any(
        isinstance(one, MemoryError)
        or (isinstance(one, OSError) and one.errno == errno.ENOMEM)
        or (isinstance(one, (ImportError, RuntimeError)) and _NO_MEMORY.search(str(one)) is not None)
        for one in _behind(error)
    )


def is_passing(error: BaseException, folder: Path) -> bool:
    """Whether the next look at the same bytes in a `folder` may come to something else than this error.

    A full disk, too many open files or too little memory is behind it; that the release lacks a file is not passing.
    """
    return any(
        isinstance(one, (OSError, MemoryError, RecursionError)) or of_the_machine(one)
        for one in _behind(error)
        if not (isinstance(one, FileNotFoundError) and _is_in(folder, one.filename))
    )


def _is_in(folder: Path, name: object) -> bool:
    return name is not None and Path(str(name)).is_relative_to(folder)


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
