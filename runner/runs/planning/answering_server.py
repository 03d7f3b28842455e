"""A server that gives every call the same answer, at once or after a while.

It is a program of its own, so that its work is nobody else's, and ends when standard input does.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from runner.base.errors import RunError

WORD_BYTES = 6

_BEGIN = (
    "import sys; sys.path[:] = {path!r}; from {module} import main; "
    "main({descriptor}, {words}, {prompt_tokens}, {seconds})"
)


@contextmanager
def answering(words: int, prompt_tokens: int, seconds: float = 0.0) -> Iterator[str]:
    """The address of such a server on this machine; its answers have so many words, and take so long.

    Raises:
        RunError: it cannot be started.
    """
    try:
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
            host, port = listening.getsockname()
            code = _BEGIN.format(
                path=list(sys.path), module=__name__, descriptor=listening.fileno(), words=words,
                prompt_tokens=prompt_tokens, seconds=seconds,
            )  # fmt: skip
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", code], pass_fds=[listening.fileno()],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0,
            )  # fmt: skip
    except OSError as error:
        raise RunError(f"cannot start a server to measure what calls cost: {error.strerror}") from error
    with process:
        try:
            yield f"http://{host}:{port}/v1"
        finally:
            process.kill()


def main(descriptor: int, words: int, prompt_tokens: int, seconds: float) -> None:
    """Serve on a socket that listens, until standard input ends."""
    asyncio.run(_serve(socket.socket(fileno=descriptor), words, prompt_tokens, seconds))


async def _serve(listening: socket.socket, words: int, prompt_tokens: int, seconds: float) -> None:
    content = ("answer " * words)[: words * WORD_BYTES]
    answer = _http(content, prompt_tokens)
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: _Answers(answer, seconds), sock=listening)
    await loop.run_in_executor(None, sys.stdin.buffer.read)


def _http(content: str, prompt_tokens: int) -> bytes:
    said = len(content) // 4 + 1
    body = json.dumps(
        {
            "id": "chatcmpl-" + "0" * 30,
            "object": "chat.completion",
            "created": 0,
            "model": "measured",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": said,
                "total_tokens": prompt_tokens + said,
            },
        }
    ).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _Answers(asyncio.Protocol):
    """One connection: an answer for each request, once all of it is there."""

    def __init__(self, answer: bytes, seconds: float) -> None:
        self._answer, self._seconds = answer, seconds
        self._transport: asyncio.Transport | None = None
        self._had = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._had += data
        while (end := self._had.find(b"\r\n\r\n")) >= 0:
            lines = bytes(self._had[:end]).lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            if len(self._had) < end + 4 + length:
                return
            del self._had[: end + 4 + length]
            if self._seconds:
                asyncio.get_running_loop().call_later(self._seconds, self._say)
            else:
                self._say()

    def _say(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._answer)
