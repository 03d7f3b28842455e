"""The wire format without the client: answers and errors of any OpenAI-compatible server into ours."""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from runner.errors import ContextExceededError, NipRunError, ProviderRefusal, RefusedError, TransientError
from runner.models.base import Choice, Completion, Request, Usage, estimated_prompt_tokens, estimated_tokens
from runner.models.providers.lenient_json import SECRET_ALTERED, parsed, read_json
from runner.models.settings import ModelSettings
from runner.redaction import Redactor, current_redactor, has_escapes, redacted
from runner.text import escape_controls

BASE_URL = "https://api.openai.com/v1"
MAX_COUNT = 1 << 40
MAX_OTHER_BYTES = 64 << 10
MAX_REASON = 200
MARGIN = 32
"""So many levels deeper than it came must an answer's field be writable: records and tables put it into theirs."""

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
        data, problem, changed = read_json(content, current_redactor())
        altered = tuple(dict.fromkeys((*changed, *altered)))
    if problem:
        start = escape_controls(current_redactor().start(content, 60))
        raise TransientError(f"{here} sent no JSON ({problem}): {start!r}")
    if not isinstance(data, dict):
        raise TransientError(f"{here} sent JSON that is no completion")
    if data.get("error"):
        code = data["error"].get("code") if isinstance(data["error"], dict) else None
        raise classified(code if isinstance(code, int) else 500, data["error"], headers, settings, group)
    choices = tuple(_choices(data.get("choices")))
    if not choices:
        raise TransientError(f"{here} sent a completion without choices")
    other = _other(data)
    model = data.get("model")
    completion = Completion(
        choices,
        model if isinstance(model, str) else settings.name,
        _usage(data.get("usage"), request, choices),
        latency_ms,
        other=other,
        altered=altered,
    )
    return _searched(completion, current_redactor()) if has_escapes(content) else completion


def _searched(completion: Completion, redactor: Redactor) -> Completion:
    """A completion whose texts were spelled in escapes, without what is a secret now that they are undone."""

    def clean(text: str | None) -> str | None:
        return text if text is None else redactor.redact(text.encode()).decode()

    cleaned = replace(
        completion,
        choices=tuple(Choice(*map(clean, (c.text, c.finish_reason, c.refusal))) for c in completion.choices),
        model=clean(completion.model) or "",
        other={} if redactor.finds(orjson.dumps(completion.other)) else completion.other,
    )
    if cleaned == completion:
        return completion
    return replace(cleaned, altered=tuple(dict.fromkeys((*completion.altered, SECRET_ALTERED))))


def _other(data: Mapping[str, Any]) -> dict[str, Any]:
    """The other fields of an answer, for the journal; none of them where they do not fit into it."""
    other = {name: value for name, value in data.items() if name not in ("choices", "model", "usage", "object")}
    deeper: Any = other
    for _ in range(MARGIN):
        deeper = [deeper]
    try:
        return other if len(orjson.dumps(deeper)) <= MAX_OTHER_BYTES else {}
    except (TypeError, ValueError, RecursionError):
        return {}


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


def _choices(raw: object) -> list[Choice]:
    choices = []
    for item in raw if isinstance(raw, list) else ():
        message = item.get("message") if isinstance(item, dict) else None
        if isinstance(message, dict):
            text, refusal, reason = message.get("content"), message.get("refusal"), item.get("finish_reason")
            choices.append(
                Choice(
                    text if isinstance(text, str) else None,
                    reason if reason is None else _as_text(reason)[:MAX_REASON],
                    refusal if isinstance(refusal, str) and refusal else None,
                )
            )
    return choices


def _usage(raw: object, request: Request, choices: Sequence[Choice]) -> Usage:
    if isinstance(raw, dict) and _count(raw.get("prompt_tokens")) is not None:
        details = raw.get("prompt_tokens_details")
        cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
        prompt = _count(raw["prompt_tokens"]) or 0
        answer = _count(raw.get("completion_tokens"))
        return Usage(prompt, answer or 0, min(cached or 0, prompt), estimated=answer is None)
    answer = sum(estimated_tokens(choice.text or "") for choice in choices)
    return Usage(estimated_prompt_tokens(request.messages), answer, estimated=True)


def _count(value: object) -> int | None:
    """A number of tokens; None for whatever else a server sends."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT else None


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
