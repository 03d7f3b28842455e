"""The HTTP transport below the official clients, which limits the size of responses and removes secrets from them.

All calls use this transport. It requests uncompressed bodies, and reads them in pieces up to a limit (see
`runner.models.providers.body_limits`). It keeps no cookies, follows no redirects, and removes secrets (see
`runner.base.redaction`) from headers and bodies before any other code gets them. If it has changed a body, the
extensions of the response have the key `ALTERED`.
"""

from __future__ import annotations

import functools
import os
import select
import ssl
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import IO, Any, Final
from weakref import WeakSet

import aiohttp
import httpx2
from aiohttp.http_exceptions import BadStatusLine, ContentLengthError, HttpProcessingError
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from runner.base.errors import ProviderRefusal
from runner.base.redaction import Redactor, current_redactor
from runner.base.value_class import value_class
from runner.models.providers.body_limits import (
    BodyError,
    BodySlot,
    BodySlots,
    TooLongError,
    read_body,
    read_start,
    read_to_file,
)

CONNECT_SECONDS = 10.0
MAX_ANSWER_BYTES = 32 << 20
"""Maximum size of the body of an answer."""
MAX_ERROR_BYTES = 64 << 10
"""Maximum number of bytes to read from the body of an error."""
MAX_FILE_BYTES = 4 << 30
"""Maximum size of a file of batch results, which is stored on disk."""
USUAL_FILE_BYTES = 256 << 20
"""Assumed size of a file of batch results, for its time limit."""
BUFFER_BYTES = 64 << 10
"""Number of bytes of a body that the client buffers before it pauses the connection."""
MAX_LINE_BYTES: Final = 16 << 10
"""Maximum length of a header line of an answer."""
MAX_DROPPED_CONNECTIONS: Final = 8
"""Maximum number of idle connections to drop for one request; see `_Connector`."""
MAX_HEADERS: Final = 128
"""Maximum number of headers of an answer."""

ALTERED: Final = "nip_run_altered"
"""Key in a response's extensions. It exists if a secret was removed from the body."""
TO_DISK: Final = "nip_run_to_disk"
"""Key in a request's extensions. It exists if the response's body must be stored on disk."""
FILE: Final = "nip_run_file"
"""Key in a response's extensions, with the file that has the body."""
HELD_SLOT: ContextVar[BodySlot | None] = ContextVar("held_slot", default=None)
"""The slot for the body of the current task's call, if the caller keeps the slot until the body is parsed."""

_DATA_ERRORS: Final = (aiohttp.ClientPayloadError, aiohttp.ClientResponseError, HttpProcessingError)
"""Errors of `aiohttp` about a server's data. Their messages quote up to 100 bytes, which may contain part of a key."""


class UnreadableError(httpx2.ReadError):
    """Raised if the body of an answer cannot be read."""


class NotHttpError(httpx2.ReadError):
    """Raised if a server's data does not begin like an HTTP answer."""


class UnsendableError(ValueError):
    """Raised if a request cannot be sent because of its content."""


class TooLargeError(UnreadableError):
    """Raised if an answer is larger than the maximum."""


class DiskError(OSError):
    """Raised if this machine cannot store a file that a server sends."""


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Raise errors of the temporary file as `DiskError`, to distinguish them from errors of the connection."""
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"cannot store a file of batch results in the temporary folder {tempfile.gettempdir()}: {error.strerror}"
        ) from error


@functools.cache
def ssl_context() -> ssl.SSLContext:
    """Return the TLS context of all connections. It is created only once, because reading certificates takes long.

    It trusts the certificates of the system or, as in the official clients, those in SSL_CERT_FILE or SSL_CERT_DIR.

    Raises:
        ProviderRefusal: the file or folder in the variable cannot be read.
    """
    try:
        return httpx2.create_ssl_context()
    except OSError as error:
        name = "SSL_CERT_FILE" if os.environ.get("SSL_CERT_FILE") else "SSL_CERT_DIR"
        raise ProviderRefusal(
            f"cannot read certificates from {name}={os.environ.get(name)}: {error.strerror}. Correct or unset {name}"
        ) from error


class _Connector(aiohttp.TCPConnector):
    """A connection pool that drops an idle connection if the server has closed it or sent data without a request.

    Such data would otherwise be read as the answer to the next request.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._used: WeakSet[Any] = WeakSet()
        """The protocols of connections that have been used before."""

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the signature is the library's
    ) -> aiohttp.connector.Connection:
        for _ in range(MAX_DROPPED_CONNECTIONS):
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol is None:
                return connection
            if not (protocol.should_close or (protocol in self._used and _has_data(protocol))):
                self._used.add(protocol)
                return connection
            connection.close()
        raise aiohttp.ClientConnectionError("the server sends answers before it receives a request")


