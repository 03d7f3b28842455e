"""Types for the records of a run's journal, with their conversion from and to JSON."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import orjson

from runner.base.errors import CallError, ContextExceededError, MalformedError, RefusedError, TransientError
from runner.base.hashing import canonical
from runner.base.storage.format_versions import KEY, LOG_FORMAT
from runner.base.storage.log_lines import ANSWER, RUN, RUN_ID, read_journal
from runner.game.prompts.chat import ChatMessage
from runner.models.answers import choices_of, model_of, split_choices, usage_of
from runner.models.interface import Body, Choice, Completion, SampleKey, Usage
from runner.models.usage_totals import UsageTotals

ANSWER_TEXT: Final = "answer_text"
"""Key of an answer that is nested too deeply for a line of JSON, and is stored as a string."""

SHARD: Final = "shard"
"""Key of the first record of a part of a run: its number and the number of parts."""

ORIGIN: Final = "from"
"""Key of an answer's `Completion.origin`."""

SHORT: Final = 8
"""Number of digits of a parameter hash that a call record stores: they distinguish the model groups of a run."""


def log_header(run: str, run_id: str, shard: Sequence[int] | None = None, journal: str | None = None) -> dict[str, Any]:
    """Return the first record of a new journal: its format, its run, and a number that no other journal has.

    `shard` is the number of the run's part and the number of parts, if it is one.
    """
    part = {} if shard is None else {SHARD: list(shard)}
    number = secrets.token_hex(8) if journal is None else journal
    return {"kind": "begun", KEY: LOG_FORMAT, RUN: run, RUN_ID: run_id, **part, "journal": number}


def messages_hash(messages: Sequence[ChatMessage]) -> str:
    """Return the hash that identifies a chat."""
    return hashlib.sha256(b"messages\0" + canonical(list(messages))).hexdigest()[:32]


def completion_fields(completion: Completion) -> dict[str, Any]:
    """Convert a completion to JSON fields: the server's answer, and what cannot be derived from it."""
    usage = completion.usage
    extra_fields: dict[str, Any] = {"altered": list(completion.altered)} if completion.altered else {}
    if completion.origin is not None:
        extra_fields[ORIGIN] = completion.origin
    counts = _count_list(usage)
    milliseconds = round(completion.latency_ms, 3)
    if completion.body is not None:
        fields: dict[str, Any] = {**_body_fields(completion.body), "ms": milliseconds, **extra_fields}
        if completion.from_cache:
            fields["cache"] = True
        if usage.estimated or not (completion.body.has_usage or completion.body.is_shared):
            fields["usage"] = counts
        if not completion.body.has_model:
            fields["model"] = completion.model
        return fields
    return {
        "choices": [[choice.text, choice.finish_reason, choice.refusal] for choice in completion.choices],
        "model": completion.model,
        "usage": counts,
        "ms": milliseconds,
        "cache": completion.from_cache,
        "other": completion.other_fields,
        **extra_fields,
    }


def _count_list(usage: Usage) -> list[Any]:
    """Return a usage as a list: the four counts of earlier versions, then later counts without trailing zeros."""
    counts = list(astuple(usage))
    while len(counts) > 4 and not counts[-1]:
        counts.pop()
    return counts


def _body_fields(body: Body) -> dict[str, Any]:
    fields: dict[str, Any] = {ANSWER_TEXT: body.json.decode()} if body.is_deep else {ANSWER: body.json}
    if body.choice is not None:
        fields["choice"] = body.choice
    if body.is_shared:
        fields["shared"] = True
    return fields


def completion_from_fields(fields: Mapping[str, Any], *, from_cache: bool | None = None) -> Completion:
    """Convert JSON fields back to a completion."""
    cached = fields.get("cache", False) if from_cache is None else from_cache
    altered = tuple(fields.get("altered", ()))
    origin = fields.get(ORIGIN)
    if ANSWER in fields or ANSWER_TEXT in fields:
        return replace(_completion_of_body(fields, cached, altered), origin=origin)
    choices = tuple(Choice(*choice) for choice in fields["choices"])
    usage = Usage(*fields["usage"])
    return Completion(choices, fields["model"], usage, fields["ms"], cached, fields["other"], altered, origin=origin)


