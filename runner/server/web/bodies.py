"""What is sent, watched as it comes: a request that is no piece of a file is short, and comes in a short time."""

from __future__ import annotations

import asyncio
import re
import time

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.server.web.faults import fault

_PIECE = re.compile(r"/api/v1/uploads/[0-9a-f]{32}/blobs/[0-9a-f]{64}")


class Bodies:
    """Refuses a body that is too long, whatever its headers say, or takes too long to come.

    A piece of a blob is watched where it is written.
    """

    def __init__(self, app: ASGIApp, most: int, seconds: float) -> None:
        self._app, self._most, self._seconds = app, most, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"] == "PATCH" and _PIECE.fullmatch(scope["path"])):
            await self._app(scope, receive, send)
            return
        said = dict(scope["headers"]).get(b"content-length", b"")
        if said.isdigit() and int(said[:20]) > self._most:
            await fault(413, "too_large", self._words())(scope, receive, send)
            return
        came, is_whole, until = 0, False, time.monotonic() + self._seconds

        async def watched() -> Message:
            nonlocal came, is_whole
            if is_whole:  # what is waited for now is that the caller goes away
                return await receive()
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the request did not come within {self._seconds:g} seconds") from None
            is_whole = not message.get("more_body", False)
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
