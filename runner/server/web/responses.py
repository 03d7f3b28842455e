"""Responses with pages and files, for the modules in `web/pages/`.

Responses are compressed if the client accepts gzip. Clients may cache only public pages and files.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

from fastapi import Request
from starlette.responses import FileResponse, Response

from runner.base.storage.safe_files import open_to_read
from runner.pages.report.served import CONTENT_SECURITY_POLICY, ServedPage, render_served

HTML = "text/html; charset=utf-8"
PUBLIC = "public, max-age=5"
"""Cache-control of public pages: short, because a yanked release must disappear soon."""
IMMUTABLE = "public, max-age=31536000, immutable"
"""Cache-control of files whose names contain their hash."""
PRIVATE = "private, no-store"
"""Cache-control of pages for one person."""
GZIP_LEVEL = 4
MAX_CACHED_PAGES = 256


def page_response(request: Request, page: ServedPage, *, status: int = 200, cache_control: str = PUBLIC) -> Response:
    """Return a response with an HTML page, which may load only this server's scripts and styles."""
    return body_response(
        request, render_served(page), HTML, cache_control=cache_control, status=status, policy=CONTENT_SECURITY_POLICY
    )


def body_response(
    request: Request,
    body: bytes,
    content_type: str,
    *,
    cache_control: str,
    status: int = 200,
    policy: str | None = None,
) -> Response:
    """Return a response with a body and an entity tag (ETag)."""
    tag = hashlib.sha256(body).hexdigest()[:32]
    compressed = _compress(body) if "gzip" in request.headers.get("accept-encoding", "") else None
    return tagged_response(
        request, body, compressed, tag, content_type, cache_control=cache_control, status=status, policy=policy
    )


def tagged_response(
    request: Request, body: bytes, compressed: bytes | None, tag: str, content_type: str, *, cache_control: str,
    status: int = 200, policy: str | None = None,
) -> Response:  # fmt: skip
    """Return a response with `compressed` if the client accepts gzip, or else with `body`.

    Return status 304 without a body if the client has cached the version with the entity tag `tag`. `policy` is the
    content security policy of a page.
    """
    is_compressed = compressed is not None and "gzip" in request.headers.get("accept-encoding", "")
    headers = {"cache-control": cache_control, "vary": "accept-encoding"}
    if policy is not None:
        headers["content-security-policy"] = policy
        headers["referrer-policy"] = "same-origin"  # with `no-referrer`, browsers hide the origin of forms
    if cache_control != PRIVATE and status == 200:
        headers["etag"] = f'"{tag}-gz"' if is_compressed else f'"{tag}"'
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
    if is_compressed:
        headers["content-encoding"] = "gzip"
    return Response(compressed if is_compressed else body, status, headers, content_type)


def _compress(body: bytes) -> bytes:
    return gzip.compress(body, GZIP_LEVEL, mtime=0)


def compressed_file_response(
    request: Request, path: Path, content_type: str, *, cache_control: str, tag: str
) -> Response:
    """Return a response with a file that is stored compressed."""
    with open_to_read(path) as file:
        compressed = file.read()
    if "gzip" in request.headers.get("accept-encoding", ""):
        return tagged_response(request, b"", compressed, tag, content_type, cache_control=cache_control)
    return tagged_response(request, gzip.decompress(compressed), None, tag, content_type, cache_control=cache_control)


def piece_response(path: Path, cache_control: str) -> Response:
    """Return a response with a compressed piece of a page's data, which the page's script unpacks."""
    return FileResponse(path, media_type="application/gzip", headers={"cache-control": cache_control})


class PageCache:
    """A cache of rendered public pages. When it is full, the older half is removed."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, ...], tuple[bytes, bytes, str]] = {}

    def respond(self, request: Request, key: tuple[str, ...], build: Callable[[], ServedPage]) -> Response:
        """Return the page with this key; call `build` if it is not cached.

        The key contains the name of the board that the page was built from, so each board has its own pages.
        """
        page = self._pages.get(key)
        if page is None:
            body = render_served(build())
            page = (body, _compress(body), hashlib.sha256(body).hexdigest()[:32])
            if len(self._pages) >= MAX_CACHED_PAGES:
                for old in list(self._pages)[: MAX_CACHED_PAGES // 2]:
                    self._pages.pop(old, None)
            self._pages[key] = page
        return tagged_response(request, *page, HTML, cache_control=PUBLIC, policy=CONTENT_SECURITY_POLICY)