def _completion_of_body(fields: Mapping[str, Any], cached: bool, altered: tuple[str, ...]) -> Completion:
    """Rebuild a completion from the server's answer, as on arrival, and from the fields stored with it."""
    json = fields[ANSWER] if ANSWER in fields else fields[ANSWER_TEXT].encode()
    data, choice = orjson.loads(json), fields.get("choice")
    choices = choices_of(data)
    model = model_of(data)
    body = Body(
        json, ANSWER_TEXT in fields, choice, fields.get("shared", False), model is not None, "usage" not in fields
    )
    usage = Usage(*fields["usage"]) if "usage" in fields else Usage() if body.is_shared else usage_of(data)
    return Completion(
        choices if choice is None else (choices[choice],),
        fields["model"] if model is None else model,
        usage or Usage(),
        fields["ms"],
        cached,
        altered=altered,
        body=body,
    )


class RequestRecord(NamedTuple):
    """Identifies a request by two hashes: of the model group's parameters, and of the messages."""

    parameters: str
    """Only the first digits, in records with complete answers: a journal contains few different hashes."""
    messages: str

    def matches(self, other: RequestRecord) -> bool:
        """Return whether this recorded request is the same as `other`, which has the full hashes."""
        return self.messages == other.messages and other.parameters.startswith(self.parameters)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """An answer. `charged` is what a budget counts for it, if that is more than the cost of its usage."""

    KIND: ClassVar = "call"
    sample: SampleKey
    request: RequestRecord
    completion: Completion
    charged: UsageTotals | None = None

    @property
    def created_ms(self) -> float | None:
        """Time at which the server created the answer, in milliseconds since 1970; None if it did not say."""
        body = self.completion.body
        created = None if body is None or body.is_deep else orjson.loads(body.json).get("created")
        return 1000.0 * created if isinstance(created, int | float) else None

    def to_json(self) -> dict[str, Any]:
        short = None if self.completion.body is None else SHORT
        record = {
            "kind": self.KIND,
            "sample": self.sample.fields(),
            "asked": [self.request.parameters[:short], self.request.messages],
            **completion_fields(self.completion),
        }
        if self.charged is not None:
            record["charged"] = _charge_list(self.charged)
        return record

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CallRecord:
        return cls(_read_sample(data), RequestRecord(*data["asked"]), completion_from_fields(data), _read_charge(data))


@dataclass(frozen=True, slots=True)
class RepeatRecord:
    """An answer that another sample's call returned: `of` is the repeat whose record holds it, `choice` its index."""

    sample: SampleKey
    of: int
    choice: int

    @property
    def holder(self) -> SampleKey:
        """The sample whose record holds the answer."""
        return self.sample._replace(repeat=self.of)

    def extract_from(self, holder: CallRecord) -> CallRecord:
        """Return the record of this answer alone, taken from its holder's record."""
        body = holder.completion.body
        assert body is not None
        full = replace(holder.completion, choices=choices_of(orjson.loads(body.json)), body=replace(body, choice=None))
        return CallRecord(self.sample, holder.request, split_choices(full)[self.choice])

    def to_json(self) -> dict[str, Any]:
        return {"kind": CallRecord.KIND, "sample": self.sample.fields(), "of": self.of, "choice": self.choice}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RepeatRecord:
        return cls(_read_sample(data), data["of"], data["choice"])


@dataclass(frozen=True, slots=True)
class EndedRecord:
    """A failure that ended a game instead of an answer: the name of its type, and its message."""

    KIND: ClassVar = "ended"
    sample: SampleKey
    request: RequestRecord
    error: str
    message: str

    @classmethod
    def from_error(cls, sample: SampleKey, request: RequestRecord, error: CallError) -> EndedRecord:
        return cls(sample, request, type(error).__name__, str(error))

    @property
    def is_transient(self) -> bool:
        """True if another attempt may succeed."""
        return self.error in (TransientError.__name__, MalformedError.__name__)

    def as_error(self) -> CallError:
        """Return the failure as an exception."""
        return _ENDINGS[self.error](self.message)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.KIND,
            "sample": self.sample.fields(),
            "asked": list(self.request),
            "error": self.error,
            "message": self.message,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EndedRecord:
        return cls(_read_sample(data), RequestRecord(*data["asked"]), data["error"], data["message"])


