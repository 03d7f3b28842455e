"""The provider `anthropic`. No other module imports Anthropic's client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import anthropic

from runner.models.headers import headers_of, key_of
from runner.models.interface import Request
from runner.models.providers.anthropic_body import messages_body
from runner.models.providers.body_limits import BodySlots
from runner.models.providers.client_errors import TRANSPORT_ERRORS
from runner.models.providers.http_model import HttpModel, set_headers
from runner.models.providers.openai_http import HttpLayer
from runner.models.settings import ModelSettings

Client = anthropic.AsyncAnthropic


def make_client(settings: ModelSettings, group: str, connections: int, body_slots: BodySlots | None = None) -> Client:
    """Create the official client for one model group. The clients of one server share its `body_slots`.

    Raises:
        ProviderRefusal: the environment variable of the key or of a header is empty, or its value is invalid.
    """
    headers = headers_of(settings, group)
    client = anthropic.AsyncAnthropic(
        api_key=key_of(settings, group),
        base_url=settings.server_url.rstrip("/").removesuffix("/v1"),  # the client's paths start with /v1
        max_retries=0,
        http_client=HttpLayer(settings.timeout, connections, body_slots or BodySlots()),
        open_telemetry=False,
    )
    set_headers(client, settings, headers)
    return client


class AnthropicModel(HttpModel):
    """Calls one model group through the Messages API."""

    CLIENT_PACKAGE: ClassVar[Any] = anthropic
    PATH = b"v1/messages"
    CLIENT_ERRORS = (anthropic.AnthropicError, *TRANSPORT_ERRORS)
    make_client = staticmethod(make_client)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        on_headers = self._on_headers
        self._on_headers = lambda headers: on_headers(_rate_headers(headers))

    def _body(self, request: Request, n: int | None) -> bytes:
        del n  # the API returns one answer per call; see `ProviderTraits.gives_many`
        return messages_body(self._settings, request.messages, request.schema)


def _rate_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the rate limits in an answer's headers, under the names of OpenAI's headers."""
    requests = headers.get("anthropic-ratelimit-requests-limit", "")
    tokens = [headers.get(f"anthropic-ratelimit-{kind}-tokens-limit", "") for kind in ("input", "output")]
    rate_headers = {"x-ratelimit-limit-requests": requests}
    if all(text.isascii() and text.isdigit() for text in tokens):
        rate_headers["x-ratelimit-limit-tokens"] = str(sum(map(int, tokens)))
    return rate_headers
