"""The one module that knows OpenAI's client: requests onto the wire, answers and errors back.

The client is the official one: it holds the key, the base URL and the headers, and it raises its own errors. Its
retries are off, because the spec's policy is the only one. Two things are left out that have no use here and
that cost more than all the rest: the walk over every message that converts typed parameters, and the building of
response models. The body is serialised once and the answer is read from its bytes. The transport is the
edge (see `openai_http`).
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp
import httpx2
import openai

from runner.base.errors import NipRunError, ProviderRefusal, RunError, SeveralRefusedError, TransientError
from runner.base.redaction import redacted, remember
from runner.models.headers import SESSION_ID, headers_of
from runner.models.interface import Completion, Request, session_of
from runner.models.providers.body_limits import BodySlots, OnePlace
from runner.models.providers.lenient_json import SECRET_ALTERED
from runner.models.providers.openai_body import chat_completions_body
from runner.models.providers.openai_errors import (
    classified,
    cut_at_limit,
    error_detail,
    refuses_n,
)
from runner.models.providers.openai_http import (
    ALTERED,
    CLOSE_SECONDS,
    HELD_PLACE,
    DiskError,
    LeanHttp,
    NoConnectionError,
    TooLargeError,
    UnreadableError,
    UnsendableError,
)
from runner.models.providers.openai_wire import read_completion
from runner.models.providers.wrong_server import MAX_WEB_PAGES, find_wrong_scheme, what_it_is
from runner.models.settings import ModelSettings

T = TypeVar("T")

Client = openai.AsyncOpenAI

Reload = Callable[[Client, float], Awaitable[bool]]
"""Has a server load a model that it lost; whether it has it now."""

SyncClient = openai.OpenAI


def make_client(settings: ModelSettings, group: str, connections: int, places: BodySlots | None = None) -> Client:
    """The official client for one model group, on the edge's transport; the clients of one server share its `places`.

    Raises:
        ProviderRefusal: the environment holds no key, or not the value of a header.
    """
    headers = headers_of(settings, group)
    client = openai.AsyncOpenAI(
        api_key=_key(settings, group),
        base_url=settings.server_url,
        max_retries=0,
        http_client=LeanHttp(settings.timeout, connections, places or BodySlots()),
    )
    _set_headers(client, settings, headers)
    return client


def make_sync_client(settings: ModelSettings, group: str) -> SyncClient:
    """The official synchronous client for one model group, for those who ask its server by themselves.

    It follows no redirect, and takes of the environment the key alone, as the runner's own.

    Raises:
        ProviderRefusal: the environment holds no key, or not the value of a header.
    """
    headers = headers_of(settings, group)
    client = SyncClient(
        api_key=_key(settings, group),
        base_url=settings.server_url,
        timeout=settings.timeout,
        max_retries=0,
        http_client=openai.DefaultHttpxClient(follow_redirects=False, trust_env=False),
    )
    _set_headers(client, settings, headers)
    return client


def _set_headers(client: Client | SyncClient, settings: ModelSettings, headers: Mapping[str, str]) -> None:
    """The group's own headers; what the environment holds for OpenAI (organization, headers) is for no other server."""
    given: Mapping[str, Any] = client._custom_headers  # noqa: SLF001 - has OPENAI_CUSTOM_HEADERS, with no way to refuse
    if settings.base_url is not None:
        client.organization = client.project = None
        given = {}
    own = {name.lower() for name in headers}
    kept = {name: value for name, value in given.items() if name.lower() not in own}
    client._custom_headers = {**kept, **headers}  # noqa: SLF001


def _key(settings: ModelSettings, group: str) -> str:
    variable = settings.key_variable
    if variable is None:
        return "none"
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ProviderRefusal(
            f"models.{group}: the environment variable {variable} holds no key; set it, or name another with "
            f"models.{group}.api_key_env"
        )
    remember(key)
    if not (key.isascii() and key.isprintable()):
        raise ProviderRefusal(
            f"models.{group}: the environment variable {variable} holds a character that no key has: a line's end, one "
            "that is not seen, or one that is not ASCII; set it again"
        )
    return key


