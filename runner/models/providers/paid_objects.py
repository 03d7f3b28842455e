"""Lists paid objects at a provider, such as jobs and batches, and tells whether a failed call may have created one."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from runner.base.errors import TransientError
from runner.base.redaction import redacted
from runner.base.text import escape_controls

MAX_LISTED: Final = 100_000
_UNCLEAR_STATUSES: Final = (408, 409)
"""Client errors (4xx) after which a server may still have executed the call: time-out and conflict."""


def may_have_worked(error: Exception) -> bool:
    """Return whether the server may have executed a failed call. Only a clear refusal excludes this."""
    status = getattr(error, "status_code", None)
    return not (isinstance(status, int) and 400 <= status < 500 and status not in _UNCLEAR_STATUSES)


def require_id(answer: Any) -> Any:
    """Check that an object of the API has an id, and return the object.

    Raises:
        TransientError: the object has no id.
    """
    if not (isinstance(object_id := getattr(answer, "id", None), str) and object_id):
        raise TransientError(f"the server sent {escape_controls(redacted(str(answer)))[:80]!r} instead of an object")
    return answer


async def list_all(first: Awaitable[Any]) -> dict[str, Any]:
    """Return all objects of a paginated listing, by id.

    Raises:
        TransientError: the listing cannot be read or is incomplete, so that it does not show which objects are missing.
    """
    objects: dict[str, Any] = {}
    try:
        page = await first
        while isinstance(data := getattr(page, "data", None), list):
            is_repeated = any(require_id(item).id in objects for item in data)
            objects.update((item.id, item) for item in data)
            if is_repeated or not page.has_next_page():  # a server without pagination repeats its only page
                if page.has_more:
                    raise TransientError("the server's listing ends although has_more is true")
                return objects
            if len(objects) >= MAX_LISTED:
                raise TransientError(f"the server's listing has more than {MAX_LISTED:,} objects")
            page = await page.get_next_page()
    except (AttributeError, TypeError) as error:  # the client accepts any JSON as a page
        raise TransientError("the server's answer is not a listing") from error
    raise TransientError("the server's answer is not a listing")
