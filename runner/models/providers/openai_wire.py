"""The wire format without the client: answers and errors of any OpenAI-compatible server into ours."""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from runner.errors import ContextExceededError, NipRunError, ProviderRefusal, RefusedError, TransientError
from runner.models.answers import body_of, choices_of, model_of, usage_of
from runner.models.base import Choice, Completion, Request, Usage, estimated_prompt_tokens, estimated_tokens
from runner.models.providers.lenient_json import SECRET_ALTERED, mended, parsed
from runner.models.settings import ModelSettings
from runner.redaction import Redactor, current_redactor, has_escapes, redacted
from runner.text import escape_controls

BASE_URL = "https://api.openai.com/v1"

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


def where(settings: ModelSettings, group: str) -> str:
    """A server and model group, for messages."""
    return f"{settings.base_url or BASE_URL} ({group})"


def read_completion(
    content: bytes,
    headers: Mapping[str, str],
    request: Request,
    settings: ModelSettings,
    *,
    latency_ms: float,
    altered: tuple[str, ...] = (),
) -> Completion:
    """The body of an answer with status 200 as a completion; `altered` is what was changed in it already.

    Raises:
        TransientError: it is not a completion.
        NipRunError: it is an error all the same, classified as one.
    """
    group = request.group
    here = where(settings, group)
    data, problem = parsed(content)
    if problem:
        whole, changed = mended(content, current_redactor())
        if whole is not None:
            content, (data, problem) = whole, parsed(whole)
            altered = tuple(dict.fromkeys((*changed, *altered)))
    if problem:
        start = escape_controls(current_redactor().start(content, 60))
        raise TransientError(f"{here} sent no JSON ({problem}): {start!r}")
    if not isinstance(data, dict):
        raise TransientError(f"{here} sent JSON that is no completion")
    if data.get("error"):
        code = data["error"].get("code") if isinstance(data["error"], dict) else None
        raise classified(code if isinstance(code, int) else 500, data["error"], headers, settings, group)
    cleaned = _searched(content, data, current_redactor()) if has_escapes(content) else content
    if cleaned is not content:
        content, data = cleaned, orjson.loads(cleaned)
        altered = tuple(dict.fromkeys((*altered, SECRET_ALTERED)))
    choices = choices_of(data)
    if not choices:
        raise TransientError(f"{here} sent a completion without choices")
    return Completion(
        choices,
        model_of(data) or settings.name,
        usage_of(data) or _estimated(request, choices),
        latency_ms,
        altered=altered,
        body=body_of(content, data),
    )


def _searched(content: bytes, data: Any, redactor: Redactor) -> bytes:
    """JSON with escapes without what is a secret once they are undone: the very same where there is none."""
    try:
        plain = orjson.dumps(data)
    except (TypeError, RecursionError):  # nested deeper than the library writes
        return redactor.redact_escaped(content)
    return redactor.redact(plain) if redactor.finds(plain) else content


def _estimated(request: Request, choices: Sequence[Choice]) -> Usage:
    answer = sum(estimated_tokens(choice.text or "") for choice in choices)
    return Usage(estimated_prompt_tokens(request.messages), answer, estimated=True)


def error_detail(body: object) -> dict[str, Any]:
    """The `error` object of an error's body."""
    detail = body.get("error", body) if isinstance(body, dict) else {}
    return detail if isinstance(detail, dict) else {}


def refuses_n(status: int, body: object) -> bool:
    """Whether a server refuses to give several answers to one request."""
    detail = error_detail(body)
    return status in (400, 422) and (detail.get("param") == "n" or "'n'" in str(detail.get("message", "")))


def classified(
    status: int, body: object, headers: Mapping[str, str], settings: ModelSettings, group: str
) -> NipRunError:
    """One answer that is an error, as the class of failure that decides what happens next."""
    detail = error_detail(body)
    code, kind = (escape_controls(redacted(_as_text(detail.get(name) or "")))[:100] for name in ("code", "type"))
    message = escape_controls(redacted(_as_text(detail.get("message") or body or "")))[:500]
    said = f"{where(settings, group)} answered {status}{f' {code}' if code else ''}: {message}"
    if code in CONTEXT or status == 413 or (status in (400, 422) and _CONTEXT_WORDS.search(message)):
        return ContextExceededError(said, status=status)
    if code in POLICY:
        return RefusedError(said, status=status)
    if status == 429 and (code in BILLING or kind in BILLING):
        return ProviderRefusal(
            f"{said}\nThe account has no money or quota left; top it up and run the same command again."
        )
    if status in (408, 409, 425, 429) or status >= 500 or not 300 <= status < 500:
        return TransientError(said, retry_after=retry_after(headers), status=status)
    return ProviderRefusal(f"{said}\n{_advice(status, detail, settings, group)}")


def _as_text(value: object) -> str:
    try:
        return str(value)
    except (RecursionError, ValueError):  # lists in lists in lists, a number of thousands of digits
        return f"a {type(value).__name__} that cannot be shown"


def _advice(status: int, detail: Mapping[str, Any], settings: ModelSettings, group: str) -> str:
    if status == 401:
        variable = settings.key_variable
        held = f"The key in ${variable}" if variable else f"No key (models.{group}.api_key_env is null)"
        return f"{held} is not accepted."
    if status == 403:
        return "The key may not use this model, or not from here."
    if status == 404:
        return f"Check models.{group}.model ({settings.model!r}) and models.{group}.base_url."
    if detail.get("param"):
        return f"Change models.{group}.{escape_controls(redacted(_as_text(detail['param'])))[:100]} in the spec."
    if 300 <= status < 400:
        return f"The server redirects, and a key is never sent on; correct models.{group}.base_url."
    return f"The server refuses the request as models.{group} makes it."


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """How long the server asks to wait, in seconds, from its headers; None where it does not say."""
    milliseconds = _seconds(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after", "")
    seconds = _seconds(text)
    if seconds is not None:
        return seconds
    with suppress(ValueError, OverflowError):  # no date, or none that there is
        date = email.utils.parsedate_to_datetime(text).timestamp()
        return max(date - (time.time() if now is None else now), 0.0)
    # The reset headers say when a bucket is full again, which is longer than needed: only an empty one counts.
    waits = [
        duration(headers.get(f"x-ratelimit-reset-{kind}", ""))
        for kind in ("requests", "tokens")
        if headers.get(f"x-ratelimit-remaining-{kind}") == "0"
    ]
    known = [wait for wait in waits if wait is not None]
    return max(known) if known else None


def _seconds(text: str) -> float | None:
    """A number of a header; None where it is none, or none that one can wait for."""
    try:
        number = float(text)
    except ValueError:
        return None
    return max(number, 0.0) if math.isfinite(number) else None


def duration(text: str) -> float | None:
    """`1m30s`, `12ms`, `6` into seconds."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return _seconds(text)
    parts = _DURATION.findall(text)
    whole = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return whole if parts and math.isfinite(whole) else None
