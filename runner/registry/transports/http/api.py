"""Requests to the HTTP API of a registry server (`nip-run serve`), for `HttpTransport` and `nip-run login`.

A server may be hostile, so each part of an answer is checked before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import httpx2
import orjson

from runner.base.errors import NotFoundError, ReleaseError, errors_as
from runner.base.hashing import SHA256
from runner.base.redaction import remember_secret
from runner.base.text import in_one_line, shortened
from runner.registry.transports.http.tokens import (
    REGISTRY_ENV,
    TOKEN_ENV,
    is_token_for_other_server,
    token_for,
)
from runner.registry.transports.http_client import ConnectionFailed, HttpClient, TransferError
from runner.registry.transports.interface import IndexedRelease
from runner.registry.transports.timeouts import Timeouts, requested_wait

_MAX_NOTES, _MAX_NOTE_CHARACTERS, _MAX_PROBLEMS = 20, 500, 50
_TIER = re.compile("recomputed|reproduced by [1-9][0-9]{0,5}")
"""Matches the levels of verification (tiers) that a server may add to the level that a run itself states."""
_MAX_NAME_CHARACTERS, _MAX_OWNERS = 100, 1_000
_ID = re.compile(r"[0-9a-f]{32}")
OPEN, CHECKING, PUBLISHED, NAME_TAKEN = "open", "checking", "published", "taken"
_STATES = (OPEN, CHECKING, PUBLISHED, NAME_TAKEN, "refused")
"""The states of an upload. `taken`: the server has another release with the same name and version."""


@dataclass(frozen=True)
class ApiResponse:
    """The answer to one request."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    data: bytes = b""
    wait: float = 0.0
    """The number of seconds that the server asks to wait before the next request."""

    @property
    def message(self) -> str:
        default = f"the server answers with HTTP {self.status}; check the address, or try again later"
        return in_one_line(shortened(str(self.body.get("message", default)), 500))

    @property
    def problems(self) -> Sequence[str]:
        problems = self.body.get("problems", [])
        shown_problems = problems[:_MAX_PROBLEMS] if isinstance(problems, list) else []
        return [in_one_line(shortened(str(problem), 1_000)) for problem in shown_problems]


class RegistryApi:
    """Requests to one server."""

    def __init__(self, base: str, timeouts: Timeouts, *, token: str | None = None) -> None:
        """If no token is given, use the one in the environment or the one that `nip-run login` stored."""
        self.timeouts = timeouts
        self.base = base
        self._token = token or token_for(base)
        self._has_other_token = token is None and is_token_for_other_server(base)
        headers = {"user-agent": "nip-run"}
        if self._token:
            remember_secret(self._token)  # a server could repeat it in an error message
            headers["authorization"] = f"Bearer {self._token}"
        # An address without https: is on this machine. A proxy cannot reach it, and could read the token.
        self._client = HttpClient(base, timeouts, headers=headers, trust_env=base.startswith("https:"))

    @property
    def token_hint(self) -> str:
        """The end of an error message about a refused request: why no token was sent, and what to do."""
        hint = f"; {TOKEN_ENV} is for {REGISTRY_ENV}, which is not this server" if self._has_other_token else ""
        return hint if self._token else f"{hint}; give a token: nip-run login {self.base}"

    def get_json(self, path: str, **options: Any) -> Mapping[str, object]:
        """Return the JSON of a successful answer. Raises: NotFoundError: status 404. ReleaseError: all other errors."""
        return self._check_status(self.request("GET", path, **options)).body

    def post(self, path: str, **options: Any) -> bytes:
        """Return the body of a successful answer. Raises: as `get_json`."""
        return self._check_status(self.request("POST", path, is_json=False, **options)).data

    def _check_status(self, response: ApiResponse) -> ApiResponse:
        if response.status == 404:
            raise NotFoundError(f"{self.base}: {response.message}")
        if response.status != 200:
            hint = self.token_hint if response.status == 401 else ""
            raise ReleaseError(f"{self.base}: {response.message}{hint}")
        return response

    def request(self, method: str, path: str, *, is_json: bool = True, **options: Any) -> ApiResponse:
        """Return the answer to a request, with any status. Raises: ReleaseError: the server cannot be reached."""
        with errors_as(ReleaseError, self.base, TransferError):
            return self._send(method, path, is_json=is_json, **options)

    def send_piece(self, path: str, data: bytes, offset: int) -> ApiResponse | None:
        """Send a piece of a file, without another attempt. Return the answer, or None if the connection broke.

        If the connection broke, the server may have received a part of the piece.
        """
        headers = {"upload-offset": str(offset), "content-type": "application/octet-stream"}
        try:
            return self._send("PATCH", path, content=data, headers=headers)
        except ConnectionFailed:
            return None
        except TransferError as error:
            raise ReleaseError(f"{self.base}: {error}") from error

    def _send(self, method: str, path: str, *, is_json: bool = True, **options: Any) -> ApiResponse:
        """Return the answer to a request. Raises: TransferError: it failed, or a successful answer is not JSON."""
        response = self._client.request(method, f"{self.base}/api/v1{path}", **options)
        body: Any = {}
        if (is_json or not response.is_success) and response.content:
            try:
                body = orjson.loads(response.content)
            except orjson.JSONDecodeError:
                if response.is_success:
                    raise TransferError("no nip-run registry answers at this address; check the address") from None
        wait = min(requested_wait(response.headers), self.timeouts.longest_wait)
        return ApiResponse(response.status_code, body if isinstance(body, dict) else {}, response.content, wait)

    def open_file(self, path: str) -> IO[bytes]:
        """Open a file of the registry to read. Raises: NotFoundError: it does not exist. ReleaseError: other errors."""

        def check(response: httpx2.Response) -> None:
            if response.status_code == 404:
                raise NotFoundError(f"{self.base} has no file {path}")
            if response.status_code not in (200, 206):
                raise ReleaseError(
                    f"{self.base}: {path}: the server answers with HTTP {response.status_code}; try again later"
                )

        with errors_as(ReleaseError, self.base, TransferError):
            return self._client.open_file(f"{self.base}/api/v1/tree/{path}", path, check)

    def close(self) -> None:
        self._client.close()


