"""What a server says in the place of an answer, as the class of failure that decides what happens next."""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from runner.base.errors import (
    ContextExceededError,
    MalformedError,
    NipRunError,
    ProviderRefusal,
    RefusedError,
    TransientError,
)
from runner.base.redaction import redacted
from runner.base.text import escape_controls
from runner.models.answers import as_text
from runner.models.interface import Choice, Completion, Request, Usage, estimated_prompt_tokens
from runner.models.providers import error_phrases as words
from runner.models.settings import ModelSettings

BILLING = frozenset(
    (
        "insufficient_quota",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "billing_hard_limit_reached",
        "billing_not_active",
        "budget_exceeded",
    )
)
POLICY = frozenset(
    (
        "content_policy_violation",
        "content_filter",
        "invalid_prompt",
        "cyber_policy",
        "bio_policy",
        "ResponsibleAIPolicyViolation",
        "data_inspection_failed",
    )
)
CONTEXT = frozenset(("context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded"))
NO_MODEL = frozenset(("model_not_found", "unknown_model", "model_decommissioned", "DeploymentNotFound"))
TOO_LONG = "string_above_max_length"
"""Of a message it is the prompt that is too long, of another parameter it is the spec's."""

MAX_READ = 20_000
"""Characters of what a server says in which words are looked for."""

_SAID_WITH = (400, 413, 422, 500, 502, 503)
"""Statuses with which servers and proxies say in words what is wrong with one request."""

_OF_MESSAGES = re.compile(r"(?:messages|prompt|input|contents)(?:\W.*|_tokens)?", re.DOTALL)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def error_detail(body: object) -> dict[str, Any]:
    """The `error` object of an error's body."""
    detail = body.get("error", body) if isinstance(body, dict) else {}
    return detail if isinstance(detail, dict) else {}


def refuses_n(status: int, body: object) -> bool:
    """Whether a server refuses to give several answers to one request."""
    return status in _SAID_WITH and (_param(error_detail(body)) == "n" or _Told.of(status, body).says(words.SEVERAL))


@dataclass(frozen=True)
class _Told:
    """What one answer that is an error says; the texts are the server's own, and nothing is removed from them."""

    status: int
    codes: frozenset[str]
    """Its code, its type, and those that it gives for what is behind it."""
    param: str
    message: str
    """What the user is told."""
    text: str
    """What words are looked for in."""

    @classmethod
    def of(cls, status: int, body: object) -> _Told:
        detail = error_detail(body)
        found = detail.get("detail")
        message = detail.get("message") or (found if isinstance(found, str) else None) or body or ""
        behind = _part(detail, "metadata").get("raw")
        told = f"{as_text(message)}: {as_text(behind)}" if behind else as_text(message)
        return cls(status, _codes(detail), _param(detail), told, words.without_echo(told[:MAX_READ]))

    def says(self, pattern: re.Pattern[str], statuses: Collection[int] = _SAID_WITH) -> bool:
        return self.status in statuses and pattern.search(self.text) is not None

    @property
    def is_of_messages(self) -> bool:
        """Whether the parameter that it names, if any, is what differs from one request to another."""
        return not self.param or _OF_MESSAGES.fullmatch(self.param) is not None

    @property
    def is_rate(self) -> bool:
        return self.status == 429 or "rate_limit_exceeded" in self.codes or bool(words.RATE.search(self.text))

    @property
    def is_money(self) -> bool:
        if self.status == 402 or self.codes & BILLING:
            return True
        if self.codes & (CONTEXT | POLICY):
            return False
        return self.says(words.MONEY, (400, 401, 403, 429, 500, 503)) and not words.SOON.search(self.text)

    @property
    def is_policy(self) -> bool:
        return bool(self.codes & POLICY) or self.says(words.POLICY, (*_SAID_WITH, 403, 451))

    @property
    def is_context(self) -> bool:
        if self.is_rate or words.answer_alone_too_long(self.text):
            return False
        if self.codes & CONTEXT or (TOO_LONG in self.codes and self.is_of_messages):
            return True
        return self.status == 413 or (TOO_LONG not in self.codes and self.says(words.CONTEXT))

    @property
    def is_transient(self) -> bool:
        by_code = self.status in (400, 413, 422) and "rate_limit_exceeded" in self.codes
        if by_code or (self.status == 413 and self.is_rate):
            return True
        at_server = self.status >= 500 and not self.is_of_template
        return self.status in (408, 409, 425, 429) or at_server or self.status < 300

    @property
    def is_of_template(self) -> bool:
        """Whether the model's chat template refuses the form of the chat, which all games of its group have."""
        return self.says(words.TEMPLATE, (400, 422, 500))

    @property
    def is_of_no_model(self) -> bool:
        """Whether the server has no model of this name, or no longer; a path that it has not is another thing."""
        return bool(self.codes & NO_MODEL) or self.says(words.NO_MODEL, (400, 404, 410))

    @property
    def is_malformed(self) -> bool:
        """Whether it may be of this one request."""
        return self.status in (400, 422) and self.is_of_messages and not self._is_of_all

    @property
    def _is_of_all(self) -> bool:
        named = any(code.startswith(("unsupported_", "unknown_", "model_")) for code in self.codes)
        return named or self.says(words.PARAMETER) or words.answer_alone_too_long(self.text)


