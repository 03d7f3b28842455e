"""Limits on the time and size of answers from registry servers and the Hub. `HttpClient` and its users apply them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BUSY_CODES = (408, 429, 500, 502, 503, 504)
"""Status codes of a server or proxy after which a request is repeated."""


@dataclass(frozen=True)
class Timeouts:
    """Limits for one server, in seconds and bytes."""

    connect: float = 10.0
    """Maximum time to connect."""
    read: float = 60.0
    """Maximum time until the next bytes of an answer."""
    tries: int = 6
    """Maximum number of attempts to send a request."""
    wait: float = 0.5
    """Time before the second attempt. It doubles with each attempt."""
    longest_wait: float = 30.0
    """Maximum time between attempts. If a server asks to wait longer, the request fails."""
    stall: float = 150.0
    """Maximum time without progress of an upload. It is long because a server may notice a broken connection only after
    a minute, and refuses a second upload of the file until then."""
    first_check_wait: float = 0.1
    """Time from the end of an upload until the first request for the result of the server's check. Before each further
    request, the client waits longer."""
    check_seconds: float = 3600.0
    """Maximum time to wait for the result of the server's check."""
    answer_bytes: int = 64 << 20
    """Maximum size of an answer that is not a file."""
    answer_seconds: float = 300.0
    """Maximum time of a transfer without any bytes, and of all answers of a server together without any bytes. Each
    byte adds time; see `rate`."""
    request_seconds: float = 2.0
    """Time that each request adds to the maximum time for all answers of a server together."""
    rate: int = 8 << 10
    """Minimum rate in bytes per second, in either direction: each transferred byte adds 1 / `rate` seconds."""
    requests: int = 2_000
    """Maximum number of requests to the Hub for one action, such as listing all files page by page."""

    def seconds_for(self, size: int) -> float:
        """Return the maximum time for a transfer of this many bytes, in either direction."""
        return self.answer_seconds + size / self.rate


HUB_TIMEOUTS = Timeouts(tries=4, wait=1.0)
"""Limits for the Hub. Fewer attempts suffice, because the Hub says how long to wait after too many requests."""


def requested_wait(headers: Mapping[str, str]) -> float:
    """Return the number of seconds in the `retry-after` header; 0 if the header is missing, or has a date."""
    value = headers.get("retry-after", "").strip()
    return float(value) if value.isascii() and value.isdigit() else 0.0
