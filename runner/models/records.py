"""Completions and failures into journal records, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from runner.errors import (
    CallError,
    ContextExceededError,
    RefusedError,
    TransientError,
)
from runner.hashing import canonical
from runner.models.base import Choice, Completion, SampleKey, Usage
from runner.models.tally import Tally
from runner.prompts.chat import ChatMessage

CALL = "call"


FAILURE = "failure"


BATCH = "batch"


GAME_ENDING_FAILURE = "ended"


LOST = "lost"


def messages_hash(messages: Sequence[ChatMessage]) -> str:
    """The identity of a chat."""
    return hashlib.sha256(b"messages\0" + canonical(list(messages))).hexdigest()[:32]


def completion_fields(completion: Completion) -> dict[str, Any]:
    """A completion as plain fields."""
    usage = completion.usage
    return {
        "choices": [[choice.text, choice.finish_reason, choice.refusal] for choice in completion.choices],
        "model": completion.model,
        "usage": [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.estimated],
        "ms": round(completion.latency_ms, 3),
        "cache": completion.from_cache,
        "other": completion.other,
    }


def completion_from_fields(fields: Mapping[str, Any], *, from_cache: bool | None = None) -> Completion:
    """Plain fields as the completion they were."""
    return Completion(
        tuple(Choice(*choice) for choice in fields["choices"]),
        fields["model"],
        Usage(*fields["usage"]),
        fields["ms"],
        fields["cache"] if from_cache is None else from_cache,
        fields["other"],
    )


def to_record(
    sample: SampleKey, completion: Completion, parameters: str, messages: str, most: Tally | None = None
) -> dict[str, Any]:
    """A completion as its journal record, with the hashes of what was asked.

    `most` is the most that the call may have cost. It is kept, as `charged`, where the server did not count the tokens.
    """
    record = {
        "kind": CALL,
        "sample": list(sample),
        "asked": [parameters, messages],
        **completion_fields(completion),
    }
    if most is not None and completion.usage.estimated and not completion.from_cache:
        record["charged"] = [most.usd, most.tokens, most.completions]
    return record


_ENDINGS: Mapping[str, type[CallError]] = {
    kind.__name__: kind for kind in (TransientError, ContextExceededError, RefusedError)
}
"""The failures of a call that end its game, by the names that the journal has them under."""


def ended_record(sample: SampleKey, error: CallError, parameters: str, messages: str) -> dict[str, Any]:
    """What ended a game in the place of an answer, as its journal record."""
    return {
        "kind": GAME_ENDING_FAILURE,
        "sample": list(sample),
        "asked": [parameters, messages],
        "error": type(error).__name__,
        "message": str(error),
    }


def call_error_from(record: Mapping[str, Any]) -> CallError:
    """The failure that a journal record holds."""
    return _ENDINGS[record["error"]](record["message"])


def failure_record(
    sample: SampleKey, attempt: int, error: CallError, wait: float, charged: Tally | None = None
) -> dict[str, Any]:
    """A failed attempt as its journal record; `charged` is what a budget counts for it."""
    return {
        "kind": FAILURE,
        "sample": list(sample),
        "attempt": attempt,
        "error": str(error),
        "wait": wait,
        "charged": None if charged is None else [charged.usd, charged.tokens, charged.completions],
    }
