"""The prefix cache of one server, like that of vLLM: blocks of prompts, by a hash of the prompt up to their end.

Here the blocks consist of characters and are never evicted. The header `X-Session-ID` names the session of a request.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from tests.support.servers.frame import Request


class Prefixes:
    """The blocks and sessions that one server has seen."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._cached: set[bytes] = set()
        self.blocks = self.warm_blocks = 0
        self.sessions: Counter[str] = Counter()
        self.without_session = 0

    def add(self, request: Request) -> None:
        """Count one prompt, and cache its blocks."""
        session = request.headers.get(b"x-session-id")
        if session is None:
            self.without_session += 1
        else:
            self.sessions[session.decode("latin-1")] += 1
        text = "\n".join(f"{message['role']}: {message['content']}" for message in request.json()["messages"]).encode()
        chain, is_warm = hashlib.blake2b(digest_size=8), True
        for start in range(0, len(text) - self._block + 1, self._block):
            chain.update(text[start : start + self._block])
            key = chain.digest()
            is_warm = is_warm and key in self._cached
            self.warm_blocks += is_warm
            self.blocks += 1
            self._cached.add(key)

    def stats(self) -> dict[str, Any]:
        return {
            "blocks": self.blocks, "warm_blocks": self.warm_blocks, "sessions": self.sessions,
            "without_session": self.without_session,
        }  # fmt: skip
