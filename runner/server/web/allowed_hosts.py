"""The names that a server is asked by: a page of another name that leads to this machine reads nothing here.

Who is asked by an address in figures, and not by a name, is not asked through somebody else's name.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.server.web.api_errors import fault
from runner.server.web.rate_limits import FREE

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:]*)(?::[0-9]*)?")


class Hosts:
    """Answers with 421 who asks by another name than the server's own."""

    def __init__(self, app: ASGIApp, address: str) -> None:
        self._app, self._address = app, address
        self._own = {"localhost", (urlsplit(address).hostname or "").lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in FREE:
            said = Headers(scope=scope).getlist("host")
            if not all(self._is_own(one) for one in said):
                words = f"this server is not asked by that name; ask {self._address} (--address says its name)"
                await fault(421, "host", words)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_own(self, said: str) -> bool:
        shape = _HOST.fullmatch(said.strip())
        if shape is None:
            return False
        host = shape[1].lower().rstrip(".")
        return host in self._own or _is_figures(host.strip("[]"))


def _is_figures(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
