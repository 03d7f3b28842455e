"""Completions to journal records and back, and the layer that asks for nothing twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from runner.errors import JournalError
from runner.ids import canonical
from runner.journal import Journal
from runner.models.base import Choice, Complete, Completion, Request, Sample, Usage
from runner.prompts.chat import ChatMessage

CALL = "call"
FAILURE = "failure"


def messages_hash(messages: Sequence[ChatMessage]) -> str:
    """The identity of a chat."""
    return hashlib.sha256(b"messages\0" + canonical(list(messages))).hexdigest()[:32]


def to_record(sample: Sample, completion: Completion, parameters: str, messages: str) -> dict[str, Any]:
    """A completion as its journal record, with the hashes of what was asked."""
    usage = completion.usage
    return {
        "kind": CALL,
        "sample": list(sample),
        "asked": [parameters, messages],
        "choices": [[choice.text, choice.finish_reason, choice.refusal] for choice in completion.choices],
        "model": completion.model,
        "usage": [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.estimated],
        "ms": round(completion.latency_ms, 3),
        "other": completion.other,
    }


def from_record(record: dict[str, Any]) -> Completion:
    """A journal record as the completion it holds."""
    return Completion(
        tuple(Choice(*choice) for choice in record["choices"]),
        record["model"],
        Usage(*record["usage"]),
        record["ms"],
        record["other"],
    )


def failure_record(sample: Sample, attempt: int, error: str, wait: float) -> dict[str, Any]:
    """A failed attempt as its journal record."""
    return {"kind": FAILURE, "sample": list(sample), "attempt": attempt, "error": error, "wait": wait}


class Recorded:
    """The completions of a journal by sample: offsets in memory, answers read when asked for."""

    def __init__(self, read: Callable[[int], bytes], records: Iterable[tuple[int, dict[str, Any]]]) -> None:
        self._read = read
        self._offsets: dict[Sample, int] = {}
        self._failures: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for offset, record in records:
            if record["kind"] == CALL:
                self._offsets[Sample(*record["sample"])] = offset
            elif record["kind"] == FAILURE:
                self._failures.setdefault((record["sample"][0], record["sample"][1]), []).append(record)

    def __len__(self) -> int:
        return len(self._offsets)

    def get(self, sample: Sample) -> dict[str, Any] | None:
        """The record of a sample's completion."""
        offset = self._offsets.get(sample)
        if offset is None:
            return None
        record: dict[str, Any] = orjson.loads(self._read(offset)[9:])
        return record

    def failures(self, datapoint: str, repeat: int) -> Sequence[dict[str, Any]]:
        """The failed attempts of a rollout."""
        return self._failures.get((datapoint, repeat), ())


def through_journal(
    complete: Complete, journal: Journal, recorded: Recorded, parameters: Mapping[str, str]
) -> Complete:
    """`complete` that answers from the journal what it holds, and writes what it does not before going on.

    `parameters` is each model group's hash of what it sends besides the messages.
    """

    async def journalled(request: Request) -> Completion:
        messages = messages_hash(request.messages)
        record = recorded.get(request.sample)
        if record is not None:
            if record["asked"] != [parameters[request.group], messages]:
                raise JournalError(
                    f"the journal's answer for {request.sample} is to another request than this run makes; was a file "
                    "in the run folder edited? Play the spec anew with --again"
                )
            return from_record(record)
        completion = await complete(request)
        await journal.append(to_record(request.sample, completion, parameters[request.group], messages))
        return completion

    return journalled
