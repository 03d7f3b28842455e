"""The provider `openai`. No other module imports OpenAI's client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import openai

from runner.models.headers import headers_of, key_of
from runner.models.interface import Request
from runner.models.providers.body_limits import BodySlots
from runner.models.providers.client_errors import TRANSPORT_ERRORS
from runner.models.providers.http_model import HttpModel, set_headers
from runner.models.providers.openai_body import chat_completions_body
from runner.models.providers.openai_http import HttpLayer, ssl_context
from runner.models.settings import ModelSettings

Client = openai.AsyncOpenAI
SyncClient = openai.OpenAI

CLIENT_ERRORS = (openai.OpenAIError, *TRANSPORT_ERRORS)
"""Errors that the client and its transport can raise for a call."""


def make_client(settings: ModelSettings, group: str, connections: int, body_slots: BodySlots | None = None) -> Client:
    """Create the official client for one model group. The clients of one server share its `body_slots`.

    Raises:
        ProviderRefusal: the environment variable of the key or of a header is empty, or its value is invalid.
    """
    headers = headers_of(settings, group)
    client = openai.AsyncOpenAI(
        api_key=key_of(settings, group),
        base_url=settings.server_url,
        max_retries=0,
        http_client=HttpLayer(settings.timeout, connections, body_slots or BodySlots()),
    )
    _configure(client, settings, headers)
    return client


def make_sync_client(settings: ModelSettings, group: str) -> SyncClient:
    """Create the official synchronous client for one model group, for users who call its server directly.

    Like the asynchronous client, it follows no redirects, and reads only the key, the headers and the certificates from
    the environment.

    Raises:
        ProviderRefusal: the environment variable of the key or of a header is empty, or its value is invalid.
    """
    headers = headers_of(settings, group)
    client = SyncClient(
        api_key=key_of(settings, group),
        base_url=settings.server_url,
        timeout=settings.timeout,
        max_retries=0,
        http_client=openai.DefaultHttpxClient(follow_redirects=False, trust_env=False, verify=ssl_context()),
    )
    _configure(client, settings, headers)
    return client


def _configure(client: Client | SyncClient, settings: ModelSettings, headers: Mapping[str, str]) -> None:
    if settings.base_url is not None:
        client.organization = client.project = None
    set_headers(client, settings, headers)


class OpenAiModel(HttpModel):
    """Calls one model group through the Chat Completions API."""

    CLIENT_PACKAGE: ClassVar[Any] = openai
    PATH = b"chat/completions"
    CLIENT_ERRORS = CLIENT_ERRORS
    make_client = staticmethod(make_client)

    def _body(self, request: Request, n: int | None) -> bytes:
        return chat_completions_body(self._settings, request.messages, request.schema, n=n)
