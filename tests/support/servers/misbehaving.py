"""A server that misbehaves in all known ways, by name. It sends raw bytes on a socket, without an HTTP library.

    POST /NAME/v1/chat/completions      behaves as `ROWS[NAME]` says
    GET /stats                          the number of requests by name

The text `KEY` in a response is replaced by the API key of the request.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import sys
import threading
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

ANSWER = "It is right.\n\nDecision: accept"
NEXT_ANSWER = "It is wrong.\n\nDecision: reject"
UNPACKED = 64 << 20


class ReceivedRequest(NamedTuple):
    key: bytes
    earlier: int
    """Number of earlier requests to this address."""
    address: bytes


SECOND_ANSWERS = Counter[str]()
"""Number of second answers by address, for `GET /stats`."""

Responder = Callable[[ReceivedRequest], AsyncIterator[bytes]]
"""Yields the bytes of a response. The connection stays open if the last piece is empty."""


def completion(text: Any = ANSWER, **fields: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 9, "completion_tokens": 5}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return {"id": "c", "model": "tiny", "choices": [choice], "usage": usage, **fields}


def change_choice(**fields: Any) -> dict[str, Any]:
    """Return a completion with changed fields of its choice."""
    data = completion()
    data["choices"][0].update(fields)
    return data


def head(status: str = "200 OK", *lines: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", "content-type: application/json", *lines, "", "")).encode("latin-1")


def raw(*pieces: bytes) -> Responder:
    """Send these bytes, then close the connection."""

    async def respond(_: ReceivedRequest) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return respond


def keep_open(body: bytes, status: str = "200 OK", *lines: str) -> Responder:
    """Send a complete response, and keep the connection open."""

    async def respond(request: ReceivedRequest) -> AsyncIterator[bytes]:
        response_body = insert_key(body, request.key)
        yield insert_key(head(status, f"content-length: {len(response_body)}", *lines), request.key) + response_body
        yield b""

    return respond


def reply(data: Any, status: str = "200 OK", *lines: str) -> Responder:
    return keep_open(json.dumps(data).encode(), status, *lines)


def error(status: str, message: str, *lines: str, **fields: Any) -> Responder:
    return reply({"error": {"message": message, "type": "error", **fields}}, status, *lines)


def endless(start: bytes, piece: bytes) -> Responder:
    async def respond(_: ReceivedRequest) -> AsyncIterator[bytes]:
        yield start
        while True:
            yield piece

    return respond


def slow(start: bytes, piece: bytes = b" ") -> Responder:
    """Send a byte every 50 ms, which never triggers a time limit for the next byte."""

    async def respond(_: ReceivedRequest) -> AsyncIterator[bytes]:
        yield start
        while True:
            await asyncio.sleep(0.05)
            yield piece

    return respond


def then_good(first: Responder) -> Responder:
    """Use `first` for the first request, and a valid completion for later ones."""

    async def respond(request: ReceivedRequest) -> AsyncIterator[bytes]:
        async for piece in (first if request.earlier == 0 else reply(completion()))(request):
            yield piece

    return respond


def insert_key(template: bytes, key: bytes) -> bytes:
    """Insert the API key of the request in the encodings that a template names."""
    forms = {
        b"KEY_ESCAPED": "".join(f"\\u{byte:04x}" for byte in key).encode(),
        b"KEY_SLASHED": key.replace(b"/", b"\\/"),
        b"KEY_PERCENT": "".join(f"%{byte:02X}" for byte in key).encode(),
        b"KEY_BASE64": base64.b64encode(b"Bearer " + key),
        b"KEY_HEX": key.hex().encode(),
        b"KEY": key,
    }
    for name, form in forms.items():
        template = template.replace(name, form)
    return template


def poison(wait: float) -> Responder:
    """Send an answer, and then bytes that look like the answer to the next request."""

    async def respond(request: ReceivedRequest) -> AsyncIterator[bytes]:
        good, next_body = (json.dumps(completion(text)).encode() for text in (ANSWER, NEXT_ANSWER))
        first = head("200 OK", f"content-length: {len(good)}") + good
        second = head("200 OK", f"content-length: {len(next_body)}") + next_body
        if wait:
            yield first
            await asyncio.sleep(wait)
            yield second
            SECOND_ANSWERS[request.address.decode()] += 1  # all written bytes have been sent by now
        else:
            yield first + second
        yield b""

    return respond


def packed(data: bytes, encoding: str) -> bytes:
    return head("200 OK", f"content-encoding: {encoding}", f"content-length: {len(data)}") + data


JSON = json.dumps(completion()).encode()
CHUNKED = head("200 OK", "transfer-encoding: chunked")
CLOSED = head("200 OK", "connection: close")
DEEP = b"[" * 100_000
DEEP_FIELD = b', "more": ' + b"[" * 300 + b"]" * 300 + b"}"
"""The end of an answer whose field is nested deeper than the library writes."""
BLOCK = b"x" * (1 << 16)
BOMB = gzip.compress(bytes(UNPACKED), 1)

ROWS: Mapping[str, Responder] = {
    # Without an end, or larger than anything
    "endless body": endless(CLOSED, BLOCK),
    "endless chunks": endless(CHUNKED, b"10000\r\n" + BLOCK + b"\r\n"),
    "endless chunk": endless(CHUNKED + b"fffffffffffff\r\n", BLOCK),
    "endless size of a chunk": endless(CHUNKED, b"0" * (1 << 16)),
    "endless extension of a chunk": endless(CHUNKED + b"5;", b"a" * (1 << 16)),
    "endless trailers": endless(CHUNKED + b"0\r\n", b"x-a: b\r\n" * 4096),
    "endless line of a header": endless(b"HTTP/1.1 200 OK\r\nx-a: ", BLOCK),
    "endless headers": endless(b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n" * 4096),
    "endless status line": endless(b"HTTP/1.1 200 ", BLOCK),
    "endless continues": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 64),
    "endless error": endless(head("500 Oops", "connection: close"), BLOCK),
    "endless refusal": endless(head("401 No", "connection: close"), BLOCK),
    "endless blanks before JSON": endless(CLOSED, b" " * (1 << 16)),
    "endless cookies": endless(b"HTTP/1.1 200 OK\r\n", b"set-cookie: a=b\r\n" * 4096),
    "40 MiB": raw(CLOSED, *[BLOCK] * 640),
    "30 MiB that are no JSON": keep_open(b"x" * (30 << 20)),
    "gzip bomb": raw(packed(BOMB, "gzip")),
    "gzip bomb in an error": raw(head("500 Oops", "content-encoding: gzip", "connection: close") + BOMB),
    # Compressed without a request for it
    "gzip": raw(packed(gzip.compress(JSON), "gzip")),
    "gzip in two members": raw(packed(gzip.compress(JSON[:50]) + gzip.compress(JSON[50:]), "gzip")),
    "deflate": raw(packed(zlib.compress(JSON), "deflate")),
    "damaged gzip": raw(packed(gzip.compress(JSON)[:-20] + b"\0" * 20, "gzip")),
    "cut gzip": raw(packed(gzip.compress(JSON)[:-20], "gzip")),
    "gzip that is none": raw(packed(JSON, "gzip")),
    "brotli": raw(packed(b"\x8b\x0b\x80" + JSON, "br")),
    "gzip in gzip": raw(packed(gzip.compress(gzip.compress(JSON)), "gzip, gzip")),
    "unknown encoding": raw(packed(JSON, "rot13")),
    # Slow and cut
    "slow body": slow(CLOSED),
    "slow head": slow(b"HTTP/1.1 200 OK\r\nx-a: ", b"b"),
    "silence": slow(b"", b""),
    "cut body": raw(head("200 OK", "content-length: 500") + JSON[:50]),
    "cut chunk": raw(CHUNKED + b"100\r\n" + JSON[:50]),
    "cut head": raw(b"HTTP/1.1 200 OK\r\ncontent-len"),
    "closed at once": raw(),
    # Lengths
    "no length": raw(CLOSED + JSON),
    "length too short": raw(head("200 OK", f"content-length: {len(JSON) - 9}") + JSON),
    "length too long": raw(head("200 OK", f"content-length: {len(JSON) + 9}") + JSON),
    "negative length": raw(head("200 OK", "content-length: -5") + JSON),
    "length of 20 digits": raw(head("200 OK", "content-length: " + "9" * 20) + JSON),
    "two lengths": raw(head("200 OK", "content-length: 5", f"content-length: {len(JSON)}") + JSON),
    "length in words": raw(head("200 OK", "content-length: many") + JSON),
    "length and chunks": raw(head("200 OK", "content-length: 5", "transfer-encoding: chunked") + b"0\r\n\r\n"),
    "chunk of no size": raw(CHUNKED + b"zz\r\n" + JSON),
    # Not HTTP, or another version of it
    "no HTTP": raw(b"220 mail ready\r\n"),
    "HTTP 0.9": raw(JSON),
    "HTTP 2 preface": raw(b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x64"),
    "TLS alert": raw(b"\x15\x03\x01\0\x02\x02\x46"),
    "zeros": raw(bytes(4096)),
    "status 0": raw(b"HTTP/1.1 0 X\r\ncontent-length: 0\r\n\r\n"),
    "status 999": reply({}, "999 X"),
    "status in words": raw(b"HTTP/1.1 fine OK\r\n\r\n"),
    "switching protocols": raw(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n" + JSON),
    "no content": raw(head("204 No Content", "connection: close")),
    "header without a colon": raw(b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n" + JSON),
    "one continue": raw(b"HTTP/1.1 100 Continue\r\n\r\n", CLOSED + JSON),
    "the next answer in the same packet": poison(0.0),
    "the next answer a moment later": poison(0.02),
    # Redirects
    **{
        f"redirect {status}": reply({}, f"{status} Moved", "location: /elsewhere/v1/chat/completions")
        for status in (301, 302, 303, 307, 308)
    },
    "redirect to a file": reply({}, "302 Moved", "location: file:///etc/passwd"),
    "redirect that tells the key": reply({}, "307 Moved", "location: http://127.0.0.1:9/KEY"),
    # The key, back again
    "key in an answer": reply(completion(f"KEY {ANSWER}")),
    "key in an answer, escaped": keep_open(
        json.dumps(completion("KEY " + ANSWER)).encode().replace(b"KEY", b"KEY_ESCAPED")
    ),
    "key in an answer, slashes escaped": keep_open(
        json.dumps(completion("KEY " + ANSWER)).encode().replace(b"KEY", b"KEY_SLASHED")
    ),
    "key in an answer, in Base64": reply(completion(f"KEY_BASE64 {ANSWER}")),
    "key in an answer, in hexadecimal": reply(completion(f"KEY_HEX {ANSWER}")),
    "key in an answer that is no UTF-8": keep_open(
        json.dumps(completion("KEY ? " + ANSWER)).encode().replace(b"?", b"\xff").replace(b"KEY", b"KEY_ESCAPED")
    ),
    "key in an answer, escaped and deep": keep_open(
        json.dumps(completion("KEY " + ANSWER)).encode().replace(b"KEY", b"KEY_ESCAPED")[:-1] + DEEP_FIELD
    ),
    "key in another field": reply(completion(headers={"authorization": "Bearer KEY"})),
    "key in the name of a field": reply(completion(KEY=1)),
    "key in the model": reply(completion(model="KEY")),
    "key in the finish reason": reply(change_choice(finish_reason=["KEY"])),
    "key in a refusal": reply(change_choice(message={"role": "assistant", "content": None, "refusal": "not with KEY"})),
    "key in an error": error("500 Oops", "you sent Bearer KEY"),
    "key in an error, escaped": keep_open(b'{"error": {"message": "you sent KEY_ESCAPED"}}', "500 Oops"),
    "key in an error, in percents": error("500 Oops", "you sent KEY_PERCENT"),
    "key in an error that refuses": error("400 No", "no header like Bearer KEY"),
    "key in the code of an error": error("400 No", "no", code="KEY"),
    "key in the parameter of an error": error("400 No", "no", param="KEY"),
    "key in an error of 200": reply({"error": {"message": "you sent KEY", "code": 500}}),
    "key in an error that is a text": keep_open(b"<html>you sent Authorization: Bearer KEY</html>", "502 Bad"),
    "key in JSON that is none": keep_open(b'{"KEY"'),
    "key in headers": reply({}, "500 Oops", "x-echo: Bearer KEY", "set-cookie: a=KEY", "retry-after: KEY"),
    "key in the name of a header": raw(b"HTTP/1.1 200 OK\r\n", b"KEY KEY\r\n\r\n"),
    "key in the reason": reply({}, "500 KEY"),
    "key in the status line": keep_open(b"", "KEY"),
    "key in the encoding": reply(completion(), "200 OK", "content-encoding: KEY"),
    "another key after Bearer": error("500 Oops", "authorization: bearer abc-def"),
    # No completion
    "HTML": keep_open(b"<html>Bad gateway</html>"),
    "nothing": keep_open(b""),
    "null": keep_open(b"null"),
    "list": keep_open(b"[]"),
    "number": keep_open(b"7"),
    "text": keep_open(b'"text"'),
    "cut JSON": keep_open(JSON[:-9]),
    "deep nesting": keep_open(DEEP),
    "deep nesting in an error": keep_open(b'{"error": ' + DEEP, "500 Oops"),
    "deep nesting in a field": keep_open(JSON[:-1] + b', "more": ' + DEEP + b"]" * 100_000 + b"}"),
    "stream of events": keep_open(b"data: " + JSON + b"\n\ndata: [DONE]\n\n"),
    "no choices": reply({"id": "c"}),
    "empty choices": reply(completion(choices=[])),
    "choices that are a text": reply(completion(choices="many")),
    "choices of numbers": reply(completion(choices=[1, 2])),
    "choice without a message": reply(completion(choices=[{"index": 0}])),
    "error in 200": reply({"error": {"message": "overloaded", "code": 503}}),
    "error without JSON": keep_open(b"oops", "500 Oops"),
    "error of a wrong type": reply({"error": [1]}, "400 No"),
    # A completion with odd surroundings
    "content null": reply(completion(None)),
    "content in parts": reply(completion([{"type": "text", "text": ANSWER}])),
    "content a number": reply(completion(7)),
    "content nested": reply(completion({"a": {"b": []}})),
    "usage negative": reply(completion(usage={"prompt_tokens": -5, "completion_tokens": -5})),
    "usage huge": reply(completion(usage={"prompt_tokens": 10**30, "completion_tokens": 10**30})),
    "usage a text": reply(completion(usage="many")),
    "usage missing": reply(completion(usage=None)),
    "finish reason a number": reply(change_choice(finish_reason=3)),
    "finish reason missing": reply(change_choice(finish_reason=None)),
    "finish reason nested": reply(change_choice(finish_reason={"a": [1]})),
    "model a number": reply(completion(model=3)),
    "model a list": reply(completion(model=["tiny"])),
    # Bytes that are not text
    "bad UTF-8": keep_open(json.dumps(completion("? " + ANSWER)).encode().replace(b"?", b"\xff\xfe\xc0\xaf")),
    "half of a pair": reply(completion("\ud800 " + ANSWER)),
    "half of a pair, deep": keep_open(json.dumps(completion("\ud800 " + ANSWER)).encode()[:-1] + DEEP_FIELD),
    "two halves the wrong way round": reply(completion("\udc00\ud800 " + ANSWER)),
    "byte-order mark": keep_open(b"\xef\xbb\xbf" + JSON),
    "NUL in a text": reply(completion("\0 " + ANSWER)),
    "raw control characters": keep_open(
        json.dumps(completion("? " + ANSWER)).encode().replace(b"?", b"\0\x01\x1b\x7f")
    ),
    "not a number": keep_open(JSON[:-1] + b', "score": NaN, "most": Infinity}'),
    "integer of 5,000 digits": keep_open(JSON[:-1] + b', "score": ' + b"9" * 5000 + b"}"),
    "exponent of 5,000": keep_open(JSON[:-1] + b', "score": 1e5000}'),
    "several documents": keep_open(JSON + JSON),
    "keys twice": keep_open(b'{"choices": [], ' + JSON[1:]),
    # Refusals and limits as proxies report them
    "refusal in a proxy's fields": reply(change_choice(message={
        "role": "assistant", "content": None, "provider_specific_fields": {"refusal": "I cannot. KEY"}})),
    "blank at the limit": reply(change_choice(
        finish_reason="length", message={"role": "assistant", "content": "\n", "reasoning": "hm"})),
    "cut at the limit": error(
        "400 Bad", "Could not finish the message because max_tokens or model output limit was reached. KEY"),
    "quota in words alone": error("429 Slow", "RateLimitError: You exceeded your current quota. KEY", code="429"),
    "hard limit": error("400 Bad", "Billing hard limit has been reached KEY", code="billing_hard_limit_reached"),
    # Waits
    **{
        f"retry after {wait}": then_good(error("429 Slow", "slow", f"retry-after: {wait}"))
        for wait in ("nan", "-1", "soon", "inf")
    },
    "retry after a billion seconds": error("429 Slow", "slow", "retry-after: 1000000000"),
    "retry after the year 9999": error("429 Slow", "slow", "retry-after: Fri, 31 Dec 9999 23:59:59 GMT"),
}  # fmt: skip


class Server:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Number of requests for each row."""
        self.request_counts: Counter[bytes] = Counter()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
        await reader.readexactly(int(headers.get(b"content-length", b"0")))
        address = lines[0].split(b" ")[1]
        name = address.split(b"/")[1].decode().replace("%20", " ").replace("%2C", ",")
        request = ReceivedRequest(
            headers.get(b"authorization", b"").removeprefix(b"Bearer "), self.request_counts[address], address
        )
        self.request_counts[address] += 1
        if name == "stats":
            responder = reply(self.counts | SECOND_ANSWERS)
        else:
            self.counts[name] += 1
            responder = ROWS.get(name, error("404 None", "elsewhere"))
        piece = None
        async for piece in responder(request):
            writer.write(insert_key(piece, request.key) if b"KEY" in piece else piece)
            await writer.drain()
        return piece == b""


async def _serve() -> None:
    stdin_closed, loop = asyncio.Event(), asyncio.get_running_loop()
    server = await asyncio.start_server(Server().connected, "127.0.0.1", 0, limit=1 << 22)
    print(server.sockets[0].getsockname()[1], flush=True)

    def wait_until_stdin_closes() -> None:
        while sys.stdin.buffer.read(1):
            pass
        loop.call_soon_threadsafe(stdin_closed.set)

    threading.Thread(target=wait_until_stdin_closes, daemon=True).start()
    await stdin_closed.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve())
