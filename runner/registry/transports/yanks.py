"""Why a release was yanked: a small file beside it, with a hash of its own."""

from __future__ import annotations

import json
from typing import Any

from runner.base.errors import ReleaseError, UsageError
from runner.base.text import in_one_line
from runner.documents.releases.manifest import digest

YANKED = "yanked"
YANKED_FILE = "yanked.json"
MAX_REASON = 1_000
MAX_BYTES = 12 * MAX_REASON + 1_000
"""Of the file: JSON has twelve bytes for a character that is a surrogate pair."""


def yanked_file(reason: str) -> bytes:
    """What stands in `yanked.json`: the reason, and its hash, by which damage is found.

    Raises:
        UsageError: the reason is empty, too long, or more than one line of plain text.
    """
    if not reason.strip() or len(reason) > MAX_REASON:
        raise UsageError(f"why is it yanked? Give a reason of at most {MAX_REASON:,} characters")
    if in_one_line(reason) != reason:
        raise UsageError(f"the reason has characters that are not shown: {in_one_line(reason)}")
    return json.dumps({"reason": reason, "sha256": digest(reason.encode())}, indent=2).encode() + b"\n"


def read_yanked(data: bytes) -> str:
    """The reason that a `yanked.json` gives.

    Raises:
        ReleaseError: it is damaged.
    """
    try:
        said: Any = json.loads(data)
        reason = said["reason"]
        if not isinstance(reason, str) or yanked_file(reason) != data:
            raise ValueError("its bytes are not those that nip-run writes")
    except (ValueError, KeyError, TypeError, RecursionError, UsageError) as error:
        raise ReleaseError(f"{YANKED}/{YANKED_FILE} is damaged: {error}") from error
    return reason
