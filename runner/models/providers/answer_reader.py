"""Converts the answer of an OpenAI-compatible server, or of Anthropic's API, to a `Completion`.

Answers to single calls and answers in batches are read in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from runner.base.errors import CallError, NipRunError, TransientError
from runner.base.redaction import current_redactor, has_escapes
from runner.base.text import escape_controls
from runner.models.answers import choices_of, make_body, model_of, reported_usage, usage_of, with_first_choices
from runner.models.interface import Completion, Request, Usage
from runner.models.plausible_usage import checked_usage
from runner.models.providers.lenient_json import SECRET_ALTERED, parse_json, read_json
from runner.models.providers.openai_errors import classify_error, status_in
from runner.models.settings import ModelSettings, requested_answers


def read_completion(
    content: bytes,
    headers: Mapping[str, str],
    request: Request,
    settings: ModelSettings,
    *,
    latency_ms: float,
    altered: tuple[str, ...] = (),
) -> Completion:
    """Convert the body of an answer with status 200 to a completion. `altered` lists earlier changes to the body.

    Raises:
        TransientError: the body is not a completion.
        NipRunError: the body is an error despite its status; see `classify_error`.
    """
    group = request.group
    data, problem = parse_json(content)
    if problem:
        data, repaired_json, repairs = read_json(content, current_redactor())
        if not repaired_json:
            raise _invalid_json_error(content, problem, settings.server_label(group))
        content, altered = repaired_json, tuple(dict.fromkeys((*repairs, *altered)))
    if not isinstance(data, dict):
        raise TransientError(f"{settings.server_label(group)} sent JSON that is not a completion")
    if data.get("error"):
        error = classify_error(status_in(data["error"]), data["error"], headers, settings, group)
        raise _with_usage(error, data, settings)
    redacted_content = current_redactor().redact_escaped(content) if has_escapes(content) else content
    if redacted_content is not content:
        content, data = redacted_content, orjson.loads(redacted_content)
        altered = tuple(dict.fromkeys((*altered, SECRET_ALTERED)))
    _check_choices(data, headers, settings, group)
    choices = choices_of(data)
    if not choices:
        error = TransientError(f"{settings.server_label(group)} sent a completion without choices")
        raise _with_usage(error, data, settings)
    stored = usage_of(data)
    usage = _with_tier(checked_usage(reported_usage(data, stored), request, choices), settings)
    body = make_body(content, data, has_usage=usage == stored)
    completion = Completion(choices, model_of(data) or settings.name, usage, latency_ms, altered=altered, body=body)
    return with_first_choices(completion, requested_answers(request, settings))


def _invalid_json_error(content: bytes, problem: str, server: str) -> TransientError:
    start = escape_controls(current_redactor().redact_start(content, 60))
    return TransientError(f"{server} sent an answer that is not JSON ({problem}): {start!r}")


def _with_tier(usage: Usage, settings: ModelSettings) -> Usage:
    """Return a usage with the requested service tier if the server named none, because a resumed run may change it."""
    is_stated = usage.service_tier is not None or settings.requested_tier is None
    return usage if is_stated else replace(usage, service_tier=settings.requested_tier)


def _with_usage(error: NipRunError, data: dict[str, Any], settings: ModelSettings) -> NipRunError:
    """Add the reported usage to an error in an answer, because the server may bill these tokens."""
    usage = reported_usage(data)
    if isinstance(error, CallError) and usage is not None and (usage.prompt_tokens or usage.completion_tokens):
        error.usage = _with_tier(usage, settings)
    return error


def _check_choices(data: dict[str, Any], headers: Mapping[str, str], settings: ModelSettings, group: str) -> None:
    """Check that no choice is an error. Routers send such choices if their provider fails during an answer.

    Raises:
        NipRunError: a choice is an error; see `classify_error`.
    """
    choices = data.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        error = choice.get("error") if isinstance(choice, dict) else None
        if error:
            raise _with_usage(classify_error(status_in(error), error, headers, settings, group), data, settings)
        if isinstance(choice, dict) and choice.get("finish_reason") == "error":
            failure = TransientError(f"{settings.server_label(group)} sent an answer that ended in an error")
            raise _with_usage(failure, data, settings)
