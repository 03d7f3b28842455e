"""Phrases in error messages of servers and proxies that identify errors without a known code or type.

Each phrase was in a real answer. These answers and their senders are the rows of tests/models/test_real_errors.py.
"""

from __future__ import annotations

import json
import re
from typing import Any


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


RATE_LIMIT = _any_of(
    r"rate[ _-]?limit", r"tokens? per (?:min|day)", r"\bTPM\b", r"requests? per ", r"throttl", r"too many requests",
    r"please wait before",
)  # fmt: skip
"""A rate limit. A number of tokens in such a message is a rate per minute, not the length of a prompt."""

RENEWED_SOON = _any_of(r"per[ _-]?minute", r"(?:retry|try again) in \d", r"retryDelay", r"PerMinute")
"""A quota that is renewed soon."""

NO_MODEL = _any_of(
    r"\bmodel\b.{0,200}(?:does not exist|not found|not available any more|no longer (?:available|served|supported))",
    r"no such model", r"unknown model",
    r"\bmodel\b.{0,200}(?:has been |is )(?:deprecated|decommissioned|retired|shut down)",
)  # fmt: skip
"""The server does not have the model, or no longer has it."""

NO_MONEY = _any_of(
    r"insufficient[_ ](?:quota|balance|credits?|funds)", r"exceeded your current quota", r"billing[_ ]hard[_ ]limit",
    r"billing[_ ]not[_ ]active", r"credit balance is too low", r"requires more credits", r"budget has been exceeded",
    r"exceeded ?budget", r"crossed budget", r"BudgetExceededError", r"out of call volume quota",
    r"reached your specified .{0,20}usage limits", r"used all available credits", r"run out of credits",
)  # fmt: skip
"""The account has no money or quota left."""

CONTEXT_TOO_LONG = _any_of(
    r"ContextWindowExceededError", r"context_length_exceeded", r"exceed_context_size_error",
    r"(?:maximum|max) context (?:length|limit|size)",
    r"maximum (?:allowed )?(?:prompt|input|model) length", r"input length is .{0,20}tokens",
    r"longer than the (?:maximum )?model", r"greater than the context length",
    r"exceed(?:s|ed)? .{0,40}\bcontext (?:size|length|window|limit)", r"context window exceeds",
    r"prompt (?:is )?too long", r"input is too long", r"\bprompt \(.{1,60}\) is too long",
    r"input length .{0,30}exceeds the maximum", r"input tokens exceed the configured limit",
    r"(?:prompt|input) token count .{0,40}exceeds", r"exceeded model token limit",
    r"`inputs` tokens \+ `max_new_tokens` must be", r"`inputs` must have less than",
    r"reduce the length of (?:the (?:messages|input|prompt)|either one)",
    r"tokens when (?:the )?context (?:the )?overflows", r"context length of only \d", r"context shift is disabled",
    r"input is too large to process", r"current length is \d+ while limit is",
    r"max_tokens must be at least 1, got -\d", r"too many tokens",
)  # fmt: skip
"""The prompt, or the prompt and the answer together, are longer than the model's context."""

_NUMBER = r"(\d{1,9}(?:,\d{3}){0,3})"
_CONTEXT_LENGTH = re.compile(rf"maximum context length is {_NUMBER}", re.IGNORECASE)
_ANSWER_LENGTH = re.compile(
    rf"is too large: {_NUMBER}|requested {_NUMBER} output tokens|{_NUMBER} in (?:the|your) (?:output|completion)",
    re.IGNORECASE,
)

TOKEN_LIMIT = _any_of(r"could not finish the message because max_tokens or model output limit was reached")
"""The token limit was reached before the first word of an answer, probably by reasoning."""

POLICY = _any_of(
    r"ContentPolicyViolationError", r"ResponsibleAIPolicyViolation", r"content_policy_violation",
    r"content management policy", r"content filtering policy", r"result of (?:our|the) safety system",
    r"violating our usage policy", r"content exists risk", r"data_inspection_failed", r"may contain inappropriate",
    r"your input was flagged", r"violates usage guidelines",
)  # fmt: skip
"""A content policy forbids the prompt."""

PARAMETER = _any_of(
    r"unsupported (?:parameter|value)", r"UnsupportedParamsError", r"unknown parameter", r"unrecognized request arg",
    r"extra (?:inputs|fields)(?: are)? not permitted", r"invalid model", r"model .{0,80}does not exist",
    r"model .{0,80}not found", r"max_(?:completion_)?tokens['\"]? is too large",
)  # fmt: skip
"""The error concerns a parameter or the model, and so every request of the group."""

SCHEMA = _any_of(r"response[_ ]format", r"output_config", r"json_schema", r"structured outputs?", r"\bgrammar\b")
"""The error concerns the JSON schema of the answer."""

SINGLE_ANSWER = _any_of(
    r"'n'", r"only one completion choice is allowed", r"(?:^|[^\w.])n must be (?:exactly |at most )?1\b",
    r"\bn = 1 is supported",
)  # fmt: skip
"""The server returns only one answer to a request."""

TEMPLATE = _any_of(
    r"jinja exception", r"TemplateError", r"roles must alternate", r"chat template",
    r"system role (?:is )?not supported", r"system message must be at the beginning",
    r"no user query found in messages",
)  # fmt: skip
"""The chat template of an open model refuses the order or roles of the messages. Some servers then answer with a 500.

Because all games have the same order and roles, the refusal concerns the whole model group.
"""

SYSTEM_ROLE = _any_of(r"system (?:role|message|prompt)s? (?:is |are )?(?:not|un)[ -]?(?:supported|allowed)")
"""The chat template accepts no system message at all."""

KEY = _any_of(r"API key not valid", r"incorrect API key")
"""The server does not accept the key."""

KEY_OF_PROXY = _any_of(r"litellm\.AuthenticationError")
"""The provider behind a proxy does not accept the proxy's own key."""

_START_OF_QUOTED_ERROR = re.compile(r"(?:litellm\.)?\w+Error: .{0,200}?Exception - (?=\{)")
_QUOTED_REQUEST = re.compile(r"""['"]input['"]\s*:""")


def without_echo(text: str) -> str:
    """Return an error's text without the request that it quotes, because a prompt may contain any of these phrases."""
    return _QUOTED_REQUEST.split(text, maxsplit=1)[0]


def error_quoted_by_proxy(text: str) -> Any:
    """Return the JSON of a provider's error that LiteLLM quotes in its own message; None if there is none."""
    start = _START_OF_QUOTED_ERROR.match(text)
    if start is None:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, start.end())[0]
    except (ValueError, RecursionError):
        return None


def answer_limit_fills_context(text: str) -> bool:
    """Return whether the limit of the answer alone fills the model's context, according to numbers in the message."""
    context, answer = _CONTEXT_LENGTH.search(text), _ANSWER_LENGTH.search(text)
    if context is None or answer is None:
        return False
    requested = next(group for group in answer.groups() if group)
    return int(requested.replace(",", "")) >= int(context[1].replace(",", ""))
