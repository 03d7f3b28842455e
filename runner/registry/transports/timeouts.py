"""How long servers are waited for, and how much they may say: registries over HTTP, and the Hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BUSY = (408, 429, 500, 502, 503, 504)
"""What a server, or what stands before it, may answer better the next time."""


@dataclass(frozen=True)
class Timeouts:
    """How long a server is waited for, in seconds, and how much it may say."""

    connect: float = 10.0
    read: float = 60.0
    """For the next bytes of an answer."""
    tries: int = 6
    wait: float = 0.5
    """Before the second try; then twice as long each time."""
    longest_wait: float = 30.0
    """Where a server asks to wait for longer, it is not waited for."""
    stall: float = 150.0
    """In which some of a blob must have arrived; a server may hold on to a connection that is broken for a minute."""
    check_again: float = 0.1
    """Between the first two questions whether an upload is checked."""
    check_seconds: float = 3600.0
    """For its check."""
    answer_bytes: int = 64 << 20
    answer_seconds: float = 300.0
    """Time for one answer, and the fixed part of the time for all answers of a server."""
    request_seconds: float = 2.0
    """Additional time for each request."""
    rate: int = 8 << 10
    """Minimum rate in bytes a second, in either direction."""
    requests: int = 2_000
    """Maximum number of requests for one question to the Hub, such as the pages of a listing."""

    def seconds_for(self, size: int) -> float:
        """Return the time that this many bytes may take, in either direction."""
        return self.answer_seconds + size / self.rate


OF_THE_HUB = Timeouts(tries=4, wait=1.0)
"""It asks to wait itself where it has had too many requests."""


def asked_to_wait(headers: Mapping[str, str]) -> float:
    """For how many seconds an answer asks to be waited; 0 where it does not, or names a date."""
    said = headers.get("retry-after", "").strip()
    return float(said) if said.isascii() and said.isdigit() else 0.0
