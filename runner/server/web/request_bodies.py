"""Limits on the size and the duration of request bodies (`BodyLimit`), and parsing of JSON bodies (`json_body`)."""

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
from runner.server.web.api_errors import error_response
from runner.server.web.authentication import authenticate

MAX_BODY_BYTES = 16 << 10
"""Maximum size of an ordinary request body."""
MAX_FILE_LIST_BYTES = 512 << 10
"""Maximum size of a request body with a list of file names."""
MAX_ERRORS = 1_000
"""Maximum number of validation errors to list. Building a longer list would block other requests."""
_DECLARATION_PATHS = re.compile(r"/api/v1/(uploads|competitions|competitions/[^/]+/[^/]+/labels)/?")
"""Paths whose bodies declare all files of an upload, or all labels of a competition."""
_FILE_LIST_PATHS = re.compile(r"/api/v1/files/?")
_PIECE_PATHS = re.compile(r"/api/v1/uploads/[0-9a-f]{32}/blobs/[0-9a-f]{64}")


class BodyLimit:
    """Middleware that refuses a body that is too large or arrives too slowly.

    Pieces of blobs are exempt, because the API for uploads has limits of its own for them.
    """

    def __init__(self, app: ASGIApp, max_declaration_bytes: int, max_seconds: float) -> None:
        self._app, self._max_seconds = app, max_seconds
        self._limits = (
            (_DECLARATION_PATHS, max_declaration_bytes),
            (_FILE_LIST_PATHS, min(MAX_FILE_LIST_BYTES, max_declaration_bytes)),
            (re.compile(".*", re.DOTALL), min(MAX_BODY_BYTES, max_declaration_bytes)),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"] == "PATCH" and _PIECE_PATHS.fullmatch(scope["path"])):
            await self._app(scope, receive, send)
            return
        limit = next(limit for path, limit in self._limits if path.fullmatch(scope["path"]))
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length[:20]) > limit:
            await error_response(413, "too_large", _size_limit_message(limit))(scope, receive, send)
            return
        received, is_complete, deadline = 0, False, time.monotonic() + self._max_seconds

        async def receive_limited() -> Message:
            nonlocal received, is_complete
            if is_complete:  # after the body, the only further message is that the client has disconnected
                return await receive()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                problem = (
                    f"the request body did not arrive within {self._max_seconds:g} seconds; send the request again"
                )
                raise HTTPException(408, problem) from None
            is_complete = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > limit:
                raise HTTPException(413, _size_limit_message(limit))
            return message

        try:
            await self._app(scope, receive_limited, send)
        except ClientDisconnect:
            return


def _size_limit_message(limit: int) -> str:
    return f"the body of this request may have at most {limit:,} bytes; split the request into smaller ones"


ModelT = TypeVar("ModelT", bound=BaseModel)
MODEL_ATTRIBUTE = "body_of_request"
"""Name of the attribute that stores the model of a `json_body` dependency, for the OpenAPI document."""


def json_body(model: type[ModelT], viewer_dependency: Callable[..., Viewer] = authenticate) -> Any:
    """Return a FastAPI dependency that reads the JSON body of a request after authentication, and parses it.

    A thread parses the body, so that other requests do not wait.
    """

    async def read(request: Request, _: Viewer = Depends(viewer_dependency)) -> ModelT:  # noqa: B008 - FastAPI reads dependencies from default values
        return await run_in_threadpool(_parse, model, await request.body())

    setattr(read, MODEL_ATTRIBUTE, model)
    return Depends(read)


def _parse(model: type[ModelT], data: bytes) -> ModelT:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        if error.error_count() > MAX_ERRORS:
            many = {"loc": ("body",), "msg": f"{error.error_count():,} errors in the body", "type": "many"}
            raise RequestValidationError([many]) from None
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**item, "loc": ("body", *item["loc"])} for item in errors]) from None
