"""Converts errors of the official clients and their transport to errors of nip-run.

OpenAI's and Anthropic's clients come from the same code generator, so their errors have the same names and fields. This
module recognizes errors by name, and does not import the clients.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp
import httpx2

from runner.base.errors import ANSWERS_ARE_SAVED, NipRunError, ProviderRefusal, RunError, TransientError
from runner.base.redaction import redacted
from runner.models.providers.openai_errors import classify_error, error_detail
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
"""The errors that the transport below a client can raise for a call."""


def _has_type(error: BaseException, name: str) -> bool:
    """Return whether an error's class or one of its base classes has this name."""
    return any(kind.__name__ == name for kind in type(error).__mro__)


def answered_status(error: Any) -> int | None:
    """Return the HTTP status of an error that a server sent; None if the server did not answer."""
    return error.status_code if _has_type(error, "APIStatusError") else None


def map_client_error(error: Any, settings: ModelSettings, group: str) -> NipRunError:
    """Convert an error of a client or its transport to an error of nip-run, if it is not one already."""
    if isinstance(error, NipRunError):
        return error
    server = settings.server_label(group)
    cause = redacted(str(error.__cause__ or error))
    if isinstance(error, DiskError) and not _has_too_many_files(error):
        return RunError(
            f"{error}. Free space there, or set TMPDIR to a folder on another disk, and run the same command again"
        )
    if isinstance(error.__cause__, TooLargeError):
        # The call may be billed, and the next answer is probably as large. After one more attempt, the game ends. A
        # later process tries again.
        return TransientError(f"{server}: {cause}", attempts=2)
    if any(isinstance(part, UnsendableError | UnicodeEncodeError) for part in (error, error.__cause__)):
        return ProviderRefusal(f"{server}: the call cannot be sent: {cause}. Check models.{group} and the prompts")
    if isinstance(error.__cause__, UnreadableError):
        return TransientError(f"{server}: {cause}")
    if _has_type(error, "APITimeoutError"):
        return _no_answer_error(f"no answer from {server}: {cause}", error)
    if _has_type(error, "APIConnectionError"):
        return _no_answer_error(f"cannot reach {server}: {cause}", error)
    if answered_status(error) is not None:
        return classify_error(error.status_code, error.body, error.response.headers, settings, group)
    return TransientError(f"the call to {server} failed: {cause}")


def _no_answer_error(message: str, error: Exception) -> NipRunError:
    """Return the error for a call without an answer."""
    if _has_too_many_files(error):  # the server did not cause this error
        return RunError(
            "this process has reached its limit of open files; lower rollouts.concurrency or raise `ulimit -n`, and "
            f"run the same command again. {ANSWERS_ARE_SAVED}"
        )
    return TransientError(message, unreachable=isinstance(error.__cause__, NoConnectionError))


def _has_too_many_files(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_not_found(error: Exception) -> bool:
    """Return whether the server answered that it does not have the object."""
    return answered_status(error) == HTTPStatus.NOT_FOUND


def status_and_message(error: Any) -> tuple[int | None, str]:
    """Return the status and message of an error response; None and the error's message if there is no response."""
    if answered_status(error) is None:
        return None, str(error)
    detail = error_detail(error.body)
    return error.status_code, str(detail.get("message") or detail.get("detail") or error.message)


def is_unreadable(error: Exception) -> bool:
    """Return whether the server sent an answer that cannot be read."""
    return isinstance(error.__cause__, UnreadableError)


def without_secret_cause(error: Exception) -> Exception | None:
    """Return the error, for the `from` clause of another one; None if the error or one of its causes has a secret."""
    current: BaseException | None = error
    while current is not None:
        if redacted(str(current)) != str(current):
            return None
        current = current.__cause__ or current.__context__
    return error


def may_be_wrong_scheme(error: Any, address: str) -> bool:
    """Return whether a call failed in a way that is typical of confusing https:// and http://."""
    if answered_status(error) is not None:
        return bool(error.status_code == HTTPStatus.BAD_REQUEST and b"https" in error.response.content.lower())
    is_connected = not isinstance(error.__cause__, NoConnectionError)
    return _has_type(error, "APIConnectionError") and (is_connected or address.startswith("https:"))


MIN_TRANSFER_RATE = 64 << 10
"""Minimum transfer rate of a file in bytes per second."""


async def with_time_limit(settings: ModelSettings, call: Awaitable[T], size: int = 0) -> T:
    """Return the result of a call outside of games, with the usual time limit plus the transfer time of a file.

    Raises:
        TimeoutError: the call took longer.
    """
    seconds = settings.timeout + size / MIN_TRANSFER_RATE
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError as error:
        raise TimeoutError(f"no answer in {seconds:g} s") from error