def _has_data(protocol: Any) -> bool:
    """Return whether the socket has data, or its end, that the event loop has not read yet."""
    socket = None if protocol.transport is None else protocol.transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))


Headers = CIMultiDict[str] | CIMultiDictProxy[str]
_DECODED_HEADERS: Final = frozenset({"content-encoding", "content-length", "transfer-encoding", "set-cookie"})
"""Headers that are wrong for a decompressed body, and cookies, which no client may store."""


@value_class(frozen=True, slots=True)
class Answer:
    """The answer to a request, without secrets."""

    status: int
    headers: Headers
    content: bytes
    extensions: dict[str, Any]

    def as_response(self, request: httpx2.Request) -> httpx2.Response:
        """Convert this answer to the type that the official clients expect."""
        headers = [
            (name.encode("utf-8", "surrogateescape"), value.encode("utf-8", "surrogateescape"))
            for name, value in self.headers.items()
            if name.lower() not in _DECODED_HEADERS
        ]
        return httpx2.Response(
            self.status, headers=headers, content=self.content, request=request, extensions=self.extensions
        )


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """Connections to one server, with aiohttp, whose pool stays fast with many connections."""

    def __init__(self, connections: int, body_slots: BodySlots) -> None:
        self._max_connections, self._body_slots = connections, body_slots
        self._session: aiohttp.ClientSession | None = None
        self._redactor: Redactor | None = None

    def _open(self) -> aiohttp.ClientSession:
        self._session = aiohttp.ClientSession(
            connector=_Connector(limit=self._max_connections, ssl=ssl_context()),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            read_bufsize=BUFFER_BYTES,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
            max_headers=MAX_HEADERS,
        )
        return self._session

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        timeout = request.extensions.get("timeout", {})
        answer = await self.exchange(
            request.method,
            str(request.url),
            request.headers,
            _request_data(request),
            aiohttp.ClientTimeout(
                sock_connect=timeout.get("connect"), sock_read=timeout.get("read"), connect=timeout.get("pool")
            ),
            to_disk=TO_DISK in request.extensions,
        )
        return answer.as_response(request)

    async def exchange(
        self,
        method: str,
        url: str | URL,
        headers: Any,
        data: Any,
        limits: aiohttp.ClientTimeout,
        *,
        to_disk: bool = False,
    ) -> Answer:
        """Send a request, and return its answer, even if the status is an error.

        Raises:
            httpx2.TransportError: there is no answer, or it cannot be read.
            UnsendableError: the request cannot be sent.
            DiskError: this machine cannot store the answer.
        """
        headers["accept-encoding"] = "identity"
        session = self._session or self._open()
        # All keys of a spec have been read before the first call, so the redactor knows them.
        redactor = self._redactor = self._redactor or current_redactor()
        try:
            try:
                answer = await session.request(
                    method, url, headers=headers, data=data, allow_redirects=False, timeout=limits
                )
            except aiohttp.ClientConnectionError:  # such as the error for an untrusted certificate, also a ValueError
                raise
            except ValueError as error:
                raise UnsendableError(str(error)) from error
            return await self._read(answer, redactor, to_disk=to_disk)
        except aiohttp.ServerDisconnectedError:
            failure: httpx2.TransportError = httpx2.ConnectTimeout("Server disconnected")
        except aiohttp.ClientConnectionError as error:  # no answer, for any reason, including a time-out
            is_unconnected = isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))
            message = str(error).replace(" ssl:default", "")  # aiohttp also says it of connections without TLS
            raise (NoConnectionError if is_unconnected else httpx2.ConnectTimeout)(message) from error
        except _DATA_ERRORS as error:
            failure = _read_error(error)
        # Raised outside of `except`, so that it does not refer to the library's error, which may quote half a key.
        raise failure

    async def _read(self, answer: aiohttp.ClientResponse, redactor: Redactor, *, to_disk: bool) -> Answer:
        """Read an answer up to its limit, and release its connection. Files go to the disk; errors are truncated."""
        pieces = answer.content.iter_any()
        encoding = ",".join(answer.headers.getall("content-encoding", ()))
        extensions: dict[str, Any] = {}
        content = b""
        try:
            if answer.status >= 300:
                start = await read_start(pieces, encoding, MAX_ERROR_BYTES + redactor.reach)
                content = redactor.redact_start(start, MAX_ERROR_BYTES).encode("utf-8", "replace")
            elif to_disk:
                extensions[FILE] = await _store_body(pieces, encoding)
            else:
                held_slot = HELD_SLOT.get()
                with nullcontext(held_slot) if held_slot is not None else self._body_slots.slot() as slot:
                    content = await read_body(pieces, encoding, MAX_ANSWER_BYTES, slot)
                    redacted_content = without_secrets(content, redactor)
                if redacted_content is not content:
                    content, extensions[ALTERED] = redacted_content, True
        except TooLongError as error:
            raise TooLargeError(f"the answer {error}") from None
        except BodyError as error:
            raise UnreadableError(f"the answer {error}") from None
        finally:
            # The connection can be reused only if the body was read to its end.
            answer.release() if answer.content.at_eof() else answer.close()
        return Answer(answer.status, _redacted_headers(answer.headers, redactor), content, extensions)

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


