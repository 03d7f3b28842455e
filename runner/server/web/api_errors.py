"""Errors of the API: each has a code for programs, a message, and perhaps a list of problems.

`add_error_handlers` maps exceptions to these errors. Middleware and pages build error responses with `error_response`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from runner.base.errors import NipRunError, NotFoundError, ReleaseError, TakenError, UsageError
from runner.registry.release_errors import RegistryUnavailableError
from runner.server.store.database import is_disk_error
from runner.server.uploads.pieces import DiskFullError, OffsetError

LOG = logging.getLogger("nip_run.server")


Code = Literal[
    "usage", "token", "forbidden", "missing", "method", "slow", "taken", "offset", "too_large", "range", "invalid",
    "refused", "too_many", "failed", "making", "busy", "full", "host",
]  # fmt: skip


class ApiError(BaseModel):
    """The body of an error response."""

    code: Code
    """A stable code for programs; docs/reference/registry-server.md explains each."""
    message: str
    problems: list[str] = []
    """The problems that `message` summarizes, if there are several."""
    have: int | None = None
    """Number of stored bytes of the file, if a piece starts at another offset."""


_CODE_OF_STATUS: Mapping[int, Code] = {
    400: "usage", 401: "token", 403: "forbidden", 404: "missing", 405: "method", 408: "slow", 413: "too_large",
    416: "range", 422: "invalid", 429: "too_many", 503: "busy", 507: "full",
}  # fmt: skip
_CODES: Sequence[tuple[type[Exception], int, Code]] = (
    (OffsetError, 409, "offset"),
    (DiskFullError, 507, "full"),
    (TakenError, 409, "taken"),
    (NotFoundError, 404, "missing"),
    (PermissionError, 403, "forbidden"),
    (UsageError, 400, "usage"),
    (ReleaseError, 422, "refused"),
    (NipRunError, 500, "failed"),
)


def error_response(
    status: int,
    code: Code,
    message: str,
    problems: Sequence[str] = (),
    *,
    have: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return a response with an `ApiError`."""
    error = ApiError(code=code, message=message, problems=list(problems), have=have)
    response = JSONResponse(error.model_dump(exclude_none=True), status, headers)
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


def add_error_handlers(app: FastAPI) -> None:
    """Make an application answer every error with an `ApiError`."""

    async def handle_known_error(_: Request, error: Exception) -> JSONResponse:
        status, code = next((status, code) for kind, status, code in _CODES if isinstance(error, kind))
        problems = getattr(error, "__notes__", ())
        have = error.stored_bytes if isinstance(error, OffsetError) else None
        return error_response(status, code, str(error), problems, have=have)

    async def handle_http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = _CODE_OF_STATUS.get(error.status_code, "usage" if error.status_code < 500 else "failed")
        headers = dict(error.headers or {})
        if error.status_code == 405 and (methods := _methods(app, request)):
            headers["allow"] = ", ".join(methods)  # of all routes with this path, not only of the one that matched
        return error_response(error.status_code, code, str(error.detail), headers=headers)

    async def handle_database_error(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, OperationalError) and is_disk_error(error):
            LOG.error("the database cannot write to its disk", exc_info=error)
            message = "the server's disk is full; ask the server's administrator to free space"
            return error_response(507, "full", message)
        LOG.error("the database does not answer", exc_info=error)
        message = "the server's database does not answer; try again in a minute"
        return error_response(503, "busy", message, headers={"retry-after": "2"})

    async def handle_store_error(_: Request, error: Exception) -> JSONResponse:
        LOG.error("the blob store or the database does not answer", exc_info=error)
        message = "the server's storage does not answer; try again in a minute"
        return error_response(503, "busy", message, headers={"retry-after": "2"})

    async def handle_validation_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        message = "the request does not match the schema in /api/v1/openapi.json; correct these fields"
        return error_response(422, "invalid", message, problems[:20])

    app.add_exception_handler(NipRunError, handle_known_error)
    app.add_exception_handler(PermissionError, handle_known_error)
    app.add_exception_handler(RegistryUnavailableError, handle_store_error)
    app.add_exception_handler(OperationalError, handle_database_error)
    app.add_exception_handler(PoolTimeout, handle_database_error)
    app.add_exception_handler(HTTPException, handle_http_error)
    app.add_exception_handler(RequestValidationError, handle_validation_error)


def _methods(app: FastAPI, request: Request) -> list[str]:
    """Return the methods that the OpenAPI document has for the path of a request."""
    path = getattr(request.scope.get("route"), "path_format", "")
    return sorted(method.upper() for method in app.openapi()["paths"].get(path, ()))
