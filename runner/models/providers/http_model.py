"""Calls a model group at one server, through an official client with nip-run's own transport.

The transport is in `runner.models.providers.openai_http`. The client has the key, the base URL and the headers. A call
sends exactly what the client would send and raises the client's errors, but goes directly to the transport: the
client's own objects for a request and a response would take more CPU time than everything else. nip-run retries by the
spec's policy.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx2

from runner.base.errors import NipRunError, ProviderRefusal, SeveralRefusedError, TransientError
from runner.base.redaction import redacted
from runner.models.headers import SESSION_ID
from runner.models.interface import Completion, Request, session_id_of
from runner.models.providers.answer_reader import read_completion
from runner.models.providers.body_limits import BodySlot, BodySlots
from runner.models.providers.client_errors import (
    answered_status,
    is_not_found,
    map_client_error,
    may_be_wrong_scheme,
    without_secret_cause,
)
from runner.models.providers.lenient_json import SECRET_ALTERED, parse_json
from runner.models.providers.openai_errors import refuses_n, truncated_answer_in
from runner.models.providers.openai_http import ALTERED, HELD_SLOT, Answer, NotHttpError, PreparedCall
from runner.models.settings import ModelSettings

CLOSE_SECONDS = 5.0

Reload = Callable[[Any, float], Awaitable[bool]]
"""Loads a model again that a server has lost, and returns whether the server has the model now.

The arguments are the client and the time of the failed call.
"""


async def close_client(client: Any) -> None:
    """Close a client's connections, but do not wait for a connection that does not close in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.close()


def set_headers(client: Any, settings: ModelSettings, headers: Mapping[str, str]) -> None:
    """Set a group's headers in its client.

    The client itself reads headers from an environment variable. They are only for the provider's own server.
    """
    provider_headers: Mapping[str, Any] = {} if settings.base_url is not None else client._custom_headers  # noqa: SLF001
    names = {name.lower() for name in headers}
    client._custom_headers = {  # noqa: SLF001 - the client reads the variable, and has no option to ignore it
        **{name: value for name, value in provider_headers.items() if name.lower() not in names},
        **headers,
    }


def _milliseconds_since(started: float) -> float:
    """Return the time since `started` in milliseconds with one decimal, the precision of journals."""
    return round((time.monotonic() - started) * 1000, 1)


