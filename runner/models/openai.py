"""The one module that knows OpenAI's client: requests onto the wire, answers and errors back.

The client is the official one: it holds the key, the base URL and the headers, and it raises its own errors. Its
retries are off, because the spec's policy is the only one. Two things are left out that nobody here reads and
that cost more than all the rest: the walk over every message that converts typed parameters, and the building of
response models. The body is serialised once and the answer is read from its bytes. The transport is the
client's aiohttp one, whose pool does not slow down with the number of connections.
"""

from __future__ import annotations

import email.utils
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
import openai
import orjson

from runner.errors import ContextExceededError, NipRunError, ProviderRefusal, RefusedError, TransientError
from runner.models.base import (
    Choice,
    Completion,
    Request,
    Usage,
    estimated_prompt_tokens,
    estimated_tokens,
)
from runner.models.openai_body import request_body
from runner.models.settings import ModelSettings
from runner.text import clean

BASE_URL = "https://api.openai.com/v1"
CONNECT_SECONDS = 10.0
MAX_ANSWER_BYTES = 32 << 20

BILLING = frozenset(
    (
        "insufficient_quota",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "billing_hard_limit_reached",
        "billing_not_active",
    )
)
POLICY = frozenset(("content_policy_violation", "content_filter", "invalid_prompt", "cyber_policy", "bio_policy"))
CONTEXT = frozenset(("context_length_exceeded", "string_above_max_length"))
_CONTEXT_WORDS = re.compile(
    r"maximum context length|context window|too many tokens|longer than the model", re.IGNORECASE
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class OpenAiModel:
    """One model group on one server."""

    def __init__(self, settings: ModelSettings, group: str, connections: int) -> None:
        self._settings = settings
        self._group = group
        self._client = openai.AsyncOpenAI(
            api_key=_key(settings, group),
            base_url=settings.base_url or BASE_URL,
            max_retries=0,
            http_client=openai.DefaultAioHttpClient(
                timeout=httpx2.Timeout(settings.timeout, connect=CONNECT_SECONDS),
                limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
                follow_redirects=False,
                trust_env=False,
            ),
        )

    async def close(self) -> None:
        await self._client.close()

    async def complete(self, request: Request) -> Completion:
        """Ask once.

        Raises:
            TransientError: worth asking again.
            ContextExceededError, RefusedError: the outcome of the game.
            ProviderRefusal: no call of this run can succeed.
        """
        started = time.perf_counter()
        try:
            response = await self._client.post(
                "/chat/completions", content=request_body(self._settings, request.messages), cast_to=httpx2.Response
            )
        except openai.APITimeoutError as error:
            raise TransientError(f"no answer from {self._where()}: {error.__cause__ or error}") from error
        except openai.APIConnectionError as error:
            raise TransientError(f"cannot reach {self._where()}: {error.__cause__ or error}") from error
        except openai.APIStatusError as error:
            raise self._classified(error.status_code, error.body, error.response.headers) from error
        except (openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError) as error:
            raise TransientError(f"the call to {self._where()} failed: {error}") from error
        latency = (time.perf_counter() - started) * 1000
        return self._completion(response, request, latency)

    def _completion(self, response: httpx2.Response, request: Request, latency: float) -> Completion:
        if len(response.content) > MAX_ANSWER_BYTES:
            raise TransientError(f"{self._where()} sent {len(response.content)} bytes")
        try:
            data = orjson.loads(response.content)
        except orjson.JSONDecodeError as error:
            start = clean(response.text[:60])
            raise TransientError(f"{self._where()} sent no JSON ({error}): {start!r}") from error
        if not isinstance(data, dict):
            raise TransientError(f"{self._where()} sent JSON that is no completion")
        if data.get("error"):
            code = data["error"].get("code") if isinstance(data["error"], dict) else None
            raise self._classified(code if isinstance(code, int) else 500, data["error"], response.headers)
        choices = tuple(_choices(data.get("choices")))
        if not choices:
            raise TransientError(f"{self._where()} sent a completion without choices")
        other = {name: value for name, value in data.items() if name not in ("choices", "model", "usage", "object")}
        model = data.get("model")
        return Completion(
            choices,
            model if isinstance(model, str) else self._settings.name,
            _usage(data.get("usage"), request, choices),
            latency,
            other,
        )

    def _where(self) -> str:
        return f"{self._settings.base_url or BASE_URL} ({self._group})"

    def _classified(self, status: int, body: object, headers: Mapping[str, str]) -> NipRunError:
        """One answer that is an error, as the class of failure that decides what happens next."""
        detail = body.get("error", body) if isinstance(body, dict) else {}
        detail = detail if isinstance(detail, dict) else {}
        code, kind = str(detail.get("code") or ""), str(detail.get("type") or "")
        message = clean(str(detail.get("message") or body or ""))[:500]
        said = f"{self._where()} answered {status}{f' {code}' if code else ''}: {message}"
        if code in CONTEXT or status == 413 or (status in (400, 422) and _CONTEXT_WORDS.search(message)):
            return ContextExceededError(said, status=status)
        if code in POLICY:
            return RefusedError(said, status=status)
        if status == 429 and (code in BILLING or kind in BILLING):
            return ProviderRefusal(
                f"{said}\nThe account has no money or quota left; top it up and run the same command again."
            )
        if status in (408, 409, 425, 429) or status >= 500:
            return TransientError(said, retry_after=retry_after(headers), status=status)
        return ProviderRefusal(f"{said}\n{self._advice(status, detail)}")

    def _advice(self, status: int, detail: Mapping[str, Any]) -> str:
        settings = self._settings
        if status == 401:
            variable = _key_variable(settings)
            held = f"The key in ${variable}" if variable else f"No key (models.{self._group}.api_key_env is null)"
            return f"{held} is not accepted."
        if status == 403:
            return "The key may not use this model, or not from here."
        if status == 404:
            return f"Check models.{self._group}.model ({settings.model!r}) and models.{self._group}.base_url."
        if detail.get("param"):
            return f"Change models.{self._group}.{detail['param']} in the spec."
        if 300 <= status < 400:
            return f"The server redirects, and a key is never sent on; correct models.{self._group}.base_url."
        return f"The server refuses the request as models.{self._group} makes it."


def _key_variable(settings: ModelSettings) -> str | None:
    return settings.api_key_env or ("OPENAI_API_KEY" if settings.base_url is None else None)


def _key(settings: ModelSettings, group: str) -> str:
    variable = _key_variable(settings)
    if variable is None:
        return "none"
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ProviderRefusal(
            f"models.{group}: the environment variable {variable} holds no key; set it, or name another with "
            f"models.{group}.api_key_env"
        )
    return key


def _choices(raw: object) -> list[Choice]:
    choices = []
    for item in raw if isinstance(raw, list) else ():
        message = item.get("message") if isinstance(item, dict) else None
        if isinstance(message, dict):
            text, refusal = message.get("content"), message.get("refusal")
            choices.append(
                Choice(
                    text if isinstance(text, str) else None,
                    item.get("finish_reason"),
                    refusal if isinstance(refusal, str) and refusal else None,
                )
            )
    return choices


def _usage(raw: object, request: Request, choices: Sequence[Choice]) -> Usage:
    if isinstance(raw, dict) and isinstance(raw.get("prompt_tokens"), int):
        details = raw.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else 0
        return Usage(raw["prompt_tokens"], int(raw.get("completion_tokens") or 0), int(cached or 0))
    answer = sum(estimated_tokens(choice.text or "") for choice in choices)
    return Usage(estimated_prompt_tokens(request.messages), answer, estimated=True)


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """How long the server asks to wait, in seconds, from its headers; None where it does not say."""
    try:
        if "retry-after-ms" in headers:
            return max(float(headers["retry-after-ms"]) / 1000, 0.0)
        if "retry-after" in headers:
            return max(float(headers["retry-after"]), 0.0)
    except ValueError:
        date = email.utils.parsedate_to_datetime(headers["retry-after"]) if "retry-after" in headers else None
        return max(date.timestamp() - (time.time() if now is None else now), 0.0) if date else None
    # The reset headers say when a bucket is full again, which is longer than needed: only an empty one counts.
    waits = [
        duration(headers.get(f"x-ratelimit-reset-{kind}", ""))
        for kind in ("requests", "tokens")
        if headers.get(f"x-ratelimit-remaining-{kind}") == "0"
    ]
    known = [wait for wait in waits if wait is not None]
    return max(known) if known else None


def duration(text: str) -> float | None:
    """`1m30s`, `12ms`, `6` into seconds."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = _DURATION.findall(text)
    return sum(float(number) * _SECONDS[unit] for number, unit in parts) if parts else None
