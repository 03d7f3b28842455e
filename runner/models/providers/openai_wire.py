"""The wire format without the client: answers of any OpenAI-compatible server into ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from runner.errors import TransientError
from runner.models.base import Choice, Completion, Request, Usage, estimated_prompt_tokens, estimated_tokens
from runner.models.providers.lenient_json import SECRET_ALTERED, parsed, read_json
from runner.models.providers.openai_errors import as_text, classified, refusal_in, status_in, where, written
from runner.models.settings import ModelSettings
from runner.redaction import Redactor, current_redactor, has_escapes
from runner.text import escape_controls

MAX_COUNT = 1 << 40
MAX_OTHER_BYTES = 64 << 10
MAX_REASON = 200
MARGIN = 32
"""So many levels deeper than it came must an answer's field be writable: records and tables put it into theirs."""


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
        raise classified(status_in(data["error"]), data["error"], headers, settings, group)
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


def _choices(raw: object) -> list[Choice]:
    choices = []
    for item in raw if isinstance(raw, list) else ():
        message = item.get("message") if isinstance(item, dict) else None
        if isinstance(message, dict):
            reason = item.get("finish_reason")
            choices.append(
                Choice(
                    written(message.get("content"), reason),
                    reason if reason is None else as_text(reason)[:MAX_REASON],
                    refusal_in(message),
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
