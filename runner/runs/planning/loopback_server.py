"""A server in a thread of this process that answers every call immediately, to measure the client's time per call."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from runner.base.errors import RunError

WORD_BYTES = 6
"""The number of bytes of a word and a space in the answers of `dummy` and of this server."""

_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


class LoopbackServer:
    """Gives every chat request the same answer."""

    def __init__(self, listening_socket: socket.socket, answer: bytes) -> None:
        host, port = listening_socket.getsockname()
        self.address = f"http://{host}:{port}/v1"
        self.cpu_seconds = 0.0
        """The CPU time that the server has used, which is part of this process's CPU time."""
        self._listening, self._answer = listening_socket, answer
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()

    def run(self) -> None:
        """Serve until `stop` is called. Call this method in a separate thread."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)

    async def _serve(self) -> None:
        await asyncio.start_server(self._respond, sock=self._listening)
        await self._stop.wait()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _CONTENT_LENGTH.search(head)
                await reader.readexactly(int(length[1]) if length else 0)
                writer.write(self._answer)
                self.cpu_seconds = time.thread_time()
        writer.close()


@contextmanager
def loopback_server(words: int, prompt_tokens: int) -> Iterator[LoopbackServer]:
    """Run a server whose answers have `words` words.

    Raises:
        RunError: no port can be opened on this machine.
    """
    try:
        listening_socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
    except OSError as error:
        raise RunError(
            f"cannot measure the time of a call: no port of 127.0.0.1 can be opened ({error.strerror}). Allow this "
            "process to listen on 127.0.0.1 (check a sandbox or firewall), or omit --workers to plan without the "
            "duration"
        ) from error
    with listening_socket:
        server = LoopbackServer(listening_socket, _response(("answer " * words)[: words * WORD_BYTES], prompt_tokens))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


def _response(content: str, prompt_tokens: int) -> bytes:
    """Return an HTTP response with a chat completion of this content."""
    tokens = len(content) // 4 + 1
    body = json.dumps(
        {
            "id": "chatcmpl-" + "0" * 30,
            "object": "chat.completion",
            "created": 0,
            "model": "measured",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": tokens,
                "total_tokens": prompt_tokens + tokens,
            },
        }
    ).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
