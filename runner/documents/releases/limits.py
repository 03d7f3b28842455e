"""How large what comes from a registry may be. Whoever trusts a release can raise them: `Limits(...)`."""

from __future__ import annotations

from dataclasses import dataclass

MAX_MANIFEST = 1 << 20
MAX_TRAINER_FILES, MAX_TRAINER_BYTES = 200, 16 << 20
"""Files of one trainer that are stored with a run and published with it, and bytes of all of them."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that is taken of one release."""

    files: int = 2_000
    file_bytes: int = 4 << 30
    total_bytes: int = 16 << 30


USUAL = Limits()