async def _store_body(pieces: AsyncIterable[bytes], encoding: str) -> IO[bytes]:
    """Return an unnamed temporary file with a body. The caller closes it.

    Raises:
        TooLongError, BodyError: see `read_body`.
        DiskError: this machine cannot store the body.
    """
    with _disk_errors():
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        await read_to_file(pieces, encoding, MAX_FILE_BYTES, _disk_errors()(file.write))
        _disk_errors()(file.flush)()
    except BaseException:
        with suppress(OSError):  # closing flushes once more
            file.close()
        raise
    return file


def _read_error(error: BaseException) -> httpx2.TransportError:
    """Return the error for an answer that is damaged or not HTTP."""
    if isinstance(error.__cause__, ContentLengthError):
        return httpx2.ReadError(str(error))  # this message does not quote the server
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    error_type = NotHttpError if isinstance(cause, BadStatusLine) else httpx2.ReadError
    return error_type(f"the answer is not HTTP, damaged or truncated ({type(cause).__name__})")


def _request_data(request: httpx2.Request) -> Any:
    try:
        return request.content or None
    except httpx2.RequestNotRead:
        request.headers.pop("transfer-encoding", None)  # aiohttp sets this header
        return _stream(request)


async def _stream(request: httpx2.Request) -> AsyncIterator[bytes]:
    assert isinstance(request.stream, httpx2.AsyncByteStream)
    async for piece in request.stream:
        yield piece


def _redacted_headers(headers: Headers, redactor: Redactor) -> Headers:
    joined = "\n".join(headers.values())
    if not redactor.contains(joined.encode("utf-8", "surrogateescape")) and "earer" not in joined.lower():
        return headers
    return CIMultiDict([(name, redactor.redact_text(value)) for name, value in headers.items()])


def without_secrets(body: bytes, redactor: Redactor) -> bytes:
    """Return an answer's body without secrets; `body` itself if there are none."""
    if redactor.contains(body):
        body = redactor.redact(body)
    return redactor.redact_escaped(body) if redactor.may_be_escaped(body) else body


class NoConnectionError(httpx2.ConnectTimeout):
    """Raised if no connection was established, because there is no server or it does not answer."""


class PreparedCall:
    """A POST request to one address, whose headers are prepared once and sent with different bodies."""

    def __init__(self, transport: AiohttpTransport, request: httpx2.Request, timeout: httpx2.Timeout) -> None:
        self.request = request
        """The request as the official client built it, for errors."""
        self._transport = transport
        self._url = URL(str(request.url))
        self._headers = CIMultiDict(request.headers.multi_items())
        self._limits = aiohttp.ClientTimeout(sock_connect=timeout.connect, sock_read=timeout.read, connect=timeout.pool)

    async def send(self, body: bytes, own_headers: Mapping[str, str]) -> Answer:
        """Send a body with the headers of this call only. Raises the errors of `AiohttpTransport.exchange`."""
        headers = self._headers.copy()
        headers["content-length"] = str(len(body))
        headers.update(own_headers)
        return await self._transport.exchange("POST", self._url, headers, body, self._limits)


class HttpLayer(httpx2.AsyncClient):
    """The HTTP client inside the official clients, which uses the transport of this module.

    Model calls go directly to `aiohttp_transport`. All other requests, such as uploads, use this client.
    """

    def __init__(self, timeout: float, connections: int, body_slots: BodySlots) -> None:
        self.aiohttp_transport = AiohttpTransport(connections, body_slots)
        super().__init__(
            transport=self.aiohttp_transport,
            timeout=httpx2.Timeout(timeout, connect=CONNECT_SECONDS),
            follow_redirects=False,
            trust_env=False,
        )

    def build_request(self, method: str, url: Any, **options: Any) -> httpx2.Request:
        request = super().build_request(method, url, **options)
        if request.method == "GET" and request.url.path.endswith("/content"):
            request.extensions[TO_DISK] = True
        return request
