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
    request: Request, body: bytes, content_type: str, *, cache_control: str, status: int = 200,
    policy: str | None = None, compressed: bytes | None = None, tag: str | None = None,
) -> Response:  # fmt: skip
    """Return a response with a body, which is compressed if the client accepts gzip, and with an entity tag (ETag).

    Return status 304 without a body if the client has cached the version with this entity tag. `policy` is the content
    security policy of a page. `compressed` and `tag` are computed from `body` if they are None.
    """
    accepts_gzip = _accepts_gzip(request)
    headers = {"cache-control": cache_control, "vary": "accept-encoding"}
    if policy is not None:
        headers["content-security-policy"] = policy
        headers["referrer-policy"] = "same-origin"  # with `no-referrer`, browsers hide the origin of forms
    if cache_control != PRIVATE and status == 200:
        tag = tag or _entity_tag(body)
        headers["etag"] = f'"{tag}-gz"' if accepts_gzip else f'"{tag}"'
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
    if accepts_gzip:
        headers["content-encoding"] = "gzip"
        body = _compress(body) if compressed is None else compressed
    return Response(body, status, headers, content_type)


def _accepts_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def _entity_tag(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


def _compress(body: bytes) -> bytes:
    return gzip.compress(body, GZIP_LEVEL, mtime=0)


def compressed_file_response(
    request: Request, path: Path, content_type: str, *, cache_control: str, tag: str
) -> Response:
    """Return a response with a file that is stored compressed."""
    with open_to_read(path) as file:
        compressed = file.read()
    body = b"" if _accepts_gzip(request) else gzip.decompress(compressed)
    return body_response(request, body, content_type, cache_control=cache_control, compressed=compressed, tag=tag)


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
            page = (body, _compress(body), _entity_tag(body))
            if len(self._pages) >= MAX_CACHED_PAGES:
                for old_key in list(self._pages)[: MAX_CACHED_PAGES // 2]:
                    self._pages.pop(old_key, None)
            self._pages[key] = page
        body, compressed, tag = page
        return body_response(
            request, body, HTML, cache_control=PUBLIC, policy=CONTENT_SECURITY_POLICY, compressed=compressed, tag=tag
        )
