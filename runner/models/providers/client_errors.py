"""Errors of the official clients and of their transport, as the classes of failure that decide what happens next.

One generator writes the clients of OpenAI and of Anthropic: their errors have the same names and fields. They are
recognized by name, because a client is only imported where it is used.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp
import httpx2

from runner.base.errors import NipRunError, ProviderRefusal, RunError, TransientError
from runner.base.redaction import redacted
from runner.models.providers.openai_errors import classified, error_detail
from runner.models.providers.openai_http import (
    DiskError,
    NoConnectionError,
    TooLargeError,
    UnreadableError,
    UnsendableError,
)
from runner.models.settings import ModelSettings

T = TypeVar("T")

TRANSPORT_ERRORS = (httpx2.HTTPError, httpx2.StreamError, aiohttp.ClientError, OSError, ValueError, RecursionError)
"""Everything that the transport below a client raises for a call."""


def _is_a(error: BaseException, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(error).__mro__)


def answered_status(error: Any) -> int | None:
    """Return the HTTP status of a server that answered with an error; None if it did not answer."""
    return error.status_code if _is_a(error, "APIStatusError") else None


def map_client_error(error: Any, settings: ModelSettings, group: str) -> NipRunError:
    """Return the failure that an error of a client or its transport is."""
    here = settings.server_label(group)
    cause = redacted(str(error.__cause__ or error))
    if isinstance(error, DiskError) and not _has_too_many_files(error):
        return RunError(
            f"{error}; make room there, or set TMPDIR to a folder with room, and run the same command again"
        )
    if isinstance(error.__cause__, TooLargeError):
        # The call may have been billed, and the next answer is most likely as large: one more try tells a server that
        # had a bad moment from one that is like this. The game then ends; another process may have more luck.
        return TransientError(f"{here}: {cause}", attempts=2)
    if any(isinstance(part, UnsendableError | UnicodeEncodeError) for part in (error, error.__cause__)):
        return ProviderRefusal(f"{here}: the call cannot be sent: {cause}")
    if isinstance(error.__cause__, UnreadableError):
        return TransientError(f"{here}: {cause}")
    if _is_a(error, "APITimeoutError"):
        return _unanswered(f"no answer from {here}: {cause}", error)
    if _is_a(error, "APIConnectionError"):
        return _unanswered(f"cannot reach {here}: {cause}", error)
    if answered_status(error) is not None:
        return classified(error.status_code, error.body, error.response.headers, settings, group)
    return TransientError(f"the call to {here} failed: {cause}")


def _unanswered(message: str, error: Exception) -> NipRunError:
    """Return the failure of a call without an answer; too many open files are not the server's fault."""
    if _has_too_many_files(error):
        return RunError(
            "this process may open no more files; lower rollouts.concurrency or raise `ulimit -n`, and run the same "
            "command again: everything that was paid for is kept"
        )
    return TransientError(message, unreachable=isinstance(error.__cause__, NoConnectionError))


def _has_too_many_files(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_not_found(error: Exception) -> bool:
    """Return whether the server answered that it has no such object."""
    return answered_status(error) == HTTPStatus.NOT_FOUND


def status_and_message(error: Any) -> tuple[int | None, str]:
    """Return the status and the message of a server that answered with an error; no status if it did not answer."""
    if answered_status(error) is None:
        return None, str(error)
    detail = error_detail(error.body)
    return error.status_code, str(detail.get("message") or detail.get("detail") or error.message)


def is_unreadable(error: Exception) -> bool:
    """Return whether the server answered with something that cannot be read."""
    return isinstance(error.__cause__, UnreadableError)


def without_secret_cause(error: Exception) -> Exception | None:
    """Return an error to raise another one from; None if it or one of its causes shows a secret."""
    shown: BaseException | None = error
    while shown is not None:
        if redacted(str(shown)) != str(shown):
            return None
        shown = shown.__cause__ or shown.__context__
    return error


def may_be_wrong_scheme(error: Any, address: str) -> bool:
    """Return whether a failed call is what happens if https:// and http:// are confused."""
    if answered_status(error) is not None:
        return bool(error.status_code == HTTPStatus.BAD_REQUEST and b"https" in error.response.content.lower())
    is_connected = not isinstance(error.__cause__, NoConnectionError)
    return _is_a(error, "APIConnectionError") and (is_connected or address.startswith("https:"))


SLOWEST = 64 << 10
"""Bytes per second: a slower transfer of a file is given up."""


async def within(settings: ModelSettings, call: Awaitable[T], size: int = 0) -> T:
    """Await a call that belongs to no game for as long as any call may take, and longer for a file of `size` bytes.

    Raises:
        TimeoutError: it took longer.
    """
    seconds = settings.timeout + size / SLOWEST
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError as error:
        raise TimeoutError(f"no answer in {seconds:g} s") from error
