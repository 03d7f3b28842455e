"""A TCP proxy that cuts all connections after a given number of bytes in one direction."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""Value of SO_LINGER that makes `close` reset a connection."""


class CuttingProxy:
    """Forwards bytes in both directions until a given number has passed, then resets all connections.

    The direction `up` is to the server, and `down` is from the server.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._cut_after: tuple[str, int] | None = None
        self.sent = {"up": 0, "down": 0}
        """Bytes in each direction since the last call of `cut_after` or `stop_cutting`."""
        self.marks: dict[str, list[int]] = {"up": [], "down": []}
        """Values of `sent` after each read. These include the ends of all requests and responses."""
        self.cuts = 0
        self._refuse_after_cut = self._refuses = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut_after(self, direction: str, count: int, *, for_good: bool = False) -> None:
        """Cut all connections once, after `count` more bytes in one direction.

        If `for_good` is true, also refuse new connections from then on, until `stop_cutting` is called.
        """
        with self._lock:
            self._cut_after, self._refuse_after_cut = (direction, count), for_good
            self._reset_counts()

    def stop_cutting(self) -> None:
        """Accept connections and forward all bytes again."""
        with self._lock:
            self._cut_after = None
            self._reset_counts()

    def _reset_counts(self) -> None:
        self._refuses = False
        self.sent = {"up": 0, "down": 0}
        self.marks = {"up": [], "down": []}

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refuses:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self._server_port), 10)
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._open |= {client, server}
                for direction, source, target in (("up", client, server), ("down", server, client)):
                    threading.Thread(target=self._forward, args=(direction, source, target), daemon=True).start()

    def _forward(self, direction: str, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 14):
                with self._lock:
                    allowed = len(data)
                    if self._cut_after is not None and self._cut_after[0] == direction:
                        allowed = min(allowed, self._cut_after[1] - self.sent[direction])
                    self.sent[direction] += allowed
                    self.marks[direction].append(self.sent[direction])
                    is_cut = allowed < len(data) or self._cut_after == (direction, self.sent[direction])
                target.sendall(data[:allowed])
                if is_cut:
                    self._cut()
                    return
        self._close(source, target)

    def _cut(self) -> None:
        with self._lock:
            self._cut_after, self._refuses = None, self._refuse_after_cut
            self.cuts += 1
            connections, self._open = self._open, set()
        for connection in connections:
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._close(connection)

    def _close(self, *sockets: socket.socket) -> None:
        for connection in sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
            with self._lock:
                self._open.discard(connection)

    def close(self) -> None:
        self._close(self._listener)
        with self._lock:
            connections = list(self._open)
        self._close(*connections)


@contextmanager
def run_cutting_proxy(port: int) -> Iterator[CuttingProxy]:
    """Run a proxy in front of the server on this port."""
    proxy = CuttingProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
