"""Weights of a model on this machine into what proves that they are the same: a hash of every byte, and no path."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.base.hashing import file_hash, tagged_hash

_PATH = re.compile(r"(~|/|\.{1,2}/|[A-Za-z]:[\\/]|\\\\).*", re.DOTALL)


@dataclass(frozen=True)
class Weights:
    """The weights of one model: a file, or all files of a folder."""

    sha256: str
    """Of the files' names in it, sizes and hashes: the same wherever they are copied to."""
    files: tuple[tuple[str, int, str], ...]
    """Of each file its path in the folder ('' where the model is one file), its size and its hash."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for _, size, _ in self.files)


def is_path(model: str) -> bool:
    """Whether a model's name is a place on a disk, as servers of open models name theirs by default."""
    return _PATH.fullmatch(model) is not None


def without_path(model: str) -> str:
    """A model's name as others may see it: of a path its last part."""
    return re.split(r"[\\/]", model.rstrip("\\/"))[-1] if is_path(model) else model


def weights_at(model: str) -> Weights | None:
    """The weights that a model's name leads to on this machine; None where it is no path, or nothing is there.

    Links to files are read: what counts is what a server would load.

    Raises:
        OSError: a file cannot be read.
    """
    if not is_path(model):
        return None
    path = Path(model).expanduser()
    if not path.exists():
        return None
    found = tuple((name, file.stat().st_size, file_hash(file)) for name, file in _files(path))
    return Weights(tagged_hash("weights", found), found) if found else None


def recorded_weights(model: str) -> dict[str, str]:
    """What a training keeps of the weights that it made, where they can be read: their hash."""
    with suppress(OSError):
        found = weights_at(model)
        if found is not None:
            return {"weights_sha256": found.sha256}
    return {}


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_file():
        yield "", path
        return
    for folder, folders, files in os.walk(path):
        folders.sort()
        for file in sorted(files):
            at = Path(folder) / file
            if at.is_file():
                yield at.relative_to(path).as_posix(), at
