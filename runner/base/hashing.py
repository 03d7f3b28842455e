"""Hashes and seeds that identify values.

They depend only on the values: not on the process, on PYTHONHASHSEED or on the order of events.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Any

import orjson

SHA256 = re.compile(r"[0-9a-f]{64}")
"""The form of a SHA-256 hash."""
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""The form of the hash of a Git commit, with SHA-1 or SHA-256."""
_CANONICAL = orjson.OPT_SORT_KEYS


def canonical(value: Any) -> bytes:
    """Return a value as JSON with sorted keys and without white space. Equal values give equal bytes."""
    return orjson.dumps(value, option=_CANONICAL)


def tagged_hash(tag: str, value: Any) -> str:
    """Return the SHA-256 (hex) of `value` as canonical JSON. The tag separates hashes of different kinds of values."""
    return hashlib.sha256(tag.encode() + b"\0" + canonical(value)).hexdigest()


def file_hash(path: Path) -> str:
    """Return the SHA-256 (hex) of the exact bytes of a regular file.

    Raises:
        OSError: the file cannot be read, or is not a regular file: reading a FIFO would block, a device never ends.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with os.fdopen(descriptor, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def derived_seed(*parts: str | int) -> int:
    """Return a seed in [0, 2**63) that depends only on `parts`.

    A seed has 63 bits, because all random generators and the signed integer columns of tables accept this size.
    """
    digest = hashlib.sha256(b"seed\0" + canonical(parts)).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def hash_parity(text: str) -> int:
    """Return the last bit of the text's SHA-256, which sets the stance that a prover argues for a solution."""
    return hashlib.sha256(text.encode()).digest()[-1] & 1
