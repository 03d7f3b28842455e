"""Forms of pages: what was sent of one, and whether it came from a page of ours."""

from __future__ import annotations

import hmac
import re
from urllib.parse import parse_qs

from fastapi import Request

MOST_FORM = 4_096
MOST_FIELDS = 10


async def posted(request: Request) -> dict[str, str]:
    """The fields of a form; nothing where it is too large, has too many, or is none."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        return {}
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_FORM:
            return {}
    try:
        found = parse_qs(body.decode("utf-8", "replace"), max_num_fields=MOST_FIELDS)
    except ValueError:  # too many
        return {}
    return {name: re.sub(r"[\x00-\x1f\x7f]", "", values[0]) for name, values in found.items()}


def from_here(request: Request) -> bool:
    """Whether a form was sent from a page of ours, as far as the browser says."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    return site in ("same-origin", "none") and (origin is None or re.sub(r"^https?://", "", origin) == host)


def same(one: str, other: str) -> bool:
    return bool(one) and hmac.compare_digest(one.encode(), other.encode())