def map_client_error(error: Exception, settings: ModelSettings, group: str) -> NipRunError:
    """Any error of the client, as the class of failure that it is."""
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
    if any(isinstance(told, UnsendableError | UnicodeEncodeError) for told in (error, error.__cause__)):
        return ProviderRefusal(f"{here}: the call cannot be sent: {cause}")
    if isinstance(error.__cause__, UnreadableError):
        return TransientError(f"{here}: {cause}")
    if isinstance(error, openai.APITimeoutError):
        return _unanswered(f"no answer from {here}: {cause}", error)
    if isinstance(error, openai.APIConnectionError):
        return _unanswered(f"cannot reach {here}: {cause}", error)
    if isinstance(error, openai.APIStatusError):
        return classified(error.status_code, error.body, error.response.headers, settings, group)
    return TransientError(f"the call to {here} failed: {cause}")


def _unanswered(said: str, error: Exception) -> NipRunError:
    """A call without an answer; where this process can open no more files, that is no fault of the server's."""
    if _has_too_many_files(error):
        return RunError(
            "this process may open no more files; lower rollouts.concurrency or raise `ulimit -n`, and run the same "
            "command again: everything that was paid for is kept"
        )
    return TransientError(said, unreachable=isinstance(error.__cause__, NoConnectionError))


