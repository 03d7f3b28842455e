"""A check of the `Host` header, against DNS rebinding.

In such an attack, a hostile website makes its own host name resolve to this server, so that its scripts can read from
the server. IP addresses in `Host` are always allowed, because the attack needs a host name.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.server.web.api_errors import error_response
from runner.server.web.callers import parse_address
from runner.server.web.rate_limits import UNLIMITED_PATHS

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:]*)(?::[0-9]*)?")


class HostCheck:
    """Middleware that answers 421 if a request names another host than the server's."""

    def __init__(self, app: ASGIApp, address: str) -> None:
        self._app, self._address = app, address
        self._allowed_names = {"localhost", (urlsplit(address).hostname or "").lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_checked = scope["type"] == "http" and scope["path"] not in UNLIMITED_PATHS
        if is_checked and not all(self._is_allowed(host) for host in Headers(scope=scope).getlist("host")):
            message = f"unknown host in `Host`; use {self._address}, or start `nip-run serve` with --address URL"
            await error_response(421, "host", message)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_allowed(self, header: str) -> bool:
        match = _HOST.fullmatch(header.strip())
        if match is None:
            return False
        host = match[1].lower().rstrip(".")
        return host in self._allowed_names or parse_address(host.strip("[]")) is not None
