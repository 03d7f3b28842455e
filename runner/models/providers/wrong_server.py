"""Recognize an address with no model API: web pages, and TLS on a plain port or the other way round."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import urlsplit

PROBE_SECONDS = 3.0
MAX_WEB_PAGES = 3
"""A server whose first answers are this many web pages is refused; a proxy may send one while the server starts."""
_NOT_TRANSIENT = (HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_FOUND)


def is_web_page(content: bytes, status: int = HTTPStatus.OK) -> bool:
    """Return whether an answer is a page of HTML, and not the page of a proxy whose server has failed."""
    is_html = content[:200].lstrip().lower().startswith((b"<!doctype html", b"<html"))
    return is_html and (status < 300 or status in _NOT_TRANSIENT)


async def find_wrong_scheme(error: Exception, address: str) -> str | None:
    """Ask the server by the other scheme, and return what is wrong with the address's, or None.

    No key and no prompt is sent.
    """
    is_tls = address.startswith("https:")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = getattr(cause, "verify_message", "")  # aiohttp's own subclass has none, but its cause has
            if reason:
                return f"the server's TLS certificate is not trusted: {reason}"
        cause = cause.__cause__ or cause.__context__
    if not await _answers(address, with_tls=not is_tls):
        return None
    if is_tls:
        return "the server does not use TLS; write http:// instead of https://"
    return "the server only accepts TLS; write https:// instead of http://"


async def _answers(address: str, *, with_tls: bool) -> bool:
    """Return whether the server completes a TLS handshake, or answers a plain request with HTTP."""
    url = urlsplit(address)
    context = None
    if with_tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            reader, writer = await asyncio.open_connection(url.hostname, port, ssl=context)
            try:
                if not with_tls:
                    writer.write(b"HEAD / HTTP/1.0\r\n\r\n")
                    return await reader.readexactly(5) == b"HTTP/"
                return True
            finally:
                writer.transport.abort()  # and not closed, for which TLS waits until the server agrees
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, EOFError, TimeoutError):
        return False
