"""Classifies error responses of OpenAI, Anthropic and compatible servers, for single calls and batches.

An error's class decides what happens next: another attempt, the end of the game, or the end of the run.
"""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

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
from runner.models.interface import Choice, Completion, Request, Usage, estimate_prompt_tokens
from runner.models.providers import error_phrases as phrases
from runner.models.settings import ModelSettings

BILLING_CODES = frozenset((
    "insufficient_quota", "credit_balance_exhausted", "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded", "organization_usage_limit_exceeded", "billing_hard_limit_reached",
    "billing_not_active", "budget_exceeded",
))  # fmt: skip
"""Error codes that say that the account has no money left or has reached a spending limit."""
POLICY_CODES = frozenset((
    "content_policy_violation", "content_filter", "invalid_prompt", "cyber_policy", "bio_policy",
    "ResponsibleAIPolicyViolation", "data_inspection_failed",
))  # fmt: skip
"""Error codes that say that a content policy forbids the prompt."""
CONTEXT_CODES = frozenset(("context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded"))
"""Error codes that say that the prompt is longer than the model's context."""
NO_MODEL_CODES = frozenset(("model_not_found", "unknown_model", "model_decommissioned", "DeploymentNotFound"))
"""Error codes that say that the server does not have the model."""
KEY_CODES = frozenset(("no_db_connection",))
"""Error codes that say that the key is not valid. The status is not 401. LiteLLM without a database sends one."""
TOO_LONG_CODE = "string_above_max_length"
"""The code for a text that is too long: the prompt if the parameter is a message, otherwise a value of the spec."""

MAX_SEARCHED = 20_000
"""Number of characters of an error that are searched for phrases."""

_SEARCHED_STATUSES = (400, 413, 422, 500, 502, 503)
"""Statuses of errors whose text is searched for phrases, because servers often give no code for the reason."""

_MESSAGE_PARAMETERS = re.compile(r"(?:messages|prompt|input|contents)(?:\W.*|_tokens)?", re.DOTALL)
"""Matches the parameters that contain the chat, such as `messages[0].content`."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def error_detail(body: object) -> dict[str, object]:
    """Return the `error` object of an error's body. Gemini puts the body into a list."""
    body = body[0] if isinstance(body, list) and body else body
    detail = body.get("error", body) if isinstance(body, dict) else {}
    return detail if isinstance(detail, dict) else {}


def refuses_n(status: int, body: object) -> bool:
    """Return whether the server refuses to return several answers to one request."""
    error = _Error.from_response(status, body)
    return status in _SEARCHED_STATUSES and (error.param == "n" or error.matches(phrases.SINGLE_ANSWER))