def _codes(detail: Mapping[str, Any]) -> frozenset[str]:
    parts = [detail]
    for name in ("provider_specific_fields", "innererror", "inner_error"):
        parts.extend(_part(part, name) for part in tuple(parts))
    # A completion with the status of an error: Azure's way to say that its filter cut the answer.
    choices = detail.get("choices")
    reasons = [c.get("finish_reason") for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []
    found = (*(part.get(name) for part in parts for name in ("code", "type")), *reasons)
    return frozenset(code for code in found if isinstance(code, str))


def _param(detail: Mapping[str, Any]) -> str:
    """The parameter that it names: OpenAI's way, or that of the servers that list what is wrong with a body."""
    param = detail.get("param")
    if param:
        return as_text(param)
    found = detail.get("detail") or _part(detail, "message").get("detail")
    for item in found if isinstance(found, list) else ():
        place = item.get("loc") if isinstance(item, dict) else None
        if isinstance(place, list) and len(place) > 1 and place[0] == "body":
            return as_text(place[1])
    return ""


def _part(detail: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = detail.get(name)
    return part if isinstance(part, dict) else {}


def classified(
    status: int, body: object, headers: Mapping[str, str], settings: ModelSettings, group: str
) -> NipRunError:
    """One answer that is an error, as the class of failure that decides what happens next."""
    detail, told = error_detail(body), _Told.of(status, body)
    code = escape_controls(redacted(as_text(detail.get("code") or "")))[:100]
    message = escape_controls(redacted(told.message))[:500]
    if 300 <= status < 400:
        message = f"a redirect to {escape_controls(redacted(headers.get('location', 'no address')))[:200]}"
    number = str(status) if code in ("", str(status)) else f"{status} {code}"
    said = f"{settings.server_label(group)} answered {number}: {message}"
    if told.is_money:
        return ProviderRefusal(
            f"{said}\nThe account has no money or quota left, or a proxy's budget has none for this key; top it up and "
            "run the same command again."
        )
    if told.is_context:
        return ContextExceededError(said, status=status)
    if status != 429 and told.is_policy:
        return RefusedError(said, status=status)
    if told.is_transient:
        return TransientError(said, retry_after=retry_after(headers), status=status)
    advice = _advice(status, told, settings, group)
    one = MalformedError(f"{said} ({_ONE_REFUSED.format(group=group)})", status=status)
    of_one_call = one if told.is_malformed and not told.is_of_template else None
    return ProviderRefusal(
        f"{said}\n{advice.words}",
        of_one_call=of_one_call,
        changes=advice.changes,
        no_such_model=told.is_of_no_model,
    )


def status_in(error: object) -> int:
    """The status of an error that came with a 200."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and re.fullmatch(r"[345]\d\d", code):
        return int(code)
    return code if isinstance(code, int) else 500


def cut_at_limit(
    status: int, body: object, request: Request, settings: ModelSettings, latency_ms: float
) -> Completion | None:
    """A refusal that says that the limit was reached before a word of the answer came, as the answer that it is.

    What it cost is not said, and estimated as all that the limit allows.
    """
    told = _Told.of(status, body)
    if not told.says(words.CUT, (400, 422, 500)):
        return None
    most = settings.max_completion_tokens or settings.max_tokens or 1
    usage = Usage(estimated_prompt_tokens(request.messages), most, estimated=True)
    kept = {"error": {"message": escape_controls(redacted(told.message))[:500], "status": status}}
    return Completion((Choice(None, "length"),), settings.name, usage, latency_ms, other=kept)


_ONE_REFUSED = (
    "the server takes other requests of models.{group}, and will refuse this one again; change the datapoint, the "
    "prompt or the server"
)


class _Advice(NamedTuple):
    """What the user can do about a refusal, and the keys of the spec to change for it, some with their new values."""

    words: str
    changes: Mapping[str, str | None] = MappingProxyType({})


def _advice(status: int, told: _Told, settings: ModelSettings, group: str) -> _Advice:
    key = f"models.{group}"
    if told.is_of_template:
        return _template_advice(told, settings, key)
    if status == 401:
        variable = settings.key_variable
        held = f"The key in ${variable}" if variable else f"No key ({key}.api_key_env is null)"
        return _Advice(f"{held} is not accepted.")
    if status == 403:
        return _Advice("The key may not use this model, or not from here.")
    if status == 404:
        named = dict.fromkeys((f"{key}.model", f"{key}.base_url"))
        return _Advice(f"Check {key}.model ({settings.model!r}) and {key}.base_url.", named)
    if words.answer_alone_too_long(told.text):
        limit = f"{key}.{settings.limit_key}"
        return _Advice(
            f"The answer alone may be as long as the model's context; lower the limit, {limit}.", {limit: None}
        )
    if not told.is_of_messages:
        param = f"{key}.{escape_controls(redacted(told.param))[:100]}"
        return _Advice(f"Change {param} in the spec.", {param: None})
    if 300 <= status < 400:
        url = f"{key}.base_url"
        return _Advice(f"Keys are not sent to another address; write the server's own address in {url}.", {url: None})
    return _Advice(f"The server refuses the request as {key} makes it.", {key: None})


def _template_advice(told: _Told, settings: ModelSettings, key: str) -> _Advice:
    """The keys of a chat's form that are not yet as every template takes them."""
    wanted = {}
    takes_no_system = words.SYSTEM_ROLE.search(told.text) is not None
    if settings.chat_format != "alternating":
        wanted[f"{key}.chat_format"] = "alternating"
    if settings.system_role != "user" and (takes_no_system or not wanted):
        wanted[f"{key}.system_role"] = "user"
    what = "The model's chat template refuses the form of these chats, which all games have"
    if not wanted:
        return _Advice(f"{what}: change {key}.model, or the template that its server uses.", {f"{key}.model": None})
    return _Advice(f"{what}: set {' and '.join(f'{name} to {value}' for name, value in wanted.items())}.", wanted)


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
