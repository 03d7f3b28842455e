"""The one HTTP client that `huggingface_hub` is given: it waits a bounded time, takes bounded answers, keeps the token.

`huggingface_hub` asks its session for everything, waits for answers without an end, and retries on its own; here each
request is retried in one place, a token goes to the endpoint alone, and nothing is unpacked on the way.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any

import httpx2

from runner.registry.transports.timeouts import BUSY, Timeouts, asked_to_wait
from runner.registry.transports.transfer_rate import TransferRate, set_pace

_FILE = "nip_run_file"
"""Marks a request for a file, which may be of any size: whoever reads it says when it is enough."""


class HubFault(Exception):
    """The Hub does not answer, or not as a Hub does. Not an error of `httpx2`, so nothing else retries it."""


class HubClient(httpx2.Client):
    """A session for `huggingface_hub.set_client_factory`."""

    def __init__(self, endpoint: str, patience: Timeouts) -> None:
        super().__init__(
            follow_redirects=True, event_hooks={"request": [self._before], "response": [self._after]},
            headers={"accept-encoding": "identity"},
        )  # fmt: skip
        self._endpoint = httpx2.URL(endpoint)
        self._patience = patience
        self._pace = TransferRate(patience, HubFault)
        self.question = _Question()
        set_pace(self, self._pace)

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        wait = self._patience.wait
        for left in reversed(range(self._patience.tries)):
            asked = 0.0
            try:
                response = super().send(request, **options)
            except (httpx2.RequestError, httpx2.InvalidURL) as error:
                if request.method == "PUT" and isinstance(error, httpx2.TransportError):
                    raise  # huggingface_hub rewinds the file, and retries it
                if not left or not _repeatable(request) or not isinstance(error, httpx2.TransportError):
                    raise HubFault(_broken(request, error)) from error
            else:
                if response.status_code not in BUSY:
                    return response
                if request.method == "PUT":
                    for name in ("retry-after", "ratelimit"):  # it would wait for as long as they say
                        response.headers.pop(name, None)
                    return response
                asked = asked_to_wait(response.headers)
                response.close()
                if not left or not _repeatable(request) or asked > self._patience.longest_wait:
                    raise HubFault(_busy(request, response.status_code, asked))
            self._pace.sleep(max(wait, asked))
            wait *= 2
        raise AssertionError("the last try returns or raises")

    def request(self, method: str, url: Any, *, data: Any = None, **options: Any) -> httpx2.Response:
        """What `huggingface_hub` gives as data is a file, which this kind of client calls content."""
        if hasattr(data, "read"):
            return super().request(method, url, content=data, **options)
        return super().request(method, url, data=data, **options)

    def file(self, url: str, headers: dict[str, str]) -> httpx2.Response:
        """Ask for a file, whose bytes are still to be read."""
        request = self.build_request("GET", url, headers=headers, extensions={_FILE: True})
        return self.send(request, stream=True)

    def _before(self, request: httpx2.Request) -> None:
        """Each request, those that follow redirects too."""
        self.question.requests += request.method in ("GET", "HEAD")
        if self.question.requests > self._patience.requests:
            raise HubFault(f"it takes more than {self._patience.requests:,} requests, such as pages of a listing")
        if request.url.origin != self._endpoint.origin:
            for name in ("authorization", "cookie"):
                request.headers.pop(name, None)
            if self._endpoint.scheme == "https" and request.url.scheme != "https":
                raise HubFault(f"it sends us on to {request.url.host} without TLS; nothing is read from there")
        request.headers["accept-encoding"] = "identity"
        patience = self._patience
        timeout = httpx2.Timeout(patience.read, connect=patience.connect).as_dict()
        request.extensions = {**request.extensions, "timeout": timeout}

    def _after(self, response: httpx2.Response) -> None:
        """Each answer, before its body is read."""
        if (how := response.headers.get("content-encoding", "identity")) != "identity":
            response.close()
            raise HubFault(f"it answers in the encoding {how[:40]!r}, which nobody asked for")
        is_file = _FILE in response.request.extensions and response.status_code < 300
        assert isinstance(response.stream, httpx2.SyncByteStream)
        if not is_file:
            response.stream = _Bounded(response.stream, self._patience.answer_bytes)


class _Question(threading.local):
    """How many requests the current question of a thread has taken."""

    requests = 0


class _Bounded(httpx2.SyncByteStream):
    """The body of an answer, as long as it is not too long."""

    def __init__(self, stream: httpx2.SyncByteStream, most: int) -> None:
        self._stream = stream
        self._most = most

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for piece in self._stream:
            size += len(piece)
            if size > self._most:
                raise HubFault(f"its answer is longer than {self._most:,} bytes")
            yield piece

    def close(self) -> None:
        self._stream.close()


class HubFile(io.RawIOBase):
    """A file of the Hub as it arrives: each byte as it was sent, nothing unpacked."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._pieces = response.iter_raw()
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            try:
                piece = next(self._pieces, None)
            except httpx2.RequestError as error:
                raise HubFault(_broken(self._response.request, error)) from error
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def close(self) -> None:
        self._response.close()
        super().close()


def _repeatable(request: httpx2.Request) -> bool:
    """Whether to ask twice is to ask once."""
    path = request.url.path
    return request.method in ("GET", "HEAD") or "/preupload/" in path or path.endswith("/info/lfs/objects/batch")


def _host(request: httpx2.Request) -> str:
    return request.url.netloc.decode("ascii", "replace")


def _broken(request: httpx2.Request, error: Exception) -> str:
    host = _host(request)
    if isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError):
        return f"cannot reach {host} ({error}); is there a network, and is HF_ENDPOINT right?"
    if isinstance(error, httpx2.TimeoutException):
        return f"{host} does not answer; try again later"
    if isinstance(error, httpx2.TooManyRedirects):
        return f"{host} sends us on, again and again"
    return f"the connection to {host} broke ({str(error)[:200]}); run the same command again"


def _busy(request: httpx2.Request, status: int, asked: float) -> str:
    then = f"; it asks to wait {asked:,.0f} s" if asked else ""
    what = "has had too many requests from here" if status == 429 else "is not able to answer"
    return f"{_host(request)} {what} (HTTP {status}){then}; run the same command again later"
