"""The edge: what goes to a server and what comes back, in bounds and without secrets.

One transport under OpenAI's client, for every call there is. It asks for bodies that are not packed, reads them in
pieces against their limits (see `bodies`), keeps no cookies, follows no redirect, and removes secrets (see `redaction`)
from headers and bodies before anybody sees them. A body that was changed by this has `ALTERED` in its response's
extensions.
"""

from __future__ import annotations

import functools
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, ClassVar, Final

import aiohttp
import httpx2
from aiohttp.http_exceptions import ContentLengthError, HttpProcessingError

from runner.base.redaction import Redactor, current_redactor
from runner.models.providers.body_limits import (
    BodyError,
    BodySlots,
    OnePlace,
    TooLongError,
    read_body,
    read_start,
    read_to,
)

CONNECT_SECONDS = 10.0
CLOSE_SECONDS = 5.0
MAX_ANSWER_BYTES = 32 << 20
MAX_ERROR_BYTES = 64 << 10
"""What is read of an error; the rest is of no use to anybody."""
MAX_FILE_BYTES = 4 << 30
"""A file of results goes to disk."""
USUAL_FILE_BYTES = 256 << 20
"""How long a file of results may take to come is reckoned by this size."""
PIECE = 64 << 10
MAX_LINE_BYTES: Final = 16 << 10
MAX_UNASKED: Final = 8
MAX_HEADERS: Final = 128
"""Of one answer; a line of a head has at most `MAX_LINE_BYTES`."""

ALTERED: Final = "nip_run_altered"
TO_DISK: Final = "nip_run_to_disk"
HELD_PLACE: ContextVar[OnePlace | None] = ContextVar("held_place", default=None)
"""The place for the body of this task's call, held by whoever parses it; without one it is given back here."""
FILE: Final = "nip_run_file"
LEAN: Final = "nip_run_lean"


_BROKEN: Final = (aiohttp.ClientPayloadError, aiohttp.ClientResponseError, HttpProcessingError)
"""What `aiohttp` raises over what a server sends. Their texts quote its first 100 bytes, be they half a key."""


class UnreadableError(httpx2.ReadError):
    """An answer came whose body cannot be taken."""


class UnsendableError(ValueError):
    """A request that cannot go out as it is: no server has seen it."""


class TooLargeError(UnreadableError):
    """An answer came that is larger than any is allowed to be."""


class DiskError(OSError):
    """This machine has no room for a file that a server sends."""


class _OnDisk:
    """A file without a name in the temporary folder, whose failures are told from the server's."""

    def __init__(self) -> None:
        with _disk_errors():
            self.file = tempfile.TemporaryFile()  # noqa: SIM115 - whoever asked for it closes it

    def write(self, data: bytes) -> None:
        with _disk_errors():
            self.file.write(data)

    def flush(self) -> None:
        with _disk_errors():
            self.file.flush()


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskError(f"cannot keep a file of results in the temporary folder: {error.strerror}") from error


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    """Made once: reading the certificates takes as long as many calls."""
    return httpx2.create_ssl_context(trust_env=False)


