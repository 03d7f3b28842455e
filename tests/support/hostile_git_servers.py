"""Hostile `git://` servers, each with the expected error message."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress


def make_packet(text: bytes) -> bytes:
    return b"%04x" % (len(text) + 4) + text


def _hang(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    time.sleep(20)


def _endless(piece: bytes, first: bytes = b"") -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(first)
        while True:
            connection.sendall(piece)

    return answer


def _answer_with(response: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(response)

    return answer


def _drip(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b"0fff")
    while True:
        connection.sendall(b"a")
        time.sleep(0.2)


_V2 = make_packet(b"version 2\n") + make_packet(b"ls-refs=unborn\n") + make_packet(b"fetch=shallow filter\n") + b"0000"
_REF = make_packet(b"%s refs/heads/main\n" % (b"55" * 20))


def _answer_like_git(response: bytes, repeated_response: bytes = b"") -> Callable[[socket.socket], None]:
    """Answer like git until the client requests a commit."""

    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(_V2)
        request = b""
        while not request.endswith(b"0000"):
            request += connection.recv(1 << 16)
        if b"command=ls-refs" in request:
            connection.sendall(_REF + b"0000")
            request = connection.recv(1 << 16)
            if request in (b"", b"0000"):
                return
            while not request.endswith((b"0009done\n0000", b"0000")):
                request += connection.recv(1 << 16)
        connection.sendall(response)
        while repeated_response:
            connection.sendall(repeated_response)

    return answer


_PACK = make_packet(b"packfile\n")

SERVERS: Mapping[str, tuple[Callable[[socket.socket], None], str]] = {
    "hangs": (_hang, "nothing arrived for 1 second"),
    "hangs up": (lambda _: None, "git failed"),
    "drips": (_drip, "nothing arrived for|is too slow"),
    "answers garbage": (_answer_with(os.urandom(4_000)), "git failed"),
    "answers as a web server": (_answer_with(b"HTTP/1.0 200 OK\r\n\r\n<html>"), "git failed"),
    "says an error that writes on a terminal": (
        _answer_with(make_packet(b"ERR \x1b[2J\x1b]0;x\x07 https://ann:secret-of-ann@example.org/x")),
        "git failed",
    ),
    "lists branches for ever": (
        _endless(_REF * 500),
        "nothing arrived for|is too slow|more memory|larger than|git failed",
    ),
    "lists one branch of any length": (_endless(b"a" * 60_000, b"fff0"), "git failed"),
    "has no objects for what it lists": (_answer_like_git(b""), "git failed"),
    "sends no pack": (
        _answer_like_git(_PACK + make_packet(b"\x01" + b"x" * 900) + b"0000"),
        "git failed|damaged|crashed",
    ),
    "sends a pack of a billion objects": (
        _answer_like_git(_PACK + make_packet(b"\x01PACK\0\0\0\2\x3f\xff\xff\xff") + b"0000"),
        "git failed|damaged|memory|crashed",
    ),
    "sends a pack for ever": (
        _answer_like_git(
            _PACK + make_packet(b"\x01PACK\0\0\0\2\0\0\1\0\xb0\xff\xff\xff\xff\1\x78\1"),
            make_packet(b"\x01\0\xff\xff\0\0" + os.urandom(65_000 - 4)),
        ),
        "git failed|damaged|is too slow|larger than the limit|crashed",
    ),
    "talks for ever": (_answer_like_git(_PACK, make_packet(b"\x02" + b"still counting\n" * 500)), "writes more than"),
    "is silent in the middle": (_answer_like_git(_PACK, make_packet(b"\x01")), "nothing arrived for|is too slow"),
}
"""The behavior of each server, and a pattern of the expected error message."""


@contextmanager
def run_git_server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a server on loopback that answers each connection with `answer`; yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    def talk(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"git://127.0.0.1:{listener.getsockname()[1]}/registry.git"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
