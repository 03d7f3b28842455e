"""Addresses of servers: when two of them are one server's."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}


@lru_cache(maxsize=1024)
def same_server(url: str) -> str:
    """The one form of all ways to write an address: by it a server is known, and never asked.

    Scheme and host in small letters, no default port, no dot after the host, no slash twice or at the end.
    """
    parts = urlsplit(url)
    scheme, host = parts.scheme.lower(), (parts.hostname or "").removesuffix(".")
    named = f"[{host}]" if ":" in host else host
    port = "" if parts.port in (None, _DEFAULT_PORTS.get(scheme)) else f":{parts.port}"
    return f"{scheme}://{named}{port}{re.sub('/+', '/', parts.path).rstrip('/')}"