class _Connector(aiohttp.TCPConnector):
    """Connections of which none is used again that the server has sent something on unasked.

    Those bytes would be read as the answer to the next request. What comes in the very moment in which the next request
    goes out cannot be told from its answer.
    """

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the library's
    ) -> aiohttp.connector.Connection:
        for _ in range(MAX_UNASKED):
            connection = await super().connect(req, traces, timeout)
            if connection.protocol is None or not connection.protocol.should_close:
                return connection
            connection.close()
        raise aiohttp.ClientConnectionError("the server sends answers before it is asked")


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """Connections to one server by aiohttp, whose pool does not slow down with their number."""

    def __init__(self, connections: int, places: BodySlots) -> None:
        self._connections, self._places = connections, places
        self._session: aiohttp.ClientSession | None = None
        self._redactor: Redactor | None = None

    def _open(self) -> aiohttp.ClientSession:
        self._session = aiohttp.ClientSession(
            connector=_Connector(limit=self._connections, ssl=_ssl_context()),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            read_bufsize=PIECE,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
            max_headers=MAX_HEADERS,
        )
        return self._session

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        session = self._session or self._open()
        redactor = self._redactor
        if redactor is None:
            redactor = self._redactor = current_redactor()  # by the first call all keys of a spec have been read
        try:
            return await self._exchange(session, request, redactor)
        except aiohttp.ServerDisconnectedError:
            failed: httpx2.TransportError = httpx2.ConnectTimeout("Server disconnected")
        except aiohttp.ClientConnectionError as error:  # whatever keeps an answer from coming, a time-out included
            no_connection = isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))
            raise (NoConnectionError if no_connection else httpx2.ConnectTimeout)(str(error)) from error
        except _BROKEN as error:
            cut_off = isinstance(error.__cause__, ContentLengthError)  # whose text has nothing of the server's
            failed = httpx2.ReadError(
                str(error) if cut_off else f"what it sends is not HTTP, is damaged or cut off ({_root(error)})"
            )
        # Outside, so that the library's error is not held: it tells pieces of what came, and keys are found whole.
        raise failed

    async def _exchange(
        self, session: aiohttp.ClientSession, request: httpx2.Request, redactor: Redactor
    ) -> httpx2.Response:
        timeout = request.extensions.get("timeout", {})
        request.headers["accept-encoding"] = "identity"
        with _unsendable_told():
            answer = await session.request(
                request.method,
                str(request.url),
                headers=request.headers,
                data=_data(request),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    sock_connect=timeout.get("connect"), sock_read=timeout.get("read"), connect=timeout.get("pool")
                ),
            )
        try:
            return await self._read(answer, request, redactor)
        finally:
            # Closed and not given back where its body was not read to the end.
            answer.release() if answer.content.at_eof() else answer.close()

    async def _read(
        self, answer: aiohttp.ClientResponse, request: httpx2.Request, redactor: Redactor
    ) -> httpx2.Response:
        pieces = answer.content.iter_any()
        encoding = ",".join(answer.headers.getall("content-encoding", ()))
        extensions: dict[str, Any] = {}
        content = b""
        try:
            if answer.status >= 300:
                content = _clean_error(await read_start(pieces, encoding, MAX_ERROR_BYTES + redactor.reach), redactor)
            elif request.extensions.get(TO_DISK):
                disk = _OnDisk()
                try:
                    await read_to(pieces, encoding, MAX_FILE_BYTES, disk)
                    disk.flush()
                except BaseException:
                    with suppress(OSError):  # it tries to flush once more
                        disk.file.close()
                    raise
                extensions[FILE] = disk.file
            else:
                held = HELD_PLACE.get()
                with nullcontext(held) if held is not None else self._places.one() as place:
                    content = await read_body(pieces, encoding, MAX_ANSWER_BYTES, place)
                    cleaned = without_secrets(content, redactor)
                if cleaned is not content:
                    content, extensions[ALTERED] = cleaned, True
        except TooLongError as error:
            raise TooLargeError(f"its answer has {error}", request=request) from None
        except BodyError as error:
            raise UnreadableError(f"its answer is of no use: {error}", request=request) from None
        return httpx2.Response(
            answer.status, headers=_headers(answer, redactor), content=content, request=request, extensions=extensions
        )

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _root(error: BaseException) -> str:
    """The kind of the error that began it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__


def _data(request: httpx2.Request) -> Any:
    try:
        return request.content or None
    except httpx2.RequestNotRead:
        request.headers.pop("transfer-encoding", None)  # aiohttp's to say
        return _streamed(request)


async def _streamed(request: httpx2.Request) -> AsyncIterator[bytes]:
    assert isinstance(request.stream, httpx2.AsyncByteStream)
    async for piece in request.stream:
        yield piece


def _headers(answer: aiohttp.ClientResponse, redactor: Redactor) -> list[tuple[bytes, bytes]]:
    """The headers without secrets, and without those that the body as it is now would belie."""
    found = [
        (name, value)
        for name, value in answer.raw_headers
        if name.lower() not in (b"content-encoding", b"content-length", b"transfer-encoding", b"set-cookie")
    ]
    joined = b"\n".join([value for _, value in found])
    if not redactor.finds(joined) and b"earer" not in joined.lower():
        return found
    return [(name, redactor.text(value.decode("latin-1")).encode("utf-8")) for name, value in found]


def _clean_error(body: bytes, redactor: Redactor) -> bytes:
    """The start of an error's text without secrets; what is no text in it is of no use."""
    return redactor.start(body, MAX_ERROR_BYTES).encode("utf-8", "replace")


def without_secrets(body: bytes, redactor: Redactor) -> bytes:
    """An answer without secrets: the very same where it had none."""
    if redactor.finds(body):
        body = redactor.redact(body)
    return redactor.redact_escaped(body) if redactor.may_be_escaped(body) else body


@contextmanager
def _unsendable_told() -> Iterator[None]:
    """What aiohttp refuses to send: all that is wrong with an answer it raises as errors of its own."""
    try:
        yield
    except aiohttp.ClientConnectionError:  # such as a certificate that is not trusted, which is a ValueError too
        raise
    except ValueError as error:
        raise UnsendableError(str(error)) from error


class NoConnectionError(httpx2.ConnectTimeout):
    """No connection was made: no server is there, or none answers."""


class LeanHttp(httpx2.AsyncClient):
    """The client's HTTP without what our one kind of request has no use for.

    OpenAI's client gives whole headers and an absolute address; merging both with defaults, and flows for redirects and
    authentication, are left out. Uploads of files, and all other bodies that are not plain bytes, go the long way.
    """

    _addresses: ClassVar[dict[str, httpx2.URL]] = {}

    def __init__(self, timeout: float, connections: int, places: BodySlots) -> None:
        self._edge = AiohttpTransport(connections, places)
        super().__init__(
            transport=self._edge,
            timeout=httpx2.Timeout(timeout, connect=CONNECT_SECONDS),
            follow_redirects=False,
            trust_env=False,
        )

    def build_request(self, method: str, url: Any, **options: Any) -> httpx2.Request:
        content = options.get("content")
        if not isinstance(content, bytes) or options.get("params") or options.get("files"):
            request = super().build_request(method, url, **options)
            if request.method == "GET" and request.url.path.endswith("/content"):
                request.extensions[TO_DISK] = True
            return request
        address = self._addresses.get(url)
        if address is None:
            address = self._addresses[url] = httpx2.URL(url)
        timeout = options.get("timeout")
        extensions: dict[str, Any] = {LEAN: True}
        if isinstance(timeout, httpx2.Timeout):
            extensions["timeout"] = timeout.as_dict()
        return httpx2.Request(method, address, headers=options.get("headers"), content=content, extensions=extensions)

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.extensions.get(LEAN):
            return await self._edge.handle_async_request(request)
        return await super().send(request, **options)
