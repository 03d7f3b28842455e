"""The HTTP client for registry servers and the Hub, with limits on the time and size of answers.

It sends its token only to the server that it was created for, not to servers that this one redirects to.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import httpx2

from runner.base.errors import ReleaseError, errors_as
from runner.base.text import in_one_line, shortened
from runner.registry.transports.time_budget import TimeBudget, apply_time_budget
from runner.registry.transports.timeouts import BUSY_CODES, Timeouts, requested_wait

_FILE = "nip_run_file"
"""The key that marks requests for files. A file may have any size, because the caller limits what it reads."""


class TransferError(Exception):
    """Raised if a server's answer is refused.

    It is not an error of `httpx2`, because `huggingface_hub` would repeat the request after such an error.
    """


class ConnectionFailed(TransferError):
    """Raised if no complete answer arrived. The server may or may not have received the request."""


class HttpClient(httpx2.Client):
    """An HTTP client for one server, and for the servers that this one redirects to."""

    def __init__(
        self, base: str, timeouts: Timeouts, *, headers: Mapping[str, str] | None = None,
        follow_redirects: bool = False, trust_env: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(
            follow_redirects=follow_redirects, trust_env=trust_env, headers=headers,
            event_hooks={"request": [self._check_request], "response": [self._check_response]},
        )  # fmt: skip
        self.timeouts = timeouts
        self._base = httpx2.URL(base)
        self._time_budget = TimeBudget(timeouts, TransferError)
        apply_time_budget(self, self._time_budget)

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request, several times if the server is busy or the connection breaks, and return the last response.

        Raises:
            ConnectionFailed: there is no response.
            TransferError: the response is refused: too long, too slow, redirected or compressed.
        """
        attempts = self.timeouts.tries if self._is_repeatable(request) else 1
        for attempt in range(attempts):
            is_last = attempt + 1 == attempts
            requested_seconds = 0.0
            try:
                response = super().send(request, **options)
            except (httpx2.RequestError, httpx2.InvalidURL) as error:
                if is_last or not isinstance(error, httpx2.TransportError):
                    raise ConnectionFailed(self.explain_failure(request, error)) from error
            else:
                requested_seconds = requested_wait(response.headers)
                if response.status_code not in BUSY_CODES or is_last or requested_seconds > self.timeouts.longest_wait:
                    return response
                response.close()
            self.pause(attempt, requested_seconds)
        raise AssertionError("the last attempt returns or raises")

    def pause(self, attempt: int, min_seconds: float = 0.0) -> None:
        """Wait before the next attempt, twice as long after each attempt, and at least `min_seconds`."""
        self._time_budget.sleep(max(self.timeouts.wait * 2**attempt, min_seconds))

    def open_file(
        self, url: str, name: str, check: Callable[[httpx2.Response], object], headers: Mapping[str, str] | None = None
    ) -> IO[bytes]:
        """Open a file to read while it arrives.

        `name` is the start of error messages. `check` is called with the response, and raises if its status is bad.

        Raises:
            TransferError: the file cannot be read.
            Exception: any exception of `check`.
        """
        return io.BufferedReader(_RemoteFile(self, url, name, check, headers or {}), 1 << 16)

    def stream_file(self, url: str, headers: Mapping[str, str]) -> httpx2.Response:
        """Return the response with a file, whose content has not been read yet."""
        request = self.build_request("GET", url, headers=headers, extensions={_FILE: True})
        return self.send(request, stream=True)

    def explain_failure(self, request: httpx2.Request, error: Exception) -> str:
        """Return the error message for a request that got no response."""
        host, reason = request.url.netloc.decode("ascii", "replace"), in_one_line(str(error)[:200])
        if isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError):
            return f"cannot reach {host} ({reason}). Check the network and the address."
        if isinstance(error, httpx2.TooManyRedirects):
            return f"{host} redirects without end. Check the address."
        return f"the connection to {host} broke ({reason or type(error).__name__}); run the same command again"

    def _is_repeatable(self, request: httpx2.Request) -> bool:
        """Return whether a second request has no effect beyond that of the first."""
        return request.method != "PATCH"

    def _check_request(self, request: httpx2.Request) -> None:
        """Prepare each request, also after redirects: no token for other servers, no compression, and timeouts.

        Compressed answers are refused because a small one could become very large when it is decompressed.
        """
        if request.url.origin != self._base.origin:
            for name in ("authorization", "cookie"):
                request.headers.pop(name, None)
            if self._base.scheme == "https" and request.url.scheme != "https":
                raise TransferError(
                    f"the server redirects to {request.url.host} without TLS, which is not followed. Tell its operator."
                )
        request.headers["accept-encoding"] = "identity"
        timeout = httpx2.Timeout(self.timeouts.read, connect=self.timeouts.connect).as_dict()
        request.extensions = {**request.extensions, "timeout": timeout}

    def _check_response(self, response: httpx2.Response) -> None:
        """Check each response before its body is read, and limit the body."""
        if response.is_redirect and not self.follow_redirects:
            target = in_one_line(shortened(response.headers.get("location", ""), 200))
            raise TransferError(f"the server redirects to {target}. If that is the registry, use its address.")
        if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
            raise TransferError(
                f"the server answers in the encoding {encoding[:40]!r}, which was not requested. Tell its operator."
            )
        assert isinstance(response.stream, httpx2.SyncByteStream)
        if not (_FILE in response.request.extensions and response.status_code < 300):
            response.stream = _LimitedBody(response.stream, self.timeouts.answer_bytes)