@dataclass(frozen=True)
class _Error:
    """The content of an error response. The texts may contain secrets."""

    status: int
    codes: frozenset[str]
    """Codes and types of the error and of the errors that caused it."""
    param: str
    """The parameter that the error names, or an empty text."""
    message: str
    """The text for the user."""
    text: str
    """The part of the message that is searched for phrases."""
    is_of_proxy_limit: bool = False
    """Whether a proxy between nip-run and the server refuses the size of the request. It sends text instead of JSON."""

    @classmethod
    def from_response(cls, status: int, body: object) -> _Error:
        detail = error_detail(body)
        detail_text = detail.get("detail")
        message = detail.get("message") or (detail_text if isinstance(detail_text, str) else None) or body or ""
        upstream = _mapping_in(detail, "metadata").get("raw")  # the error of the provider behind a router
        text = f"{as_text(message)}: {as_text(upstream)}" if upstream else as_text(message)
        searched = phrases.without_echo(text[:MAX_SEARCHED])
        quoted = error_detail(phrases.error_quoted_by_proxy(searched))
        codes, param = _codes(detail) | _codes(quoted), _param(detail) or _param(quoted)
        return cls(status, codes, param, text, searched, status == 413 and not isinstance(body, (dict, list)))

    def matches(self, pattern: re.Pattern[str], statuses: Collection[int] = _SEARCHED_STATUSES) -> bool:
        """Return whether the error has one of these statuses and its text matches the pattern."""
        return self.status in statuses and pattern.search(self.text) is not None

    @property
    def may_be_about_messages(self) -> bool:
        """Whether the error names no parameter, or the messages, which differ between requests."""
        return not self.param or _MESSAGE_PARAMETERS.fullmatch(self.param) is not None

    @property
    def is_rate_limit(self) -> bool:
        """Whether the error is about a rate limit."""
        return self.status == 429 or "rate_limit_exceeded" in self.codes or bool(phrases.RATE_LIMIT.search(self.text))

    @property
    def is_about_billing(self) -> bool:
        """Whether the account has no money or quota left."""
        if self.status == 402 or self.codes & BILLING_CODES:
            return True
        if self.codes & (CONTEXT_CODES | POLICY_CODES):
            return False
        return self.matches(phrases.NO_MONEY, (400, 401, 403, 429, 500, 503)) and not phrases.RENEWED_SOON.search(
            self.text
        )

    @property
    def is_content_policy(self) -> bool:
        """Whether a content policy forbids the prompt or the answer."""
        return bool(self.codes & POLICY_CODES) or self.matches(phrases.POLICY, (*_SEARCHED_STATUSES, 403, 451))

    @property
    def is_too_long(self) -> bool:
        """Whether the prompt is longer than the model's context."""
        if self.is_rate_limit or self.is_of_proxy_limit or phrases.answer_limit_fills_context(self.text):
            return False
        if self.codes & CONTEXT_CODES or (TOO_LONG_CODE in self.codes and self.may_be_about_messages):
            return True
        return self.status == 413 or (TOO_LONG_CODE not in self.codes and self.matches(phrases.CONTEXT_TOO_LONG))

    @property
    def is_transient(self) -> bool:
        """Whether another attempt may succeed."""
        has_rate_code = self.status in (400, 413, 422) and "rate_limit_exceeded" in self.codes
        if has_rate_code or (self.status == 413 and self.is_rate_limit):
            return True
        is_server_fault = self.status >= 500 and not self.is_about_template
        return self.status in (408, 409, 425, 429, 498) or is_server_fault or self.status < 300

    @property
    def is_about_template(self) -> bool:
        """Whether the model's chat template refuses the order or roles of messages, which all games share."""
        return self.matches(phrases.TEMPLATE, (400, 422, 500))

    @property
    def is_about_schema(self) -> bool:
        """Whether the server does not accept the JSON schema of the answer."""
        has_param = re.match("response_format|output_config", self.param) is not None
        return has_param or (self.may_be_about_messages and self.matches(phrases.SCHEMA, (400, 422)))

    @property
    def is_missing_model(self) -> bool:
        """Whether the server does not have the model, or no longer has it. (A missing path does not count.)"""
        return bool(self.codes & NO_MODEL_CODES) or self.matches(phrases.NO_MODEL, (400, 404, 410))

    @property
    def is_about_key(self) -> bool:
        """Whether the server does not accept the key."""
        return self.status == 401 or bool(self.codes & KEY_CODES) or self.matches(phrases.KEY, (400,))

    @property
    def is_malformed(self) -> bool:
        """Whether the error may be about only this request."""
        if self.is_of_proxy_limit:
            return True
        return self.status in (400, 422) and self.may_be_about_messages and not self._is_about_every_request

    @property
    def _is_about_every_request(self) -> bool:
        """Whether every request of the group would get this error."""
        names_parameter = any(code.startswith(("unsupported_", "unknown_", "model_")) for code in self.codes)
        if names_parameter or self.is_about_key:
            return True
        return self.matches(phrases.PARAMETER) or phrases.answer_limit_fills_context(self.text)


