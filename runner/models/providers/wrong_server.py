"""Recognizes addresses without a model API: web pages, other JSON, TLS on a plain port, plain HTTP on a TLS port."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from urllib.parse import urlsplit

from runner.models.providers.lenient_json import parse_json

PROBE_SECONDS = 3.0
"""Time limit of one connection that finds out which protocol a port speaks."""
MAX_WRONG_ANSWERS = 3
"""The run stops if the first answers are this many web pages or the like. (A proxy may send one while it starts.)"""
_API_FIELDS = frozenset(("choices", "content", "error", "id", "model", "object", "type", "usage"))
"""A model API sends at least one of these fields, even in a damaged answer."""
_NOT_TRANSIENT = (HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_FOUND)
"""Error statuses that a proxy does not send because its server is down."""

_PROLOG = re.compile(rb"\A(\xef\xbb\xbf|\s+|<\?xml[^>]*>|<!--.*?-->)+", re.DOTALL)
"""Matches what may precede a page: a byte order mark, an XML declaration, comments."""


def describe_content(content: bytes, status: int = HTTPStatus.OK) -> str | None:
    """Return words for an answer that no model API would send: a web page, other data, or nothing; otherwise None.

    An error page does not count, because a proxy of a failed server may have sent it.
    """
    start = _PROLOG.sub(b"", content[:4096])
    if start[:14].lower().startswith((b"<!doctype html", b"<html")):
        return "a web page (HTML)" if status < 300 or status in _NOT_TRANSIENT else None
    if status >= 300:
        return None
    if start.startswith(b"{"):
        data, problem = parse_json(content)
        return None if problem or _API_FIELDS & data.keys() else "JSON that is not a completion"
    if not content.strip():
        return "an empty body"
    return "text that is not a JSON object" if start else None


async def find_wrong_scheme(error: Exception, address: str) -> str | None:
    """Try the other scheme (http or https) at the server, and return the problem of the address; None if there is none.

    This sends no key and no prompt.
    """
    is_tls = address.startswith("https:")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = getattr(cause, "verify_message", "")  # aiohttp's subclass has none, but its cause does
            if reason:
                return f"the server's TLS certificate is not trusted ({reason})"
        cause = cause.__cause__ or cause.__context__
    if not await _speaks(address, with_tls=not is_tls):
        greeting = await _greeting(address)
        return greeting and f"the server does not speak HTTP: its first message is {greeting!r}"
    if is_tls:
        return "the server does not use TLS; write http:// instead of https://"
    return "the server only accepts TLS; write https:// instead of http://"


@asynccontextmanager
async def _connection(
    address: str, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    url = urlsplit(address)
    port = url.port or (443 if url.scheme == "https" else 80)
    async with asyncio.timeout(PROBE_SECONDS):
        reader, writer = await asyncio.open_connection(url.hostname, port, ssl=context)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()  # closing a TLS connection would wait for the server
            with suppress(OSError):
                await writer.wait_closed()


async def _greeting(address: str) -> str | None:
    """Return the first line of a server that sends data before it gets a request, as SSH and mail servers do."""
    with suppress(OSError, EOFError, TimeoutError):
        async with _connection(address) as (reader, _):
            line = await reader.read(60)
        if line and not line.startswith(b"HTTP/"):
            return line.split(b"\n")[0].strip().decode("ascii", "backslashreplace")
    return None


async def _speaks(address: str, *, with_tls: bool) -> bool:
    """Return whether the server completes a TLS handshake, or answers a plain request with HTTP."""
    context = None
    if with_tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    try:
        async with _connection(address, context) as (reader, writer):
            if with_tls:
                return True
            writer.write(b"HEAD / HTTP/1.0\r\n\r\n")
            return await reader.readexactly(5) == b"HTTP/"
    except (OSError, EOFError, TimeoutError):
        return False
