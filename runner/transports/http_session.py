"""The one HTTP client of a registry's server: bounded waits, bounded answers, and a token that goes nowhere else.

A redirect is not followed: whoever is sent on is told where to, and a token never leaves for another place.
"""

from __future__ import annotations

import io
import ipaddress
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import httpx2
import orjson

from runner.errors import NotPublished, ReleaseError, UsageError
from runner.text import in_one_line, shortened

TOKEN = "NIP_RUN_TOKEN"  # noqa: S105 - a name
"""The token for the registry of `NIP_RUN_REGISTRY`, and for no other."""
REGISTRY = "NIP_RUN_REGISTRY"

_BUSY = (408, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Patience:
    """How long a server is waited for, in seconds, and how much it may say."""

    connect: float = 10.0
    read: float = 60.0
    tries: int = 5
    wait: float = 0.5
    """Before the second try; then twice as long each time."""
    longest_wait: float = 30.0
    check_again: float = 0.2
    """Between two questions whether an upload is checked."""
    answer_bytes: int = 64 << 20


@dataclass(frozen=True)
class Answer:
    """What a server said to one request."""

    status: int
    body: dict[str, Any] = field(default_factory=dict)

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


def place_of(address: str) -> str:
    """An address of a server as it is written everywhere: without a slash at its end.

    Raises:
        UsageError: no server can be there, or it is far away and without TLS.
    """
    try:
        url = httpx2.URL(address)
    except httpx2.InvalidURL as error:
        raise UsageError(f"no registry can be at {shortened(address, 200)!r}: {error}") from error
    if url.userinfo or "@" in address:
        raise UsageError("the address of a registry has no user and no password; a token is given by NIP_RUN_TOKEN")
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise UsageError(f"no registry can be at {shortened(address, 200)!r}; write https://HOST")
    if url.scheme == "http" and not _is_loopback(url.host):
        raise UsageError(
            f"{shortened(address, 200)!r} has no TLS, so that anybody on the way reads and writes; write https://"
        )
    return str(url).rstrip("/")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def token_for(base: str) -> str | None:
    """The token that belongs to a server; None where none does."""
    said, meant = os.environ.get(TOKEN, ""), os.environ.get(REGISTRY, "")
    if not said or not meant.startswith(("http://", "https://")):
        return None
    try:
        return said if place_of(meant) == base else None
    except UsageError:
        return None


class HttpSession:
    """Connections to one server."""

    def __init__(self, base: str, patience: Patience) -> None:
        self.patience = patience
        self._base = base
        self._token = token_for(base)
        headers = {"accept-encoding": "identity", "user-agent": "nip-run"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        timeout = httpx2.Timeout(patience.read, connect=patience.connect)
        self._client = httpx2.Client(follow_redirects=False, headers=headers, timeout=timeout)

    @property
    def token_hint(self) -> str:
        if self._token:
            return ""
        return f"; set {TOKEN}, which is given to the registry of {REGISTRY} alone"

    def json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """What a question is answered with.

        Raises:
            NotPublished, ReleaseError: it is not answered so.
        """
        answer = self.ask(method, path, **options)
        if answer.status == 404:
            raise NotPublished(f"{self._base}: {answer.message}")
        if answer.status != 200:
            raise ReleaseError(f"{self._base}: {answer.message}{self.token_hint if answer.status == 401 else ''}")
        return answer.body

    def ask(self, method: str, path: str, **options: Any) -> Answer:
        """A request that may be repeated, until it is answered.

        Raises:
            ReleaseError: it is not.
        """
        wait = self.patience.wait
        for left in reversed(range(self.patience.tries)):
            try:
                answer, asked = self._once(method, path, **options)
            except httpx2.HTTPError as error:
                if not left:
                    raise ReleaseError(self._broken(error)) from error
                asked = 0.0
            else:
                if answer.status not in _BUSY or not left or asked > self.patience.longest_wait:
                    return answer
            time.sleep(max(wait, asked))
            wait *= 2
        raise AssertionError("the last try returns or raises")

    def send(self, path: str, data: bytes, offset: int) -> Answer | None:
        """Send a piece once; None where the connection broke, so that nobody knows how much arrived."""
        headers = {"upload-offset": str(offset), "content-type": "application/octet-stream"}
        try:
            return self._once("PATCH", path, content=data, headers=headers)[0]
        except httpx2.HTTPError:
            time.sleep(self.patience.wait)
            return None

    def _once(self, method: str, path: str, **options: Any) -> tuple[Answer, float]:
        with self._client.stream(method, f"{self._base}/api/v1{path}", **options) as response:
            pieces, size = [], 0
            for piece in response.iter_raw():
                size += len(piece)
                if size > self.patience.answer_bytes:
                    raise ReleaseError(f"{self._base}: its answer is longer than {self.patience.answer_bytes:,} bytes")
                pieces.append(piece)
        self._check_redirect(response)
        try:
            body = orjson.loads(b"".join(pieces)) if pieces else {}
        except orjson.JSONDecodeError:
            body = {}
            if response.is_success:
                raise ReleaseError(f"{self._base} does not answer as a registry of nip-run does") from None
        said = response.headers.get("retry-after", "")
        return Answer(response.status_code, body if isinstance(body, dict) else {}), float(
            said
        ) if said.isdecimal() else 0.0

    def _check_redirect(self, response: httpx2.Response) -> None:
        if response.is_redirect:
            to = in_one_line(shortened(response.headers.get("location", ""), 200))
            raise ReleaseError(f"{self._base} sends on to {to}; if that is the registry, name its address")

    def file(self, path: str, shown: str) -> IO[bytes]:
        """A file to read as it arrives.

        Raises:
            NotPublished: there is none.
            ReleaseError: it cannot be read.
        """
        wait = self.patience.wait
        for left in reversed(range(self.patience.tries)):
            try:
                response = self._client.send(
                    self._client.build_request("GET", f"{self._base}/api/v1{path}"), stream=True
                )
            except httpx2.HTTPError as error:
                if not left:
                    raise ReleaseError(self._broken(error)) from error
            else:
                if response.status_code == 200:
                    return io.BufferedReader(_Arriving(response, f"{self._base}: {shown}"), 1 << 16)
                response.close()
                self._check_redirect(response)
                if response.status_code == 404:
                    raise NotPublished(f"{self._base} has no file {shown}")
                if response.status_code not in _BUSY or not left:
                    raise ReleaseError(f"{self._base}: {shown}: it answers with {response.status_code}")
            time.sleep(wait)
            wait *= 2
        raise AssertionError("the last try returns or raises")

    def _broken(self, error: Exception) -> str:
        if isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError):
            return (
                f"cannot reach {self._base} ({in_one_line(str(error))}); is there a network, and does the server run?"
            )
        return f"the connection to {self._base} broke ({in_one_line(str(error)[:200])}); run the same command again"

    def close(self) -> None:
        self._client.close()


class _Arriving(io.RawIOBase):
    """A file as it arrives: each byte as it was sent, nothing unpacked."""

    def __init__(self, response: httpx2.Response, what: str) -> None:
        self._response, self._what = response, what
        self._pieces: Iterator[bytes] = response.iter_raw()
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            try:
                piece = next(self._pieces, None)
            except httpx2.HTTPError as error:
                raise ReleaseError(f"{self._what}: the connection broke ({in_one_line(str(error)[:200])})") from error
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