def _codes(detail: Mapping[str, object]) -> frozenset[str]:
    parts = [detail]
    for name in ("provider_specific_fields", "innererror", "inner_error"):
        parts.extend(_mapping_in(part, name) for part in tuple(parts))
    # If Azure's filter truncates an answer, it sends a completion with an error status.
    choices = detail.get("choices")
    reasons = [c.get("finish_reason") for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []
    codes = (*(part.get(name) for part in parts for name in ("code", "type")), *reasons)
    return frozenset(code for code in codes if isinstance(code, str))


def _param(detail: Mapping[str, object]) -> str:
    """Return the parameter that an error names, in OpenAI's format or in FastAPI's list of validation errors."""
    param = detail.get("param")
    if param:
        return as_text(param)
    items = detail.get("detail") or _mapping_in(detail, "message").get("detail")
    for item in items if isinstance(items, list) else ():
        location = item.get("loc") if isinstance(item, dict) else None
        if isinstance(location, list) and len(location) > 1 and location[0] == "body":
            return as_text(location[1])
    return ""


def _mapping_in(detail: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = detail.get(name)
    return part if isinstance(part, dict) else {}


def classify_error(
    status: int, body: object, headers: Mapping[str, str], settings: ModelSettings, group: str
) -> NipRunError:
    """Return the error for an error response."""
    detail, error = error_detail(body), _Error.from_response(status, body)
    code = escape_controls(redacted(as_text(detail.get("code") or "")))[:100]
    one_line = re.sub(r"[ \t\r\n]+", " ", redacted(error.message)).strip()  # proxies send several lines
    message = escape_controls(one_line)[:500]
    if 300 <= status < 400:
        message = f"a redirect to {escape_controls(redacted(headers.get('location', 'no address')))[:200]}"
    number = str(status) if code in ("", str(status)) else f"{status} {code}"
    message_line = f"{settings.server_label(group)} answered {number}: {message}"
    if error.is_about_billing:
        return ProviderRefusal(
            f"{message_line}\nThe account has no money or quota left, or a proxy's budget for this key is used up. "
            "Add credit, and run the same command again."
        )
    if error.is_too_long:
        return ContextExceededError(message_line, status=status)
    if status != 429 and error.is_content_policy:
        return RefusedError(message_line, status=status)
    if error.is_transient:
        return TransientError(message_line, retry_after=retry_after(headers), status=status)
    advice = _advice(status, error, settings, group)
    one_call_error = MalformedError(f"{message_line} ({_ONE_CALL_REFUSED.format(group=group)})", status=status)
    refuses_schema = bool(settings.constrain_decisions) and error.is_about_schema
    may_end_one_game = error.is_malformed and not (error.is_about_template or refuses_schema)
    return ProviderRefusal(
        f"{message_line}\n{advice.text}",
        of_one_call=one_call_error if may_end_one_game else None,
        changes=advice.changes,
        no_such_model=error.is_missing_model,
    )


def status_in(error: object) -> int:
    """Return the status that an error states, in an answer whose HTTP status is 200; 500 if it states none."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and re.fullmatch(r"[345]\d\d", code):
        return int(code)
    return code if isinstance(code, int) else 500


def truncated_answer_in(
    status: int, body: object, request: Request, settings: ModelSettings, latency_ms: float
) -> Completion | None:
    """Return an empty answer with the finish reason `length` if the error says that the token limit was reached.

    Otherwise, return None. Such an error has no usage, so the answer's usage is estimated as the token limit.
    """
    error = _Error.from_response(status, body)
    if not error.matches(phrases.TOKEN_LIMIT, (400, 422, 500)):
        return None
    limit = settings.max_completion_tokens or settings.max_tokens or 1
    usage = Usage(estimate_prompt_tokens(request.messages), limit, estimated=True)
    error_field = {"error": {"message": escape_controls(redacted(error.message))[:500], "status": status}}
    return Completion((Choice(None, "length"),), settings.name, usage, latency_ms, other_fields=error_field)


_ONE_CALL_REFUSED = (
    "if the server accepts other requests of models.{group}, change the datapoint or the prompt; otherwise, change the "
    "settings of models.{group} or the server"
)


class _Advice(NamedTuple):
    """Advice for the user about a refusal, and the spec keys to change with their new values, if known."""

    text: str
    changes: Mapping[str, str | None] = MappingProxyType({})


def _advice(status: int, error: _Error, settings: ModelSettings, group: str) -> _Advice:
    key = f"models.{group}"
    if error.is_about_template:
        return _template_advice(error, settings, key)
    if settings.constrain_decisions and error.is_about_schema:
        schema_key = f"{key}.constrain_decisions"
        return _Advice(
            f"The server does not accept the JSON schema of {schema_key}; remove the key, or use another server.",
            {schema_key: None},
        )
    if error.is_about_key:
        return _Advice(_key_advice(error, settings, key))
    if error.is_of_proxy_limit:
        return _Advice("A proxy limits the size of requests; raise its limit (nginx: client_max_body_size).")
    if status == 403:
        return _Advice(
            "The key may not use this model, or not from your location. Use another key or model, or check the "
            "permissions at the provider."
        )
    if status == 404:
        changes = dict.fromkeys((f"{key}.model", f"{key}.base_url"))
        return _Advice(f"Check {key}.model ({settings.model!r}) and {key}.base_url.", changes)
    if phrases.answer_limit_fills_context(error.text):
        limit = f"{key}.{settings.length_limit_key}"
        return _Advice(
            f"The token limit of an answer alone is as large as the model's context; lower {limit}.", {limit: None}
        )
    if not error.may_be_about_messages:
        param = f"{key}.{escape_controls(redacted(error.param))[:100]}"
        if (
            error.param == "max_tokens"
            and "max_completion_tokens" in error.text
            and "unsupported_parameter" in error.codes
        ):
            return _Advice(f"Rename {param} to max_completion_tokens in the spec.", {param: None})
        return _Advice(
            f"The server does not accept {param}; change its value in the spec, or remove it.", {param: None}
        )
    if 300 <= status < 400:
        url = f"{key}.base_url"
        return _Advice(
            f"nip-run follows no redirects, so that keys go nowhere else; set {url} to the server's own address.",
            {url: None},
        )
    return _Advice(f"The server refuses the request; check the settings in {key}.", {key: None})


def _key_advice(error: _Error, settings: ModelSettings, key: str) -> str:
    """Return advice about a key that the server does not accept."""
    if error.matches(phrases.KEY_OF_PROXY, (401,)):
        return "The provider does not accept the key of the proxy; set a valid key in the proxy's settings."
    variables = " or ".join(f"${name}" for name in settings.variables)
    if not variables:
        return (
            f"The server needs a key, and none was sent; set {key}.api_key_env to the name of the environment variable "
            "that has the key, and run the command again."
        )
    return f"The server does not accept the key. It comes from {variables}; set a valid key, and run the command again."


def _template_advice(error: _Error, settings: ModelSettings, key: str) -> _Advice:
    """Return advice about a chat template that refuses messages: which settings or which model to change."""
    changes = {}
    refuses_system = phrases.SYSTEM_ROLE.search(error.text) is not None
    if settings.chat_format != "alternating":
        changes[f"{key}.chat_format"] = "alternating"
    if settings.system_role != "user" and (refuses_system or not changes):
        changes[f"{key}.system_role"] = "user"
    problem = "The model's chat template refuses the roles or order of messages, which are the same in all games"
    if not changes:
        return _Advice(f"{problem}: change {key}.model, or the chat template of its server.", {f"{key}.model": None})
    return _Advice(f"{problem}: set {' and '.join(f'{name} to {value}' for name, value in changes.items())}.", changes)


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds that a server asks to wait in its headers; None if it does not ask."""
    for prefix in ("", "llm_provider-"):  # LiteLLM adds this prefix to the headers of its provider
        wait = _stated_wait(headers, prefix, now)
        if wait is not None:
            return wait
    # A reset header has the time until a limit is fully available again. It only counts if nothing remains now.
    waits = [
        wait
        for kind in ("requests", "tokens")
        if headers.get(f"x-ratelimit-remaining-{kind}") == "0"
        and (wait := parse_duration(headers.get(f"x-ratelimit-reset-{kind}", ""))) is not None
    ]
    return max(waits, default=None)


def _stated_wait(headers: Mapping[str, str], prefix: str, now: float | None) -> float | None:
    milliseconds = _seconds(headers.get(f"{prefix}retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get(f"{prefix}retry-after", "")
    seconds = _seconds(text)
    if seconds is not None:
        return seconds
    with suppress(ValueError, OverflowError):  # not a valid date
        date = email.utils.parsedate_to_datetime(text).timestamp()
        return max(date - (time.time() if now is None else now), 0.0)
    return None


def _seconds(text: str) -> float | None:
    """Parse a non-negative number in a header; None if it is not a finite number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return max(number, 0.0) if math.isfinite(number) else None


def parse_duration(text: str) -> float | None:
    """Convert a duration such as `1m30s`, `12ms` or `6` to seconds; None if it is invalid."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return _seconds(text)
    parts = _DURATION.findall(text)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return seconds if parts and math.isfinite(seconds) else None
