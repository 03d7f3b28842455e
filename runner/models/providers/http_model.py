"""A model group on one server, called through an official client on the runner's own transport.

The client holds the key, the base URL and the headers, and raises its own errors. Its retries are off, because the
spec's policy is the only one. Two things are left out that cost more than all the rest: the client's walk over every
message, which converts typed parameters, and its response models. The body is serialized once and the answer is read
from its bytes. The transport is in `openai_http`.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, ClassVar

import httpx2

from runner.base.errors import NipRunError, ProviderRefusal, SeveralRefusedError, TransientError
from runner.base.redaction import redacted
from runner.models.headers import SESSION_ID
from runner.models.interface import Completion, Request, session_of
from runner.models.providers.answer_reader import read_completion
from runner.models.providers.body_limits import BodySlots, OnePlace
from runner.models.providers.client_errors import (
    answered_status,
    is_not_found,
    map_client_error,
    may_be_wrong_scheme,
    without_secret_cause,
)
from runner.models.providers.lenient_json import SECRET_ALTERED
from runner.models.providers.openai_errors import cut_at_limit, refuses_n
from runner.models.providers.openai_http import ALTERED, CLOSE_SECONDS, HELD_PLACE
from runner.models.providers.wrong_server import MAX_WEB_PAGES, find_wrong_scheme, what_it_is
from runner.models.settings import ModelSettings

Reload = Callable[[Any, float], Awaitable[bool]]
"""Has a server load a model that it lost; returns whether the server has it now."""


async def close_client(client: Any) -> None:
    """Close a client's connections; a connection that its server does not let go of is left to the system."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.close()


def set_headers(client: Any, settings: ModelSettings, headers: Mapping[str, str]) -> None:
    """Set a group's own headers. Those that the environment holds for the provider go to its own server only."""
    given: Mapping[str, Any] = {} if settings.base_url is not None else client._custom_headers  # noqa: SLF001
    own = {name.lower() for name in headers}
    client._custom_headers = {  # noqa: SLF001 - the client reads them from the environment, with no way to refuse
        **{name: value for name, value in given.items() if name.lower() not in own},
        **headers,
    }


def _milliseconds_since(started: float) -> float:
    """Return the time since then, to a tenth of a millisecond, as journals record it."""
    return round((time.perf_counter() - started) * 1000, 1)


class HttpModel(ABC):
    """Calls one model group on one server. Subclasses add the client, the path and the request body.

    `learn` gets the headers of every answer, errors included. A `client` that is given is shared, and is closed by
    whoever made it. `reload` is called if the server says that it has no such model, with the time of the call.
    """

    PATH: ClassVar[bytes]
    CLIENT_ERRORS: ClassVar[tuple[type[Exception], ...]]
    """Everything that the client and its transport raise for a call."""

    @staticmethod
    @abstractmethod
    def make_client(settings: ModelSettings, group: str, connections: int, places: BodySlots | None) -> Any:
        """Make the official client of a model group."""

    def __init__(
        self,
        settings: ModelSettings,
        group: str,
        connections: int,
        learn: Callable[[Mapping[str, str]], None] | None = None,
        places: BodySlots | None = None,
        *,
        client: Any = None,
        reload: Reload | None = None,
    ) -> None:
        self._settings = settings
        self._group = group
        self._learn = learn or (lambda _: None)
        self._places = places or BodySlots(connections)
        self._is_shared = client is not None
        self._reload = reload
        self._client = client or self.make_client(settings, group, connections, self._places)
        # An absolute address spares the client the join with its base URL at each call.
        base = self._client.base_url
        self._address = str(base.copy_with(raw_path=base.raw_path + self.PATH))
        self._sends_session = settings.sends_session_id
        self._has_answered = self._is_probed = False
        self._web_pages = 0

    @abstractmethod
    def _body(self, request: Request, n: int | None) -> bytes:
        """Return the exact bytes of a request's body."""

    def _options(self, request: Request) -> dict[str, Any]:
        """Return what the client would otherwise make for each call, with deep copies of its defaults."""
        return {
            "headers": {SESSION_ID: session_of(request.sample)} if self._sends_session else {},
            "params": {},
            "max_retries": 0,
            "timeout": self._client.timeout,
        }

    async def close(self) -> None:
        if not self._is_shared:
            await close_client(self._client)

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
        body = self._body(request, n)
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
        except self.CLIENT_ERRORS as error:
            failure: Any = error
            if (status := answered_status(failure)) is not None:
                self._learn(failure.response.headers)
                if n is not None and refuses_n(status, failure.body):
                    message = f"{self._settings.server_label(self._group)} refuses n: {redacted(failure.message)}"
                    raise SeveralRefusedError(message, status=status) from None
                cut = cut_at_limit(status, failure.body, request, self._settings, _milliseconds_since(started))
                if cut is not None:
                    return cut
                lost = is_not_found(error) and self._reload is not None and not is_again
                if lost and self._reload is not None and await self._reload(self._client, sent):
                    return await self._completed(request, place, is_again=True)
                self._check_web_page(failure.response.content, status)
            await self._check_scheme(error)
            raise map_client_error(error, self._settings, self._group) from without_secret_cause(error)
        finally:
            HELD_PLACE.set(None)
        self._learn(response.headers)
        latency = _milliseconds_since(started)
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