class HttpModel(ABC):
    """Calls one model group at one server. Subclasses add the client, the path and the request body.

    `on_headers` receives the headers of every answer, including errors. The caller must close a `client` that it passes
    in. `reload` is called if the server does not have the model.
    """

    PATH: ClassVar[bytes]
    CLIENT_PACKAGE: ClassVar[Any]
    CLIENT_ERRORS: ClassVar[tuple[type[Exception], ...]]
    """Errors that the client and its transport can raise for a call."""

    @staticmethod
    @abstractmethod
    def make_client(settings: ModelSettings, group: str, connections: int, body_slots: BodySlots | None) -> Any:
        """Create the official client of a model group."""

    def __init__(
        self,
        settings: ModelSettings,
        group: str,
        connections: int,
        on_headers: Callable[[Mapping[str, str]], None] | None = None,
        body_slots: BodySlots | None = None,
        *,
        client: Any = None,
        reload: Reload | None = None,
    ) -> None:
        self._settings = settings
        self._group = group
        self._on_headers = on_headers or (lambda _: None)
        self._body_slots = body_slots or BodySlots(connections)
        self._is_shared = client is not None
        self._reload = reload
        self._client = client or self.make_client(settings, group, connections, self._body_slots)
        # The address is absolute, so that the client need not join it with its base URL for each call.
        base = self._client.base_url
        self._address = str(base.copy_with(raw_path=base.raw_path + self.PATH))
        self._prepared_call: PreparedCall | None = None
        self._sends_session = settings.sends_session_id
        self._has_answered = self._is_scheme_tested = self._has_right_scheme = False
        self._wrong_answers = 0

    @abstractmethod
    def _body(self, request: Request, n: int | None) -> bytes:
        """Return the exact bytes of a request's body."""

    def _prepare(self) -> PreparedCall:
        """Return a call with the headers that the official client sends, and its time limits."""
        options = self.CLIENT_PACKAGE._models.FinalRequestOptions.construct(  # noqa: SLF001
            method="post",
            url=self._address,
            content=b"-",  # a placeholder, because `_send` sets the body and the headers that depend on it
            headers={SESSION_ID: "-"} if self._sends_session else {},
            security={"bearer_auth": True},
            timeout=self._client.timeout,
        )
        request = self._client._build_request(options)  # noqa: SLF001
        return PreparedCall(self._client._client.aiohttp_transport, request, self._client.timeout)  # noqa: SLF001

    async def _send(self, body: bytes, request: Request) -> Answer:
        """Send the request that the official client would send, and return its answer.

        Raises:
            APIStatusError, APITimeoutError, APIConnectionError: the client's errors, in the same situations.
        """
        if self._prepared_call is None:
            self._prepared_call = self._prepare()
        own_headers = {SESSION_ID: session_id_of(request.sample)} if self._sends_session else {}
        try:
            answer = await self._prepared_call.send(body, own_headers)
        except httpx2.TimeoutException as error:
            raise self.CLIENT_PACKAGE.APITimeoutError(request=self._prepared_call.request) from error
        except (httpx2.RequestError, ssl.SSLError) as error:
            raise self.CLIENT_PACKAGE.APIConnectionError(request=self._prepared_call.request) from error
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            response = answer.as_response(self._prepared_call.request)
            raise self._client._make_status_error_from_response(response)  # noqa: SLF001
        return answer

    async def close(self) -> None:
        if not self._is_shared:
            await close_client(self._client)

    async def complete(self, request: Request) -> Completion:
        """Make one attempt of a call, and return the answer.

        Raises:
            SeveralRefusedError: the server returns only one answer per call.
            TransientError: another attempt may succeed.
            ContextExceededError, RefusedError: the game ends with this result.
            ProviderRefusal: no call of the group can succeed or, if `of_one_call` is set, this call cannot.
        """
        with self._body_slots.slot() as slot:
            return await self._call_once(request, slot)

    async def _call_once(self, request: Request, slot: BodySlot, *, is_reloaded: bool = False) -> Completion:
        """Send one request, and return its answer.

        If the server no longer has the group's adapter, the adapter is loaded and the request sent once more.

        Raises:
            CallError, ProviderRefusal: the call failed.
        """
        started = time.monotonic()
        body = self._body(request, request.n if request.n > 1 else None)
        HELD_SLOT.set(slot)
        try:
            # The client's time-out restarts with each byte. This one limits the whole call.
            async with asyncio.timeout(self._settings.timeout):
                response = await self._send(body, request)
        except TimeoutError as error:
            server = self._settings.server_label(self._group)
            raise TransientError(f"no answer from {server} in {self._settings.timeout:g} s") from error
        except self.CLIENT_ERRORS as error:
            reload = None if is_reloaded else self._reload
            if reload is not None and is_not_found(error) and await reload(self._client, started):
                return await self._call_once(request, slot, is_reloaded=True)
            return await self._read_error(error, request, started)
        finally:
            HELD_SLOT.set(None)
        self._on_headers(response.headers)
        latency = _milliseconds_since(started)
        content, headers = response.content, response.headers
        altered = (SECRET_ALTERED,) if ALTERED in response.extensions else ()
        try:
            self._check_content(content)
            answer = read_completion(content, headers, request, self._settings, latency_ms=latency, altered=altered)
        except NipRunError as error:
            # Retries keep the error in memory while they wait, and its traceback would keep the whole answer.
            del response, content
            raise error.with_traceback(None) from None
        self._has_answered = True
        return answer

    async def _read_error(self, error: Any, request: Request, started: float) -> Completion:
        """Return an empty answer if the error says that the token limit was reached; otherwise raise the error.

        Raises:
            CallError, ProviderRefusal: the error has another reason.
        """
        status = answered_status(error)
        if status is not None:
            self._on_headers(error.response.headers)
            if request.n > 1 and refuses_n(status, error.body):
                message = f"{self._settings.server_label(self._group)} refuses n: {redacted(error.message)}"
                raise SeveralRefusedError(message, status=status) from None
            latency = _milliseconds_since(started)
            truncated_answer = truncated_answer_in(status, error.body, request, self._settings, latency)
            if truncated_answer is not None:
                return truncated_answer
            self._check_content(error.response.content, status)
        await self._check_scheme(error)
        raise map_client_error(error, self._settings, self._group) from without_secret_cause(error)

    def _check_content(self, content: bytes, status: int = HTTPStatus.OK) -> None:
        """Check that a server which has never answered does not send web pages or the like.

        Raises:
            TransientError: the server has sent few web pages, which may come from a proxy while the server starts.
            ProviderRefusal: the server keeps sending web pages, or the status shows that there is no model API.
        """
        description = None if self._has_answered else describe_content(content, status)
        if description is None:
            return
        self._wrong_answers += 1
        message = f"{self._settings.server_label(self._group)} is not a model API: it answers with {description}"
        if status < 300 and self._wrong_answers < MAX_WRONG_ANSWERS:
            raise TransientError(message)
        raise self._wrong_address(f"{message}\nThe address of an API usually ends in /v1.")

    async def _check_scheme(self, error: Exception) -> None:
        """Check after an error whether the scheme of the address is wrong, or the server does not speak HTTP.

        The scheme is tested once. Data other than HTTP count only after this test, because TLS servers send such data.

        Raises:
            ProviderRefusal: the scheme is wrong, or the server keeps sending data other than HTTP.
        """
        if self._has_answered:
            return
        problem = None
        if not self._is_scheme_tested and may_be_wrong_scheme(error, self._address):
            self._is_scheme_tested = True
            problem = await find_wrong_scheme(error, self._settings.server_url)
            self._has_right_scheme = problem is None
        if self._has_right_scheme and isinstance(error.__cause__, NotHttpError):
            self._wrong_answers += 1
            if self._wrong_answers >= MAX_WRONG_ANSWERS:
                problem = "the server does not answer with valid HTTP"
        if problem is not None:
            message = f"{self._settings.server_label(self._group)}: {problem}."
            raise self._wrong_address(message) from without_secret_cause(error)

    def _wrong_address(self, message: str) -> ProviderRefusal:
        key = f"models.{self._group}.base_url"
        return ProviderRefusal(f"{message} Correct {key}.", changes={key: None})


