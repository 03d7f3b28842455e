"""Pages and files as answers: compressed where that is asked for, and kept by caches where they are public alone."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

from fastapi import Request
from starlette.responses import FileResponse, Response

from runner.base.storage.safe_files import open_to_read
from runner.pages.report.served import POLICY, ServedPage, served

HTML = "text/html; charset=utf-8"
PUBLIC = "public, max-age=5"
"""What was yanked is on no page soon after."""
FOR_EVER = "public, max-age=31536000, immutable"
PRIVATE = "private, no-store"
LEVEL = 4


def page_answer(request: Request, page: ServedPage, *, status: int = 200, cache: str = PUBLIC) -> Response:
    """A page."""
    return answer(request, served(page), HTML, cache=cache, status=status, policy=POLICY)


def answer(
    request: Request, body: bytes, kind: str, *, cache: str, status: int = 200, policy: str | None = None
) -> Response:
    """Bytes with what says whether they have changed."""
    tag = hashlib.sha256(body).hexdigest()[:32]
    packed = _packed(body) if "gzip" in request.headers.get("accept-encoding", "") else None
    return tagged(request, body, packed, tag, kind, cache=cache, status=status, policy=policy)


def tagged(
    request: Request, body: bytes, packed: bytes | None, tag: str, kind: str, *, cache: str, status: int = 200,
    policy: str | None = None,
) -> Response:  # fmt: skip
    """Bytes whose tag is known, and that may be there compressed, too."""
    is_packed = packed is not None and "gzip" in request.headers.get("accept-encoding", "")
    headers = {"cache-control": cache, "vary": "accept-encoding"}
    if policy is not None:
        headers["content-security-policy"] = policy
        headers["referrer-policy"] = "same-origin"  # without it, a browser does not say that a form is from here
    if cache != PRIVATE and status == 200:
        headers["etag"] = f'"{tag}-gz"' if is_packed else f'"{tag}"'
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
    if is_packed:
        headers["content-encoding"] = "gzip"
    return Response(packed if is_packed else body, status, headers, kind)


def _packed(body: bytes) -> bytes:
    return gzip.compress(body, LEVEL, mtime=0)


def packed_file(request: Request, path: Path, kind: str, *, cache: str, tag: str) -> Response:
    """A file that is kept compressed, as it is or unpacked."""
    with open_to_read(path) as file:
        packed = file.read()
    if "gzip" in request.headers.get("accept-encoding", ""):
        return tagged(request, b"", packed, tag, kind, cache=cache)
    return tagged(request, gzip.decompress(packed), None, tag, kind, cache=cache)


def piece_file(path: Path, cache: str) -> Response:
    """A piece of a page's data, which its script unpacks."""
    return FileResponse(path, media_type="application/gzip", headers={"cache-control": cache})


class PageCache:
    """Public pages by what they were made of: many ask for the same one between two changes."""

    def __init__(self, most: int = 256) -> None:
        self._pages: dict[tuple[str, ...], tuple[bytes, bytes, str]] = {}
        self._most = most

    def answer(self, request: Request, key: tuple[str, ...], make: Callable[[], ServedPage]) -> Response:
        """The page of this key, made now where it is not kept. The key has the name of the board in it."""
        found = self._pages.get(key)
        if found is None:
            body = served(make())
            found = (body, _packed(body), hashlib.sha256(body).hexdigest()[:32])
            if len(self._pages) >= self._most:
                for old in list(self._pages)[: self._most // 2]:
                    self._pages.pop(old, None)
            self._pages[key] = found
        return tagged(request, *found, HTML, cache=PUBLIC, policy=POLICY)
