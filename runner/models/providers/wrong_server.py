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
"""Time limit of a connection that finds out which protocol a port speaks."""
MAX_WRONG_ANSWERS = 3
"""The run stops if the first answers are this many web pages or the like. (A proxy may send one while it starts.)"""
_API_FIELDS = frozenset(("choices", "content", "error", "id", "model", "object", "type", "usage"))
"""Fields of a model API's answers. Even a damaged answer has one of them."""
_STATUSES_WITHOUT_API = (HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_FOUND)
"""Error statuses that show that the address has no API. (A proxy of a failed server sends others.)"""

_PROLOG = re.compile(rb"\A(\xef\xbb\xbf|\s+|<\?xml[^>]*>|<!--.*?-->)+", re.DOTALL)
"""Matches what may precede a page: a byte order mark, an XML declaration, comments."""


def describe_content(content: bytes, status: int = HTTPStatus.OK) -> str | None:
    """Describe an answer that no model API sends: a web page, other data, or nothing. Return None for other answers.

    An error page does not count, because a proxy of a failed server may have sent it.
    """
    start = _PROLOG.sub(b"", content[:4096])
    if start[:14].lower().startswith((b"<!doctype html", b"<html")):
        return "a web page (HTML)" if status < 300 or status in _STATUSES_WITHOUT_API else None
    if status >= 300:
        return None
    if start.startswith(b"{"):
        data, problem = parse_json(content)
        return None if problem or _API_FIELDS & data.keys() else "JSON that is not a completion"
    if not content.strip():
        return "an empty body"
    return "text that is not a JSON object" if start else None


_UNKNOWN_AUTHORITY = (18, 19, 20, 21)
"""OpenSSL's codes for certificates that are self-signed or have an unknown authority."""
_CERTIFICATE_ADVICE = "; if it is right, set SSL_CERT_FILE to a file with the certificate of its authority"


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
                is_unknown = getattr(cause, "verify_code", None) in _UNKNOWN_AUTHORITY
                return f"the server's TLS certificate is not trusted ({reason})" + _CERTIFICATE_ADVICE * is_unknown
        cause = cause.__cause__ or cause.__context__
    if not await _speaks_http(address, with_tls=not is_tls):
        return None
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


async def _speaks_http(address: str, *, with_tls: bool) -> bool:
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
