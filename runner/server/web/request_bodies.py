"""What is sent, watched as it comes: a request that is no piece of a file is short, and comes in a short time.

No body is read before it is known whose it is, and none is parsed where all other requests wait for it: `json_of`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.server.accounts.accounts import Viewer
from runner.server.web.api_errors import fault
from runner.server.web.authentication import asking

SHORT, NAMES = 16 << 10, 512 << 10
"""The most bytes of a request that declares nothing; and of one that names files."""
MOST_WRONG = 1_000
_DECLARING = re.compile(r"/api/v1/(uploads|competitions|competitions/[^/]+/[^/]+/labels)/?")
_NAMING = re.compile(r"/api/v1/files/?")
_PIECE = re.compile(r"/api/v1/uploads/[0-9a-f]{32}/blobs/[0-9a-f]{64}")


class Bodies:
    """Refuses a body that is too long, whatever its headers say, or takes too long to come.

    A piece of a blob is watched where it is written.
    """

    def __init__(self, app: ASGIApp, declared: int, seconds: float) -> None:
        self._app, self._seconds = app, seconds
        self._most = (
            (_DECLARING, declared),
            (_NAMING, min(NAMES, declared)),
            (re.compile(".*", re.DOTALL), min(SHORT, declared)),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"] == "PATCH" and _PIECE.fullmatch(scope["path"])):
            await self._app(scope, receive, send)
            return
        most = next(most for path, most in self._most if path.fullmatch(scope["path"]))
        said = dict(scope["headers"]).get(b"content-length", b"")
        if said.isdigit() and int(said[:20]) > most:
            await fault(413, "too_large", _words(most))(scope, receive, send)
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
            if came > most:
                raise HTTPException(413, _words(most))
            return message

        try:
            await self._app(scope, watched, send)
        except ClientDisconnect:
            return


def _words(most: int) -> str:
    return f"such a request may have {most:,} bytes"


M = TypeVar("M", bound=BaseModel)


BODY = "body_of_request"
"""Where such a dependency has its model, for the document of the API."""


def json_of(model: type[M], who: Callable[..., Viewer] = asking) -> Any:
    """A dependency that is the body of a request, read once it is known who sends it, and parsed in a thread."""

    async def read(request: Request, _: Viewer = Depends(who)) -> M:  # noqa: B008 - `who` is known here alone
        return await run_in_threadpool(_parsed, model, await request.body())

    setattr(read, BODY, model)
    return Depends(read)


def _parsed(model: type[M], data: bytes) -> M:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        if error.error_count() > MOST_WRONG:  # each of them would be made a mapping, while all others wait
            many = {"loc": ("body",), "msg": f"{error.error_count():,} things are wrong with it", "type": "many"}
            raise RequestValidationError([many]) from None
        wrong = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in wrong]) from None
