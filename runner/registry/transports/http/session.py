"""The one HTTP client of a registry's server: bounded waits, bounded answers, and a token that goes nowhere else.

A redirect is not followed: whoever is sent on is told where to, and a token never leaves for another place.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import httpx2
import orjson

from runner.base.errors import NotPublished, ReleaseError
from runner.base.redaction import remember
from runner.base.text import in_one_line, shortened
from runner.registry.transports.http.tokens import REGISTRY, TOKEN, is_for_another, token_for
from runner.registry.transports.timeouts import BUSY, Timeouts, asked_to_wait
from runner.registry.transports.transfer_rate import TransferRate, set_pace


@dataclass(frozen=True)
class HttpAnswer:
    """What a server said to one request."""

    status: int
    body: dict[str, Any] = field(default_factory=dict)
    data: bytes = b""

    @property
    def message(self) -> str:
        return in_one_line(shortened(str(self.body.get("message", f"it answers with {self.status}")), 500))

    @property
    def problems(self) -> Sequence[str]:
        found = self.body.get("problems", [])
        return [in_one_line(shortened(str(one), 1_000)) for one in found[:50]] if isinstance(found, list) else []

    def number(self, key: str) -> int:
        """Raises: ReleaseError: it says none."""
        found = self.body.get(key)
        if type(found) is not int or found < 0:
            raise ReleaseError(f"its answer has no {key}; is this a registry of nip-run?")
        return found


class HttpSession:
    """Connections to one server."""

    def __init__(self, base: str, patience: Timeouts, *, token: str | None = None) -> None:
        """`token` in place of the one that belongs to the server."""
        self.patience = patience
        self._base = base
        self._token = token or token_for(base)
        self._has_another = token is None and is_for_another(base)
        headers = {"accept-encoding": "identity", "user-agent": "nip-run"}
        if self._token:
            remember(self._token)  # no error that a server writes shows it
            headers["authorization"] = f"Bearer {self._token}"
        timeout = httpx2.Timeout(patience.read, connect=patience.connect)
        # Without TLS a proxy of the environment would read the token; and it does not lead to this machine anyway.
        self._client = httpx2.Client(
            follow_redirects=False, headers=headers, timeout=timeout, trust_env=base.startswith("https:")
        )
        self._pace = TransferRate(patience, lambda message: ReleaseError(f"{base}: {message}"))
        set_pace(self._client, self._pace)

    @property
    def token_hint(self) -> str:
        other = f"; {TOKEN} is set, and is for {REGISTRY}, which is not this server" if self._has_another else ""
        return other if self._token else f"{other}; give a token: nip-run login {self._base}"

    def json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """What a question is answered with.

        Raises:
            NotPublished, ReleaseError: it is not answered so.
        """
        return self._good(self.ask(method, path, **options)).body

    def data(self, method: str, path: str, **options: Any) -> bytes:
        """`json`, where the answer is none."""
        return self._good(self.ask(method, path, raw=True, **options)).data

    def _good(self, answer: HttpAnswer) -> HttpAnswer:
        if answer.status == 404:
            raise NotPublished(f"{self._base}: {answer.message}")
        if answer.status != 200:
            raise ReleaseError(f"{self._base}: {answer.message}{self.token_hint if answer.status == 401 else ''}")
        return answer

    def ask(self, method: str, path: str, *, raw: bool = False, **options: Any) -> HttpAnswer:
        """A request that may be repeated, until it is answered.

        Raises:
            ReleaseError: it is not.
        """
        wait = self.patience.wait
        for left in reversed(range(self.patience.tries)):
            try:
                answer, asked = self._once(method, path, raw=raw, **options)
            except httpx2.HTTPError as error:
                if not left:
                    raise ReleaseError(self._broken(error)) from error
                asked = 0.0
            else:
                if answer.status not in BUSY or not left or asked > self.patience.longest_wait:
                    return answer
            self._pace.sleep(max(wait, asked))
            wait *= 2
        raise AssertionError("the last try returns or raises")

    def send(self, path: str, data: bytes, offset: int) -> tuple[HttpAnswer | None, float]:
        """Send a piece once, and for how long the server asks to be waited for.

        None where the connection broke, so that nobody knows how much arrived.
        """
        headers = {"upload-offset": str(offset), "content-type": "application/octet-stream"}
        try:
            answer, asked = self._once("PATCH", path, content=data, headers=headers)
        except httpx2.HTTPError:
            return None, 0.0
        return answer, min(asked, self.patience.longest_wait)

    def _once(self, method: str, path: str, *, raw: bool = False, **options: Any) -> tuple[HttpAnswer, float]:
        with self._client.stream(method, f"{self._base}/api/v1{path}", **options) as response:
            pieces, size = [], 0
            for piece in response.iter_raw():
                size += len(piece)
                if size > self.patience.answer_bytes:
                    raise ReleaseError(f"{self._base}: its answer is longer than {self.patience.answer_bytes:,} bytes")
                pieces.append(piece)
        self._check_redirect(response)
        data = b"".join(pieces)
        body: Any = {}
        if not (raw and response.is_success):
            try:
                body = orjson.loads(data) if data else {}
            except orjson.JSONDecodeError:
                if response.is_success:
                    raise ReleaseError(f"{self._base} does not answer as a registry of nip-run does") from None
        return HttpAnswer(response.status_code, body if isinstance(body, dict) else {}, data), asked_to_wait(
            response.headers
        )

    def _check_redirect(self, response: httpx2.Response) -> None:
        if response.is_redirect:
            to = in_one_line(shortened(response.headers.get("location", ""), 200))
            raise ReleaseError(f"{self._base} sends on to {to}; if that is the registry, name its address")

    def file(self, path: str, shown: str) -> IO[bytes]:
        """A file to read as it arrives; where it is cut off, it is gone on with from there.

        Raises:
            NotPublished: there is none.
            ReleaseError: it cannot be read.
        """
        url = f"{self._base}/api/v1{path}"
        return io.BufferedReader(_Arriving(self._file(url, shown, 0, None), self, url, shown), 1 << 16)

    def _file(self, url: str, shown: str, start: int, etag: str | None) -> httpx2.Response:
        """The answer with a file, from a byte on, of which nothing is read yet."""
        headers = {"range": f"bytes={start}-", "if-range": etag or ""} if start else {}
        wait = self.patience.wait
        for left in reversed(range(self.patience.tries)):
            try:
                response = self._client.send(self._client.build_request("GET", url, headers=headers), stream=True)
            except httpx2.HTTPError as error:
                if not left:
                    raise ReleaseError(self._broken(error)) from error
            else:
                if response.status_code == 200 or (start and response.status_code == 206):
                    return response
                response.close()
                self._check_redirect(response)
                if response.status_code == 404:
                    raise NotPublished(f"{self._base} has no file {shown}")
                if response.status_code not in BUSY or not left:
                    raise ReleaseError(f"{self._base}: {shown}: it answers with {response.status_code}")
            self._pace.sleep(wait)
            wait *= 2
        raise AssertionError("the last try returns or raises")

    def _broken(self, error: Exception) -> str:
        why = in_one_line(str(error)[:200])
        if isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError):
            return f"cannot reach {self._base} ({why}); is there a network, and does the server run?"
        return f"the connection to {self._base} broke ({why}); run the same command again"

    def close(self) -> None:
        self._client.close()


class _Arriving(io.RawIOBase):
    """A file as it arrives: each byte as it was sent, nothing unpacked."""

    def __init__(self, response: httpx2.Response, session: HttpSession, url: str, shown: str) -> None:
        self._session, self._url, self._shown = session, url, shown
        self._etag = response.headers.get("etag")
        self._at = 0
        self._cut = 0
        """How often it was cut off since something last arrived."""
        self._rest = memoryview(b"")
        self._take(response)

    def _take(self, response: httpx2.Response) -> None:
        self._response = response
        # Whoever does not know of ranges sends all of it again.
        self._skipped = self._at if response.status_code == 200 else 0
        self._pieces: Iterator[bytes] = response.iter_raw()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            try:
                piece = next(self._pieces, None)
            except httpx2.HTTPError as error:
                self._go_on(error)
                continue
            if piece is None:
                return 0
            again = min(self._skipped, len(piece))
            self._skipped -= again
            piece = piece[again:]
            if not piece:
                continue
            self._rest = memoryview(piece)
            self._at, self._cut = self._at + len(piece), 0
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def _go_on(self, error: httpx2.HTTPError) -> None:
        """Ask for what follows what is here, of the very same file."""
        self._response.close()
        self._cut += 1
        patience = self._session.patience
        if self._cut >= patience.tries:
            why = in_one_line(str(error)[:200])
            raise ReleaseError(f"{self._shown}: the connection broke ({why}); run the same command again") from error
        self._session._pace.sleep(min(patience.wait * 2 ** (self._cut - 1), patience.longest_wait))  # noqa: SLF001
        again = self._session._file(self._url, self._shown, self._at, self._etag)  # noqa: SLF001 - its own
        if again.headers.get("etag") != self._etag:
            again.close()
            raise ReleaseError(f"{self._shown}: it became another while it was read") from error
        self._take(again)

    def close(self) -> None:
        self._response.close()
        super().close()