def _has_too_many_files(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_not_found(error: Exception) -> bool:
    """Whether the server says that it has no such thing."""
    return isinstance(error, openai.APIStatusError) and error.status_code == HTTPStatus.NOT_FOUND


def said_by(error: Exception) -> tuple[int | None, str]:
    """The status and the words of a server that answers with an error; no status where it does not answer."""
    if not isinstance(error, openai.APIStatusError):
        return None, str(error)
    detail = error_detail(error.body)
    return error.status_code, str(detail.get("message") or detail.get("detail") or error.message)


def is_unreadable(error: Exception) -> bool:
    """Whether an answer came that cannot be taken."""
    return isinstance(error.__cause__, UnreadableError)


def without_secret_cause(error: Exception) -> Exception | None:
    """The error as the cause of ours; none where it, or what caused it, tells a secret."""
    told: BaseException | None = error
    while told is not None:
        if redacted(str(told)) != str(told):
            return None
        told = told.__cause__ or told.__context__
    return error


CLIENT_ERRORS = (
    openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError, aiohttp.ClientError, OSError, ValueError, RecursionError,
)  # fmt: skip
"""All that the client and its transport raise for a call."""


SLOWEST = 64 << 10
"""Bytes a second: a file that goes or comes more slowly is given up."""


async def within(settings: ModelSettings, call: Awaitable[T], size: int = 0) -> T:
    """A call beside the games, with an end: the time of any call, and more for a file of so many bytes.

    Raises:
        TimeoutError: it took longer; one of the `CLIENT_ERRORS`.
    """
    seconds = settings.timeout + size / SLOWEST
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError as error:
        raise TimeoutError(f"no answer in {seconds:g} s") from error


async def close_client(client: Client) -> None:
    """Close the connections; a server that does not let go of one is left to the system."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.close()


def _since(started: float) -> float:
    """Milliseconds, to a tenth: so many of their digits stand beside each answer."""
    return round((time.perf_counter() - started) * 1000, 1)


def may_be_wrong_scheme(error: Exception, address: str) -> bool:
    """Return whether a failed call is what happens if https:// and http:// are confused."""
    if isinstance(error, openai.APIStatusError):
        return error.status_code == HTTPStatus.BAD_REQUEST and b"https" in error.response.content.lower()
    is_connected = not isinstance(error.__cause__, NoConnectionError)
    return isinstance(error, openai.APIConnectionError) and (is_connected or address.startswith("https:"))


class OpenAiModel:
    """One model group on one server. `learn` is told the headers of every answer, errors included.

    A `client` that is given is shared with others, and closed by whoever made it. `reload` is told that the server
    says it has no such model, to a call sent when.
    """

    def __init__(
        self,
        settings: ModelSettings,
        group: str,
        connections: int,
        learn: Callable[[Mapping[str, str]], None] | None = None,
        places: BodySlots | None = None,
        *,
        client: Client | None = None,
        reload: Reload | None = None,
    ) -> None:
        self._settings = settings
        self._group = group
        self._learn = learn or (lambda _: None)
        self._places = places or BodySlots(connections)
        self._is_shared = client is not None
        self._reload = reload
        self._client = client or make_client(settings, group, connections, self._places)
        # An absolute address spares the client the join with its base URL at each call.
        base = self._client.base_url
        self._address = str(base.copy_with(raw_path=base.raw_path + b"chat/completions"))
        self._key = str(uuid.uuid4())
        self._numbers = itertools.count()
        self._sends_session = settings.sends_session_id
        self._has_answered = self._is_probed = False
        self._web_pages = 0

    async def close(self) -> None:
        if not self._is_shared:
            await close_client(self._client)

    def _options(self, request: Request) -> Any:
        """What the client would make again for each call: deep copies of its defaults, and a random key.

        `security` is what its own `chat.completions.create` gives. The key that tells calls apart is in no header.
        """
        return {
            "headers": {SESSION_ID: session_of(request.sample)} if self._sends_session else {},
            "params": {},
            "max_retries": 0,
            "timeout": self._client.timeout,
            "security": {"bearer_auth": True},
            "idempotency_key": f"{self._key}-{next(self._numbers)}",
            "post_parser": openai.not_given,
        }

    async def complete(self, request: Request) -> Completion:
        """Ask once; for the answers of several samples in one call where the request has `n`.

        Raises:
            SeveralRefusedError: the server gives one answer a call.
            TransientError: worth asking again.
            ContextExceededError, RefusedError: the outcome of the game.
            ProviderRefusal: no call of this run can succeed.
        """
        with self._places.one() as place:
            return await self._completed(request, place)

    async def _completed(self, request: Request, place: OnePlace, *, is_again: bool = False) -> Completion:
        started, sent = time.perf_counter(), time.monotonic()
        n = request.n if request.n > 1 else None
        body = chat_completions_body(self._settings, request.messages, n)
        HELD_PLACE.set(place)
        try:
            # The client's own timeout starts again with each byte; a call as a whole has one end.
            async with asyncio.timeout(self._settings.timeout):
                response = await self._client.post(
                    self._address, content=body, cast_to=httpx2.Response, options=self._options(request)
                )
        except TimeoutError as error:
            here = self._settings.server_label(self._group)
            raise TransientError(f"no answer from {here} in {self._settings.timeout:g} s") from error
        except CLIENT_ERRORS as error:
            if isinstance(error, openai.APIStatusError):
                self._learn(error.response.headers)
                if n is not None and refuses_n(error.status_code, error.body):
                    said = f"{self._settings.server_label(self._group)} refuses n: {redacted(error.message)}"
                    raise SeveralRefusedError(said, status=error.status_code) from None
                cut = cut_at_limit(error.status_code, error.body, request, self._settings, _since(started))
                if cut is not None:
                    return cut
                lost = is_not_found(error) and self._reload is not None and not is_again
                if lost and self._reload is not None and await self._reload(self._client, sent):
                    return await self._completed(request, place, is_again=True)
            if isinstance(error, openai.APIStatusError):
                self._check_web_page(error.response.content, error.status_code)
            await self._check_scheme(error)
            raise map_client_error(error, self._settings, self._group) from without_secret_cause(error)
        finally:
            HELD_PLACE.set(None)
        self._learn(response.headers)
        latency = _since(started)
        content, headers = response.content, response.headers
        altered = (SECRET_ALTERED,) if ALTERED in response.extensions else ()
        try:
            self._check_web_page(content)
            answer = read_completion(content, headers, request, self._settings, latency_ms=latency, altered=altered)
        except NipRunError as error:
            # Retries wait with the error in hand, and its traceback would hold the whole answer.
            del response, content
            raise error.with_traceback(None) from None
        self._has_answered = True
        return answer

    def _check_web_page(self, content: bytes, status: int = HTTPStatus.OK) -> None:
        """Raise an error of our own if the server sends web pages and has never answered.

        Raises:
            TransientError: it has sent few; a proxy may send them while the server starts.
            ProviderRefusal: it keeps sending them, or with a status that says that it has no such API.
        """
        found = None if self._has_answered else what_it_is(content, status)
        if found is None:
            return
        self._web_pages += 1
        message = f"{self._settings.server_label(self._group)} answers with {found}, and not as a model API"
        if status < 300 and self._web_pages < MAX_WEB_PAGES:
            raise TransientError(message)
        raise self._wrong_address(f"{message}\nThe address of an API usually ends in /v1.")

    async def _check_scheme(self, error: Exception) -> None:
        """Raise `ProviderRefusal` if the scheme of the address is wrong; the server is asked once."""
        if self._has_answered or self._is_probed or not may_be_wrong_scheme(error, self._address):
            return
        self._is_probed = True
        wrong = await find_wrong_scheme(error, self._settings.server_url)
        if wrong is not None:
            raise self._wrong_address(
                f"{self._settings.server_label(self._group)}: {wrong}."
            ) from without_secret_cause(error)

    def _wrong_address(self, message: str) -> ProviderRefusal:
        key = f"models.{self._group}.base_url"
        return ProviderRefusal(f"{message} Correct {key}.", changes={key: None})
