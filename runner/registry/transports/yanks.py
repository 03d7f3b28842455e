"""Write and read `yanked.json`, the file that marks a release as yanked (withdrawn) and says why."""

from __future__ import annotations

import json
from typing import Any

from runner.base.errors import ReleaseError, UsageError
from runner.base.text import in_one_line
from runner.documents.releases.manifest import digest

YANKED = "yanked"
YANKED_FILE = "yanked.json"
MAX_REASON = 1_000
MAX_YANK_BYTES = 12 * MAX_REASON + 1_000
"""Maximum size of `yanked.json` in bytes. JSON writes one character as up to two escapes of six bytes."""


def format_yanked_file(reason: str) -> bytes:
    """Return the content of `yanked.json`: the reason, and its hash to detect damage.

    Raises:
        UsageError: the reason is empty, too long, or more than one line of plain text.
    """
    if not reason.strip() or len(reason) > MAX_REASON:
        raise UsageError(f"a yank needs a reason of 1 to {MAX_REASON:,} characters")
    if in_one_line(reason) != reason:
        raise UsageError(f"the reason for the yank has control characters; remove them: {in_one_line(reason)}")
    return json.dumps({"reason": reason, "sha256": digest(reason.encode())}, indent=2).encode() + b"\n"


def parse_yanked_file(data: bytes) -> str:
    """Return the reason in the content of a `yanked.json`.

    Raises:
        ReleaseError: the content is damaged.
    """
    try:
        content: Any = json.loads(data)
        reason = content["reason"]
        if not isinstance(reason, str) or format_yanked_file(reason) != data:
            raise ValueError("the hash or format differs from what nip-run writes")
    except (ValueError, KeyError, TypeError, RecursionError, UsageError) as error:
        raise ReleaseError(f"{YANKED}/{YANKED_FILE} is damaged: {error}") from error
    return reason
