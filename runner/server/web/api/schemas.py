"""Parts that all modules of the API share: patterns of names, base classes of bodies, and descriptions of errors."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from runner.base.text import did_you_mean, shortened
from runner.server.web.api_errors import ApiError

NAME_PATTERN = r"^[a-z0-9]([a-z0-9._-]{0,98}[a-z0-9])?$"
"""Pattern of an owner, a name or a version."""
UrlName = Annotated[str, Path(pattern=NAME_PATTERN)]
"""Type of a parameter in a URL's path that is an owner, a name or a version."""
LINE_PATTERN = r"^[^\x00-\x1f\x7f]*$"
"""Text on one line, without control characters."""
TEXT_PATTERN = r"^[^\x00]*$"
"""Text without NUL, which PostgreSQL does not accept."""


_MAX_KEY_PROBLEMS = 5
"""Maximum number of unknown keys in an error message."""


class RequestBody(BaseModel):
    """The body of a request. Unknown keys and values of another type, such as 0 for false, are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, body: Any) -> Any:
        keys_in_body = body if isinstance(body, dict) else ()  # pydantic refuses a body that is not an object
        unknown = [str(key) for key in keys_in_body if key not in cls.model_fields]
        if unknown:
            keys = list(cls.model_fields)
            problems = [
                f"unknown key {shortened(repr(key))}{did_you_mean(key, keys)}" for key in unknown[:_MAX_KEY_PROBLEMS]
            ]
            raise PydanticCustomError("unknown_key", "{problems}", {"problems": "; ".join(problems)})
        return body


def _require_text(value: object) -> object:
    if isinstance(value, str):
        return value
    raise PydanticCustomError("datetime_type", "Input should be a date and time, such as 2030-01-01T00:00:00Z")


Timestamp = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_require_text)]
"""A date and time as text, which a strict field would refuse."""


class ResponseBody(BaseModel):
    """Base class of all bodies of responses."""


_DESCRIPTIONS = {
    400: "The body is not valid JSON, or an argument is wrong; the message says which.",
    401: "A required token is missing, or the token is unknown, expired or revoked.",
    403: "The token or its account does not have the permission for this operation.",
    404: "The resource does not exist, or the token may not see it.",
    408: "The request did not arrive in time.",
    409: "The resource exists already, or its state conflicts with the request.",
    413: "The request is too large.",
    421: "The `Host` header names another host than this server.",
    422: "The request does not match the schema, or the uploaded content is refused.",
    429: "Too many requests; wait for the number of seconds in `Retry-After`, then retry.",
    503: "The server cannot answer now; wait for the number of seconds in `Retry-After`, then retry.",
    507: "The server has not enough free disk space.",
}


_RETRY_AFTER: dict[str, Any] = {
    "headers": {
        "Retry-After": {
            "description": "Seconds to wait before the next request.",
            "required": True,
            "schema": {"type": "integer", "minimum": 1},
        }
    }
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of responses with these error statuses."""
    return {
        status: {
            "model": ApiError,
            "description": _DESCRIPTIONS[status],
            **(_RETRY_AFTER if status in (429, 503) else {}),
        }
        for status in statuses
    }


FILE_RESPONSE: dict[str, Any] = {
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}
"""OpenAPI description of a response that is a file."""
COMMON_ERRORS = errors(400, 401, 408, 413, 421, 422, 429, 503)
"""Errors that every operation may return."""