class _LimitedBody(httpx2.SyncByteStream):
    """The body of a response up to a maximum size."""

    def __init__(self, stream: httpx2.SyncByteStream, limit: int) -> None:
        self._stream, self._limit = stream, limit

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for piece in self._stream:
            size += len(piece)
            if size > self._limit:
                raise TransferError(f"the server's answer is longer than {self._limit:,} bytes. Check the address.")
            yield piece

    def close(self) -> None:
        self._stream.close()


class _RemoteFile(io.RawIOBase):
    """A file that is read while it arrives. If the connection breaks, another request asks for the rest."""

    def __init__(
        self, client: HttpClient, url: str, name: str, check: Callable[[httpx2.Response], object],
        headers: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._client, self._url, self._name, self._check, self._headers = client, url, name, check, headers
        self._etag: str | None = None
        self._position = self._failures = 0
        self._rest = memoryview(b"")
        """Bytes that have arrived and that the caller has not read yet."""
        self._response: httpx2.Response | None = None  # also after an error, since Python closes discarded files
        self._request()

    def _request(self) -> None:
        """Request the file, or the rest of it after a broken connection."""
        range_headers = {"range": f"bytes={self._position}-", "if-range": self._etag or ""} if self._position else {}
        self._response = response = self._client.stream_file(self._url, {**self._headers, **range_headers})
        try:
            self._check(response)
            etag = response.headers.get("etag")
            if self._position and etag != self._etag:
                raise TransferError("the file changed while it was read; run the same command again")
        except BaseException:
            response.close()
            raise
        self._etag, self._pieces = etag, response.iter_raw()
        # A server without support for ranges sends the whole file again. Then skip the bytes that were read before.
        self._bytes_to_skip = self._position if response.status_code == 200 else 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with errors_as(ReleaseError, self._name, TransferError):
            while not self._rest:
                piece = self._next_piece()
                if piece is None:
                    return 0
                skipped_count = min(self._bytes_to_skip, len(piece))
                self._bytes_to_skip -= skipped_count
                if rest := memoryview(piece)[skipped_count:]:
                    self._rest, self._position, self._failures = rest, self._position + len(rest), 0
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def _next_piece(self) -> bytes | None:
        """Return the next bytes of the file, or None at its end; request the rest if the connection breaks."""
        while True:
            try:
                return next(self._pieces, None)
            except httpx2.RequestError as error:
                assert self._response is not None
                self._response.close()
                self._failures += 1
                if self._failures >= self._client.timeouts.tries:
                    raise ConnectionFailed(self._client.explain_failure(self._response.request, error)) from error
                self._client.pause(self._failures - 1)
                self._request()

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        super().close()
