"""Limits on the time and size of the answers from registry servers and the Hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BUSY = (408, 429, 500, 502, 503, 504)
"""Status codes of a server or proxy after which a request is repeated."""


@dataclass(frozen=True)
class Timeouts:
    """Limits for one server, in seconds and bytes."""

    connect: float = 10.0
    read: float = 60.0
    """Maximum time until the next bytes of an answer."""
    tries: int = 6
    wait: float = 0.5
    """Time before the second attempt. It doubles with each attempt."""
    longest_wait: float = 30.0
    """Maximum time between attempts. If a server asks to wait longer, the request fails."""
    stall: float = 150.0
    """Maximum time without progress of an upload. A server may keep a broken connection for a minute."""
    check_again: float = 0.1
    """Time between the first two requests for the result of the server's check of an upload."""
    check_seconds: float = 3600.0
    """Maximum time to wait for this result."""
    answer_bytes: int = 64 << 20
    answer_seconds: float = 300.0
    """Time for one answer, and the fixed part of the time for all answers of a server."""
    request_seconds: float = 2.0
    """Additional time for each request."""
    rate: int = 8 << 10
    """Minimum rate in bytes per second, in either direction."""
    requests: int = 2_000
    """Maximum number of requests to the Hub for one action, such as listing all files page by page."""

    def seconds_for(self, size: int) -> float:
        """Return the time that this many bytes may take, in either direction."""
        return self.answer_seconds + size / self.rate


HUB_TIMEOUTS = Timeouts(tries=4, wait=1.0)
"""Limits for the Hub, which says how long to wait after too many requests."""


def requested_wait(headers: Mapping[str, str]) -> float:
    """Return the number of seconds in a response's `retry-after`; 0 if there is none, or a date instead."""
    value = headers.get("retry-after", "").strip()
    return float(value) if value.isascii() and value.isdigit() else 0.0