@dataclass(frozen=True)
class UploadStatus:
    """The server's report about an upload."""

    id: str
    state: str
    """One of `_STATES`."""
    resume_offsets: Mapping[str, int]
    """The files to send, by hash, with the number of bytes that the server already has. Complete files are not here."""
    notes: Sequence[str]
    problems: Sequence[str]

    @classmethod
    def from_response(cls, response: ApiResponse, sizes: Mapping[str, int], address: str) -> UploadStatus:
        """Parse an answer of the server at `address`. `sizes` has the size of each file of the upload, by its hash.

        Raises:
            ReleaseError: the answer is invalid.
        """
        upload, state = response.body.get("id"), response.body.get("state")
        if not isinstance(upload, str) or not _ID.fullmatch(upload) or state not in _STATES:
            raise ReleaseError(f"unexpected answer to the upload request. Is {address} a nip-run registry?")
        resume_offsets: dict[str, int] = {}
        for item in read_list(response.body, "missing", address):
            sha256, size = (item.get("sha256"), item.get("have")) if isinstance(item, dict) else (None, None)
            if not isinstance(sha256, str) or sha256 not in sizes or sha256 in resume_offsets:
                raise ReleaseError(f"{address} asks for a file that is not part of the upload; tell its operator")
            if type(size) is not int or not 0 <= size <= sizes[sha256]:
                raise ReleaseError(
                    f"{address} claims to have {shortened(repr(size))} of the {sizes[sha256]:,} bytes of a file; tell "
                    "its operator"
                )
            resume_offsets[sha256] = size
        notes = read_list(response.body, "notes", address)[:_MAX_NOTES] if "notes" in response.body else []
        messages = [in_one_line(shortened(str(note), _MAX_NOTE_CHARACTERS)) for note in notes]
        return cls(upload, state, resume_offsets, messages, response.problems)


def parse_account(body: Mapping[str, object], address: str) -> tuple[str, list[str]] | None:
    """Return the account of a token, and the owners that this account may publish as; None if the token is unknown.

    Raises:
        ReleaseError: the answer of the server at `address` is invalid.
    """
    account = body.get("account")
    if account is None:
        return None
    owners = read_list(body, "owners", address)
    if not isinstance(account, str) or any(not isinstance(owner, str) for owner in owners):
        raise ReleaseError(f"unexpected answer about the token. Is {address} a nip-run registry?")
    name, owner_names = shortened(account, _MAX_NAME_CHARACTERS), owners[:_MAX_OWNERS]
    return name, [shortened(owner, _MAX_NAME_CHARACTERS) for owner in owner_names]


def parse_release(item: Any, address: str) -> IndexedRelease:
    """Parse a release in a server's list. Raises: ReleaseError: the entry is invalid."""
    values = item if isinstance(item, dict) else {}
    folder, sha256, yanked = values.get("folder"), values.get("sha256"), values.get("yanked")
    if (
        not isinstance(folder, str)
        or not isinstance(yanked, str | None)
        or not isinstance(sha256, str)
        or not SHA256.fullmatch(sha256)
    ):
        entry = in_one_line(shortened(repr(item), 200))
        raise ReleaseError(
            f"{address}: the server's list of releases has an invalid entry: {entry}. Check that the address is that "
            "of a nip-run registry, or tell its operator"
        )
    stated_tier = values.get("tier")
    tier = stated_tier if isinstance(stated_tier, str) and _TIER.fullmatch(stated_tier) else ""
    reason = None if yanked is None else yanked.encode("utf-8", "replace")
    return IndexedRelease(folder, sha256, reason, values.get("signed") is True, tier)


def read_list(body: Mapping[str, object], key: str, address: str) -> list[Any]:
    """Return the list under a key of an answer. Raises: ReleaseError: there is no such list."""
    value = body.get(key)
    if not isinstance(value, list):
        raise ReleaseError(f"the server's answer has no list {key!r}. Is {address} a nip-run registry?")
    return value
