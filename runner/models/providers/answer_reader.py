"""The wire format without the client: answers of any OpenAI-compatible server into ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from runner.base.errors import CallError, NipRunError, TransientError
from runner.base.redaction import current_redactor, has_escapes
from runner.base.text import escape_controls
from runner.models.answers import body_of, choices_of, model_of, reported_usage, usage_of, with_first_choices
from runner.models.interface import Completion, Request
from runner.models.plausible_usage import checked_usage
from runner.models.providers.lenient_json import SECRET_ALTERED, mended, parsed
from runner.models.providers.openai_errors import classified, status_in
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
    """The body of an answer with status 200 as a completion; `altered` is what was changed in it already.

    Raises:
        TransientError: it is not a completion.
        NipRunError: it is an error all the same, classified as one.
    """
    group = request.group
    data, problem = parsed(content)
    if problem:
        whole, changed = mended(content, current_redactor())
        if whole is not None:
            content, (data, problem) = whole, parsed(whole)
            altered = tuple(dict.fromkeys((*changed, *altered)))
    if problem:
        start = escape_controls(current_redactor().start(content, 60))
        raise TransientError(f"{settings.server_label(group)} sent no JSON ({problem}): {start!r}")
    if not isinstance(data, dict):
        raise TransientError(f"{settings.server_label(group)} sent JSON that is not a completion")
    if data.get("error"):
        raise _with_usage(classified(status_in(data["error"]), data["error"], headers, settings, group), data)
    cleaned = current_redactor().redact_escaped(content) if has_escapes(content) else content
    if cleaned is not content:
        content, data = cleaned, orjson.loads(cleaned)
        altered = tuple(dict.fromkeys((*altered, SECRET_ALTERED)))
    _check_choices(data, headers, settings, group)
    choices = choices_of(data)
    if not choices:
        raise TransientError(f"{settings.server_label(group)} sent a completion without choices")
    usage, body = checked_usage(reported_usage(data), request, choices), body_of(content, data)
    completion = Completion(
        choices,
        model_of(data) or settings.name,
        usage,
        latency_ms,
        altered=altered,
        body=body if usage == usage_of(data) else replace(body, has_usage=False),
    )
    return with_first_choices(completion, requested_answers(request, settings))


def _with_usage(error: NipRunError, data: dict[str, Any]) -> NipRunError:
    """Add the usage to an error inside an answer that counts tokens: the server may bill it."""
    usage = reported_usage(data)
    if isinstance(error, CallError) and usage is not None and (usage.prompt_tokens or usage.completion_tokens):
        error.usage = usage
    return error


def _check_choices(data: dict[str, Any], headers: Mapping[str, str], settings: ModelSettings, group: str) -> None:
    """Look for an error in the place of a choice, as routers give it whose provider failed halfway.

    Raises:
        NipRunError: there is one, classified as any other.
    """
    choices = data.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        error = choice.get("error") if isinstance(choice, dict) else None
        if error:
            raise _with_usage(classified(status_in(error), error, headers, settings, group), data)
        if isinstance(choice, dict) and choice.get("finish_reason") == "error":
            raise TransientError(f"{settings.server_label(group)} sent an answer that ended in an error")
