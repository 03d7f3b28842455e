"""Values into identities: canonical JSON, tagged hashes, derived seeds.

Nothing here depends on the process, on PYTHONHASHSEED or on the order in which things happen.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import orjson

_CANONICAL = orjson.OPT_SORT_KEYS


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no white space: equal values give equal bytes."""
    return orjson.dumps(value, option=_CANONICAL)


def tagged_hash(tag: str, value: Any) -> str:
    """SHA-256 (hex) of `value` as canonical JSON; the tag keeps hashes of different things apart."""
    return hashlib.sha256(tag.encode() + b"\0" + canonical(value)).hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 (hex) of the exact bytes of a regular file.

    Raises:
        OSError: it cannot be read, or is no regular file: a FIFO waits for whoever writes to it, a device has no end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with os.fdopen(descriptor, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def derived_seed(*parts: str | int) -> int:
    """A seed in [0, 2**63) that depends on the parts alone.

    63 bits, because that is what a signed column and every generator takes.
    """
    digest = hashlib.sha256(b"seed\0" + canonical(parts)).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def hash_parity(text: str) -> int:
    """The last bit of the SHA-256 of a text: the stance a prover is given for a solution."""
    return hashlib.sha256(text.encode()).digest()[-1] & 1
