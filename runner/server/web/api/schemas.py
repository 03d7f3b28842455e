"""What requests and answers of the API are made of: words that are taken, and the faults that an operation declares."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from runner.base.text import did_you_mean, shortened
from runner.server.web.api_errors import ApiError

WORD = r"^[a-z0-9]([a-z0-9._-]{0,98}[a-z0-9])?$"
"""An owner, a name or a version."""
PRINTED = r"^[^\x00-\x1f\x7f]*$"
"""A text on one line."""
TEXT = r"^[^\x00]*$"
"""A text that every database takes."""


_MOST_KEYS = 5


class RequestBody(BaseModel):
    """The body of a request. A key that is misspelled is refused, and not taken for one that was left out."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest(cls, said: Any) -> Any:
        unknown = [str(key) for key in said if key not in cls.model_fields] if isinstance(said, dict) else []
        if unknown:
            known = list(cls.model_fields)
            told = [f"unknown key {shortened(repr(key))}{did_you_mean(key, known)}" for key in unknown[:_MOST_KEYS]]
            raise PydanticCustomError("unknown_key", "{told}", {"told": "; ".join(told)})
        return said


class ResponseBody(BaseModel):
    """The body of an answer."""


_SAID = {
    400: "The body cannot be read, or what is asked for cannot be.",
    401: "A token is missing where one is needed, or is not known, has expired, or was revoked.",
    403: "The token may not do this.",
    404: "There is no such thing, or none that whoever asks may see.",
    408: "The request did not come in time.",
    409: "It is there already, or something else is.",
    413: "The request is too long.",
    421: "The server is not asked by the name in Host.",
    422: "The request is not what the API takes, or what was sent is refused.",
    429: "Too many requests; come again after the seconds of Retry-After.",
    503: "The server cannot answer now; come again after the seconds of Retry-After.",
    507: "The server has no room.",
}


_LATER: dict[str, Any] = {
    "headers": {
        "Retry-After": {
            "description": "Seconds until it is worth to ask again.",
            "required": True,
            "schema": {"type": "integer", "minimum": 1},
        }
    }
}


def faults(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What an operation may answer besides what every one may."""
    return {
        status: {"model": ApiError, "description": _SAID[status], **(_LATER if status in (429, 503) else {})}
        for status in statuses
    }


BYTES: dict[str, Any] = {
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}
"""What an operation says of an answer that is a file."""
ALWAYS = faults(400, 401, 408, 413, 421, 422, 429, 503)
"""What every operation may answer."""