_ENDINGS: Mapping[str, type[CallError]] = {
    kind.__name__: kind for kind in (TransientError, ContextExceededError, RefusedError, MalformedError)
}
"""Failures of a call that end its game, by their names in the journal."""


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """A failed attempt. `charged` is what a budget counts for it. A negative `wait` means that no attempt followed.

    `usage` is the server's count of tokens, if it reported one despite the failure.
    """

    KIND: ClassVar = "failure"
    sample: SampleKey
    attempt: int
    error: str
    wait: float
    charged: UsageTotals | None = None
    usage: Usage | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.KIND,
            "sample": self.sample.fields(),
            "attempt": self.attempt,
            "error": self.error,
            "wait": self.wait,
            "charged": None if self.charged is None else _charge_list(self.charged),
            **({} if self.usage is None else {"usage": _count_list(self.usage)}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FailureRecord:
        usage = Usage(*data["usage"]) if "usage" in data else None
        return cls(_read_sample(data), data["attempt"], data["error"], data["wait"], _read_charge(data), usage)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch of calls: the lines to send, and its id once the provider has accepted it."""

    KIND: ClassVar = "batch"
    group: str
    intent: str
    lines: tuple[str, ...]
    batch: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.KIND,
            "group": self.group,
            "intent": self.intent,
            "lines": list(self.lines),
            "batch": self.batch,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BatchRecord:
        return cls(data["group"], data["intent"], tuple(data["lines"]), data["batch"])


@dataclass(frozen=True, slots=True)
class LostRecord:
    """Calls that a killed process left in flight: the name of its slot file, and their maximum cost."""

    KIND: ClassVar = "lost"
    of: str
    charged: UsageTotals

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.KIND, "of": self.of, "charged": _charge_list(self.charged)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LostRecord:
        return cls(data["of"], UsageTotals(*data["charged"]))


@dataclass(frozen=True, slots=True)
class OtherRecord:
    """A record of a kind that only another version writes."""

    kind: str
    sample: SampleKey | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OtherRecord:
        return cls(data["kind"], _read_sample(data) if "sample" in data else None)


Record = CallRecord | RepeatRecord | EndedRecord | FailureRecord | BatchRecord | LostRecord | OtherRecord


class IndexedRecord(NamedTuple):
    """A record with the byte offset of its line, and its number in the journal."""

    offset: int
    sequence: int
    record: Record


def parse_record(data: Mapping[str, Any]) -> Record:
    """Convert the JSON of a journal's line to its record type."""
    if data["kind"] == CallRecord.KIND and "of" in data:
        return RepeatRecord.from_json(data)
    return _KINDS.get(data["kind"], OtherRecord.from_json)(data)


def read_records(path: Path, run: str | None = None) -> Iterator[IndexedRecord]:
    """Yield every complete record of a run's journal.

    Raises:
        JournalError: the file is damaged before its last line, or does not belong to the run with the identity `run`.
        NewerFormatError: a newer nip-run wrote the journal.
    """
    for offset, data in read_journal(path, run):
        yield IndexedRecord(offset, data["seq"], parse_record(data))


_KINDS: Mapping[str, Callable[[Mapping[str, Any]], Record]] = {
    kind.KIND: kind.from_json for kind in (CallRecord, EndedRecord, FailureRecord, BatchRecord, LostRecord)
}


def _read_sample(data: Mapping[str, Any]) -> SampleKey:
    return SampleKey(*data["sample"])


def _charge_list(totals: UsageTotals) -> list[float]:
    return [totals.usd, totals.tokens, totals.completions]


def _read_charge(data: Mapping[str, Any]) -> UsageTotals | None:
    charged = data.get("charged")
    return UsageTotals(*charged) if charged else None
