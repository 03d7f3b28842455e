"""Size limits of releases from a registry. Pass `Limits(...)` to raise them for a release that you trust."""

from __future__ import annotations

from dataclasses import dataclass

MAX_MANIFEST = 1 << 20
MAX_TRAINER_FILES, MAX_TRAINER_BYTES = 200, 16 << 20
"""Maximum number of files of one trainer that are stored and published with a run, and their maximum total size."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The maximum number and sizes of the files in one release."""

    files: int = 2_000
    file_bytes: int = 4 << 30
    total_bytes: int = 16 << 30


DEFAULT_LIMITS = Limits()
