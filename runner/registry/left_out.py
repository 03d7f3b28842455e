"""What goes wrong with one release of many, in words: that one is left out by name, and the others stay."""

from __future__ import annotations

from pathlib import Path

from runner.errors import NipRunError
from runner.spec.origin import DATA


def in_words(error: Exception, folder: Path | None = None) -> str:
    """Why a release is left out, in one line, with the paths of the release for those of the `folder` it was read in.

    A release may set off any error of the code that reads it: that is its own fault, and not the others'.

    Raises:
        MemoryError: it was one, and the next release would have no memory either.
    """
    if isinstance(error, MemoryError):
        raise error
    said = str(error).partition("\n")[0]
    if folder is not None:
        said = said.replace(f"{folder}/", f"{DATA}/").replace(str(folder), DATA)
    if isinstance(error, (NipRunError, OSError)) and said:
        return said
    return f"it says what cannot be ({type(error).__name__}: {said})" if said else type(error).__name__