PROBE_SECONDS = 3.0
"""Time limit of a connection that finds out which protocol a port speaks."""
MAX_WRONG_ANSWERS = 3
"""The run stops if the first answers are this many web pages or the like. (A proxy may send one while it starts.)"""
_API_FIELDS = frozenset(("choices", "content", "error", "id", "model", "object", "type", "usage"))
"""Fields of a model API's answers. Even a damaged answer has one of them."""
_STATUSES_WITHOUT_API = (HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_FOUND)
"""Error statuses that show that the address has no API. (A proxy of a failed server sends others.)"""

_PROLOG = re.compile(rb"\A(\xef\xbb\xbf|\s+|<\?xml[^>]*>|<!--.*?-->)+", re.DOTALL)
"""Matches what may precede a page: a byte order mark, an XML declaration, comments."""


def describe_content(content: bytes, status: int = HTTPStatus.OK) -> str | None:
    """Describe an answer that no model API sends: a web page, other data, or nothing. Return None for other answers.

    An error page does not count, because a proxy of a failed server may have sent it.
    """
    start = _PROLOG.sub(b"", content[:4096])
    if start[:14].lower().startswith((b"<!doctype html", b"<html")):
        return "a web page (HTML)" if status < 300 or status in _STATUSES_WITHOUT_API else None
    if status >= 300:
        return None
    if start.startswith(b"{"):
        data, problem = parse_json(content)
        return None if problem or _API_FIELDS & data.keys() else "JSON that is not a completion"
    if not content.strip():
        return "an empty body"
    return "text that is not a JSON object" if start else None


_UNKNOWN_AUTHORITY = (18, 19, 20, 21)
"""OpenSSL's codes for certificates that are self-signed or have an unknown authority."""
_CERTIFICATE_ADVICE = "; if it is right, set SSL_CERT_FILE to a file with the certificate of its authority"


async def find_wrong_scheme(error: Exception, address: str) -> str | None:
    """Try the other scheme (http or https) at the server, and return the problem of the address; None if there is none.

    This sends no key and no prompt.
    """
    is_tls = address.startswith("https:")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = getattr(cause, "verify_message", "")  # aiohttp's subclass has none, but its cause does
            if reason:
                is_unknown = getattr(cause, "verify_code", None) in _UNKNOWN_AUTHORITY
                return f"the server's TLS certificate is not trusted ({reason})" + _CERTIFICATE_ADVICE * is_unknown
        cause = cause.__cause__ or cause.__context__
    if not await _speaks_http(address, with_tls=not is_tls):
        return None
    if is_tls:
        return "the server does not use TLS; write http:// instead of https://"
    return "the server only accepts TLS; write https:// instead of http://"


@asynccontextmanager
async def _connection(
    address: str, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    url = urlsplit(address)
    port = url.port or (443 if url.scheme == "https" else 80)
    async with asyncio.timeout(PROBE_SECONDS):
        reader, writer = await asyncio.open_connection(url.hostname, port, ssl=context)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()  # closing a TLS connection would wait for the server
            with suppress(OSError):
                await writer.wait_closed()


async def _speaks_http(address: str, *, with_tls: bool) -> bool:
    """Return whether the server completes a TLS handshake, or answers a plain request with HTTP."""
    context = None
    if with_tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    try:
        async with _connection(address, context) as (reader, writer):
            if with_tls:
                return True
            writer.write(b"HEAD / HTTP/1.0\r\n\r\n")
            return await reader.readexactly(5) == b"HTTP/"
    except (OSError, EOFError, TimeoutError):
        return False
