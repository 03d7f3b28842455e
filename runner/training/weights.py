"""Computes a hash of a model's weights on this machine. It shows that two copies are equal and reveals no paths.

The record of a finished training has the hash, and so does a published run.
"""

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
    """The hash of the files' relative names, sizes and hashes; it is the same for every copy."""
    files: tuple[tuple[str, int, str], ...]
    """The path in the folder ('' if the model is one file), size in bytes and hash of each file."""

    @property
    def size(self) -> int:
        """The total size in bytes."""
        return sum(size for _, size, _ in self.files)


def is_path(model: str) -> bool:
    """Return whether a model's name is a path, which is the default name on servers of open models."""
    return _PATH.fullmatch(model) is not None


def public_model_name(model: str) -> str:
    """Return a model's name for publication: the last part if it is a path."""
    return re.split(r"[\\/]", model.rstrip("\\/"))[-1] if is_path(model) else model


def weights_at(model: str) -> Weights | None:
    """Return the weights of a model whose name is a path; None for another name, or if the path has no files.

    Links to files are followed, because a server would load their targets.

    Raises:
        OSError: a file cannot be read.
    """
    if not is_path(model):
        return None
    path = Path(model).expanduser()
    if not path.exists():
        return None
    files = tuple((name, file.stat().st_size, file_hash(file)) for name, file in _files(path))
    return Weights(tagged_hash("weights", files), files) if files else None


def recorded_weights(model: str) -> dict[str, str]:
    """Return the hash of the weights that a training job created, as facts to record; empty if they cannot be read."""
    with suppress(OSError):
        weights = weights_at(model)
        if weights is not None:
            return {"weights_sha256": weights.sha256}
    return {}


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the relative name and the path of each file, in a fixed order."""
    if path.is_file():
        yield "", path
        return
    for folder, folders, files in os.walk(path):
        folders.sort()
        for file in sorted(files):
            file_path = Path(folder) / file
            if file_path.is_file():
                yield file_path.relative_to(path).as_posix(), file_path
