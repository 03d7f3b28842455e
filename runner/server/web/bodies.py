"""The size of what is sent, watched as it comes: a request that is no piece of a file is short."""

from __future__ import annotations

import re

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.server.web.faults import fault

_PIECE = re.compile(r"/api/v1/uploads/[0-9a-f]{32}/blobs/[0-9a-f]{64}")


class Bodies:
    """Refuses a body that is too long, whatever its headers say. A piece of a blob is watched where it is written."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"] == "PATCH" and _PIECE.fullmatch(scope["path"])):
            await self._app(scope, receive, send)
            return
        said = dict(scope["headers"]).get(b"content-length", b"")
        if said.isdigit() and int(said[:20]) > self._most:
            await fault(413, "too_large", self._words())(scope, receive, send)
            return
        came = 0

        async def watched() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self._most:
                raise HTTPException(413, self._words())
            return message

        try:
            await self._app(scope, watched, send)
        except ClientDisconnect:
            return

    def _words(self) -> str:
        return f"a request may have {self._most:,} bytes"
