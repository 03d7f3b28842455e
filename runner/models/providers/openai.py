"""The one module that knows OpenAI's client: requests onto the wire, answers and errors back.

The client is the official one: it holds the key, the base URL and the headers, and it raises its own errors. Its
retries are off, because the spec's policy is the only one. Two things are left out that have no use here and
that cost more than all the rest: the walk over every message that converts typed parameters, and the building of
response models. The body is serialised once and the answer is read from its bytes. The transport is the
client's aiohttp one, whose pool does not slow down with the number of connections.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import aiohttp
import httpx2
import openai

from runner.errors import NipRunError, ProviderRefusal, RunError, SeveralRefusedError, TransientError
from runner.models.base import Completion, Request
from runner.models.providers.openai_body import request_body
from runner.models.providers.openai_wire import BASE_URL, classified, key_variable, read_completion, refuses_n, where
from runner.models.settings import ModelSettings

CONNECT_SECONDS = 10.0


def make_client(settings: ModelSettings, group: str, connections: int) -> openai.AsyncOpenAI:
    """The official client for one model group; it follows no redirect and reads no proxy from the environment.

    Raises:
        ProviderRefusal: the environment holds no key.
    """
    client = openai.AsyncOpenAI(
        api_key=_key(settings, group),
        base_url=settings.base_url or BASE_URL,
        max_retries=0,
        http_client=_LeanHttp(
            timeout=httpx2.Timeout(settings.timeout, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
            follow_redirects=False,
            trust_env=False,
        ),
    )
    _keep_from_other_servers(client, settings)
    return client


def make_sync_client(settings: ModelSettings, group: str) -> openai.OpenAI:
    """The client for the few slow calls beside the games, under the same rules.

    Raises:
        ProviderRefusal: the environment holds no key.
    """
    client = openai.OpenAI(
        api_key=_key(settings, group),
        base_url=settings.base_url or BASE_URL,
        max_retries=0,
        http_client=openai.DefaultHttpxClient(
            timeout=httpx2.Timeout(settings.timeout, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_keepalive_connections=0),  # the next call is minutes away
            follow_redirects=False,
            trust_env=False,
        ),
    )
    _keep_from_other_servers(client, settings)
    return client


def _keep_from_other_servers(client: openai.AsyncOpenAI | openai.OpenAI, settings: ModelSettings) -> None:
    """What the environment holds for OpenAI (organization, project, headers) is not for any other server."""
    if settings.base_url is not None:
        client.organization = client.project = None
        client._custom_headers = {}  # noqa: SLF001 - filled from OPENAI_CUSTOM_HEADERS, with no public way to refuse


class _LeanHttp(openai.DefaultAioHttpClient):
    """The client's aiohttp transport without httpx's work around it that our one kind of request has no use for.

    The client gives whole headers and an absolute address; merging both with defaults, and flows for redirects and
    authentication, are left out. Uploads of files, and all other bodies that are not plain bytes, go the long way.
    """

    _addresses: ClassVar[dict[str, httpx2.URL]] = {}

    def build_request(self, method: str, url: Any, **options: Any) -> httpx2.Request:
        content = options.get("content")
        if not isinstance(content, bytes) or options.get("params") or options.get("files"):
            return super().build_request(method, url, **options)
        address = self._addresses.get(url)
        if address is None:
            address = self._addresses[url] = httpx2.URL(url)
        timeout = options.get("timeout")
        extensions: dict[str, Any] = {"timeout": timeout.as_dict()} if isinstance(timeout, httpx2.Timeout) else {}
        request = httpx2.Request(
            method, address, headers=options.get("headers"), content=content, extensions=extensions
        )
        request.extensions["lean"] = True
        return request

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if not request.extensions.get("lean"):
            return await super().send(request, **options)
        response = await self._transport.handle_async_request(request)
        try:
            await response.aread()
        finally:
            await response.aclose()
        return response


def _key(settings: ModelSettings, group: str) -> str:
    variable = key_variable(settings)
    if variable is None:
        return "none"
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ProviderRefusal(
            f"models.{group}: the environment variable {variable} holds no key; set it, or name another with "
            f"models.{group}.api_key_env"
        )
    return key


def map_client_error(error: Exception, settings: ModelSettings, group: str) -> NipRunError:
    """Any error of the client, as the class of failure that it is."""
    here = where(settings, group)
    if isinstance(error, openai.APITimeoutError):
        return _unanswered(f"no answer from {here}", error)
    if isinstance(error, openai.APIConnectionError):
        return _unanswered(f"cannot reach {here}", error)
    if isinstance(error, openai.APIStatusError):
        return classified(error.status_code, error.body, error.response.headers, settings, group)
    return TransientError(f"the call to {here} failed: {error}")


def _unanswered(what: str, error: Exception) -> NipRunError:
    """A call without an answer; where this process can open no more files, that is no fault of the server's."""
    if _has_too_many_files(error):
        return RunError(
            "this process may open no more files; lower rollouts.concurrency or raise `ulimit -n`, and run the same "
            "command again: everything that was paid for is kept"
        )
    failure = TransientError(f"{what}: {error.__cause__ or error}")
    failure.unreachable = isinstance(error.__cause__, (httpx2.ConnectError, httpx2.ConnectTimeout))
    return failure


def _has_too_many_files(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__ or error.__context__
    return False


CLIENT_ERRORS = (openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError, aiohttp.ClientError, OSError, ValueError)
"""All that the client and its transport raise for a call; `aiohttp` lets its own errors for broken HTTP through."""


class OpenAiModel:
    """One model group on one server. `learn` is told the headers of every answer, errors included."""

    def __init__(
        self,
        settings: ModelSettings,
        group: str,
        connections: int,
        learn: Callable[[Mapping[str, str]], None] | None = None,
    ) -> None:
        self._settings = settings
        self._group = group
        self._learn = learn or (lambda _: None)
        self._client = make_client(settings, group, connections)
        # An absolute address spares the client the join with its base URL at each call.
        base = self._client.base_url
        self._address = str(base.copy_with(raw_path=base.raw_path + b"chat/completions"))
        self._key = str(uuid.uuid4())
        self._numbers = itertools.count()

    async def close(self) -> None:
        await self._client.close()

    def _options(self) -> Any:
        """What the client would make again for each call: deep copies of its defaults, and a random key.

        `security` is what its own `chat.completions.create` gives. The key that tells calls apart is in no header.
        """
        return {
            "headers": {},
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
        started = time.perf_counter()
        n = request.n if request.n > 1 else None
        body = request_body(self._settings, request.messages, n)
        try:
            # The client's own timeout starts again with each byte; a call as a whole has one end.
            async with asyncio.timeout(self._settings.timeout):
                response = await self._client.post(
                    self._address, content=body, cast_to=httpx2.Response, options=self._options()
                )
        except TimeoutError as error:
            here = where(self._settings, self._group)
            raise TransientError(f"no answer from {here} in {self._settings.timeout:g} s") from error
        except CLIENT_ERRORS as error:
            if isinstance(error, openai.APIStatusError):
                self._learn(error.response.headers)
                if n is not None and refuses_n(error.status_code, error.body):
                    said = f"{where(self._settings, self._group)} refuses n: {error.message}"
                    raise SeveralRefusedError(said, status=error.status_code) from error
            raise map_client_error(error, self._settings, self._group) from error
        self._learn(response.headers)
        latency = round((time.perf_counter() - started) * 1000, 3)
        return read_completion(response.content, response.headers, request, self._settings, latency_ms=latency)
