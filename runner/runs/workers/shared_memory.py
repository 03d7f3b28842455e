"""Memory that two processes of one machine share, in which one leaves bytes for the other: a ring.

What goes through a socket is copied into the kernel and out again, in pieces of its size. Here it is copied once. Who
leaves bytes says where by another way, which also tells the other that they are there; who has read them gives back
their place.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

SIZE = 4 << 20
"""Bytes that may wait in a ring: less than the cache that cores share, and more than any usual batch."""

_DATA = mmap.PAGESIZE
"""Where the ring begins: the first page says how far it was read."""


class Arena:
    """One end of a ring. Places are counted from its beginning, and never begin again."""

    def __init__(self, descriptor: int) -> None:
        """The memory stays when the descriptor is closed."""
        self._memory = memoryview(mmap.mmap(descriptor, _DATA + SIZE))
        self._ring = self._memory[_DATA:]
        self._read = self._memory[:8].cast("Q")
        """How far it was read: one aligned word, so that whoever looks sees all of it or the one before."""
        self._written = self._begun = 0
        """Where the next bytes go; and where those began that came first into an empty ring: all before is free."""

    def put(self, data: bytes) -> int | None:
        """Leave bytes; their place, or None where there is no room for them now."""
        place = self._written
        is_empty = self._read[0] == place
        # Where nothing waits the ring begins anew: so it stays in the cache.
        if is_empty or place % SIZE + len(data) > SIZE:
            place += -place % SIZE
        if is_empty:
            self._begun = place
        if place + len(data) > max(self._read[0], self._begun) + SIZE:
            return None
        at = place % SIZE
        self._ring[at : at + len(data)] = data
        self._written = place + len(data)
        return place

    @contextmanager
    def taken(self, place: int, size: int) -> Iterator[memoryview]:
        """The bytes that were left at a place, until the block ends."""
        at = place % SIZE
        with self._ring[at : at + size] as view:
            yield view
        self._read[0] = place + size


def shared() -> tuple[int, Arena] | None:
    """A descriptor of such memory, which another process may be given, and this end; None where there can be none."""
    if not hasattr(os, "memfd_create"):
        return None
    descriptor = None
    try:
        descriptor = os.memfd_create("nip-run")
        # Now, and not when it is written to, where a system without memory kills; limits of file sizes count here, too.
        os.posix_fallocate(descriptor, 0, _DATA + SIZE)
        return descriptor, Arena(descriptor)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None
