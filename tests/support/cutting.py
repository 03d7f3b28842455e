"""A way to a server that breaks: connections through it are cut after so many bytes, one way or the other."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LINGER = struct.pack("ii", 1, 0)
"""Closed so, a connection is reset."""


class Proxy:
    """Hands bytes on in both directions, and cuts all connections once so many have passed, each time anew."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._cut_after: tuple[str, int] | None = None
        self.sent = {"up": 0, "down": 0}
        """Bytes that went to the server, and came from it, since it was last told when to cut."""
        self.marks: dict[str, list[int]] = {"up": [], "down": []}
        """How many had passed each time that nothing followed at once: where requests and answers end, and more."""
        self.cuts = 0
        self._for_good = self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def cut_after(self, way: str, count: int, *, for_good: bool = False) -> None:
        """Cut once: as soon as so many more bytes have gone `up` to the server, or `down` from it.

        For good: and nobody gets through any more, until it is mended.
        """
        with self._lock:
            self._cut_after, self._for_good, self._closed = (way, count), for_good, False
            self.sent = {"up": 0, "down": 0}
            self.marks = {"up": [], "down": []}

    def mend(self) -> None:
        """Nothing is cut any more."""
        with self._lock:
            self._cut_after, self._closed = None, False
            self.sent = {"up": 0, "down": 0}
            self.marks = {"up": [], "down": []}

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                if self._closed:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self._to), 10)
                except OSError:
                    near.close()
                    continue
                with self._lock:
                    self._open |= {near, far}
                for way, source, target in (("up", near, far), ("down", far, near)):
                    threading.Thread(target=self._hand_on, args=(way, source, target), daemon=True).start()

    def _hand_on(self, way: str, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 14):
                with self._lock:
                    allowed = len(data)
                    if self._cut_after is not None and self._cut_after[0] == way:
                        allowed = min(allowed, self._cut_after[1] - self.sent[way])
                    self.sent[way] += allowed
                    self.marks[way].append(self.sent[way])
                    is_cut = allowed < len(data) or self._cut_after == (way, self.sent[way])
                target.sendall(data[:allowed])
                if is_cut:
                    self._cut()
                    return
        self._close(source, target)

    def _cut(self) -> None:
        with self._lock:
            self._cut_after, self._closed = None, self._for_good
            self.cuts += 1
            there, self._open = self._open, set()
        for one in there:
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
            self._close(one)

    def _close(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            with self._lock:
                self._open.discard(one)

    def close(self) -> None:
        self._close(self._listening)
        with self._lock:
            there = list(self._open)
        self._close(*there)


@contextmanager
def cutting(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
