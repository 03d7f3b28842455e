"""The types of records in a run's journal, and their conversion from and to JSON.

The layers around the models write these records. Everything that reads a run, such as tables, `resume` and `verify`,
reads them with `read_records` or through `runner.models.journal_index`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import orjson

from runner.base.errors import (
    CallError,
    CheckerError,
    ContextExceededError,
    MalformedError,
    RefusedError,
    TransientError,
)
from runner.base.hashing import canonical
from runner.base.storage.format_versions import KEY, LOG_FORMAT
from runner.base.storage.log_lines import ANSWER, RUN, RUN_ID, SHARD, read_journal
from runner.base.value_class import value_class
from runner.game.prompts.chat import ChatMessage
from runner.models.answers import choices_of, model_of, split_choices, usage_of
from runner.models.interface import Body, Choice, Completion, SampleKey, Usage
from runner.models.usage_totals import UsageTotals

ANSWER_TEXT: Final = "answer_text"
"""The key of an answer that is stored as a string, because it is nested too deeply to be a part of a record's JSON."""

ORIGIN: Final = "from"
"""The key of an answer's `Completion.origin`."""

_HASH_DIGITS: Final = 8
"""Number of digits of a parameter hash that a call record stores, enough to distinguish the model groups of a run."""


def log_header(
    run: str, run_id: str, shard: Sequence[int] | None = None, journal: str | None = None
) -> dict[str, object]:
    """Return the first record of a new journal: its format, the run's identity and id, and the journal's number.

    `shard` has the number of a shard and the number of all shards, if the journal belongs to a shard. `journal` is a
    number that no other journal has; by default a random one.
    """
    shard_field = {} if shard is None else {SHARD: list(shard)}
    number = secrets.token_hex(8) if journal is None else journal
    return {"kind": "begun", KEY: LOG_FORMAT, RUN: run, RUN_ID: run_id, **shard_field, "journal": number}


def messages_hash(messages: Sequence[ChatMessage], schema: Mapping[str, object] | None = None) -> str:
    """Return the hash that identifies a chat and the JSON schema of its answer, if any."""
    schema_part = b"" if schema is None else b"\0schema\0" + canonical(schema)
    return hashlib.sha256(b"messages\0" + canonical(list(messages)) + schema_part).hexdigest()[:32]


def completion_fields(completion: Completion) -> dict[str, object]:
    """Convert a completion to JSON fields: the server's answer, and all values that cannot be derived from it."""
    usage = completion.usage
    optional_fields: dict[str, Any] = {"altered": list(completion.altered)} if completion.altered else {}
    if completion.origin is not None:
        optional_fields[ORIGIN] = completion.origin
    counts = _count_list(usage)
    milliseconds = round(completion.latency_ms, 3)
    if completion.body is not None:
        fields: dict[str, Any] = {**_body_fields(completion.body), "ms": milliseconds, **optional_fields}
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
        **optional_fields,
    }


_USAGE_FIELDS = attrgetter(*(field.name for field in fields_of(Usage)))  # `astuple` would copy each value deeply


def _count_list(usage: Usage) -> list[Any]:
    """Return a usage as a list: the four fields of earlier versions, then later fields without trailing zeros."""
    counts = _USAGE_FIELDS(usage)
    end = len(counts)
    while end > 4 and not counts[end - 1]:
        end -= 1
    return list(counts[:end])


def _body_fields(body: Body) -> dict[str, object]:
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
    usage = Usage(*fields["usage"]) if "usage" in fields else None
    if ANSWER not in fields and ANSWER_TEXT not in fields:  # the form of journals before format 2
        choices = tuple(Choice(*choice) for choice in fields["choices"])
        return Completion(
            choices, fields["model"], usage or Usage(), fields["ms"], cached, fields["other"], altered, origin=origin
        )
    json = fields[ANSWER] if ANSWER in fields else fields[ANSWER_TEXT].encode()
    data, choice_index = orjson.loads(json), fields.get("choice")
    choices, model = choices_of(data), model_of(data)
    is_shared = fields.get("shared", False)
    body = Body(json, ANSWER_TEXT in fields, choice_index, is_shared, model is not None, usage is None)
    if usage is None and not is_shared:
        usage = usage_of(data)
    return Completion(
        choices if choice_index is None else (choices[choice_index],), fields["model"] if model is None else model,
        usage or Usage(), fields["ms"], cached, altered=altered, body=body, origin=origin,
    )  # fmt: skip


class RequestRecord(NamedTuple):
    """Identifies a request by two hashes."""

    parameters: str
    """The hash of the model group's parameters. Records with complete answers have only its first digits."""
    messages: str
    """The hash of the messages and, if there is one, of the JSON schema."""

    def matches(self, other: RequestRecord) -> bool:
        """Return whether this recorded request is the same as `other`, which has the complete hashes."""
        return self.messages == other.messages and other.parameters.startswith(self.parameters)


@value_class(frozen=True, slots=True)
class CallRecord:
    """The record of an answer. `charged` is the amount that a budget counts, if it differs from the answer's cost."""

    KIND: ClassVar = "call"
    sample: SampleKey
    request: RequestRecord
    completion: Completion
    charged: UsageTotals | None = None

    @property
    def created_ms(self) -> float | None:
        """The time when the server created the answer, in milliseconds since 1970; None if the answer has no time."""
        body = self.completion.body
        created = None if body is None or body.is_deep else orjson.loads(body.json).get("created")
        return 1000.0 * created if isinstance(created, int | float) else None

    def to_json(self) -> dict[str, Any]:
        digits = None if self.completion.body is None else _HASH_DIGITS
        record = {
            "kind": self.KIND,
            "sample": self.sample.fields(),
            "asked": [self.request.parameters[:digits], self.request.messages],
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
    """The record of an answer that is stored in another sample's record, because one call requested both answers."""

    sample: SampleKey
    holder_repeat: int
    """The repeat of the other sample."""
    choice: int
    """The index of the answer in the other record."""
    holder_vote: int | None = None
    """The vote or candidate of the other sample; None if both samples have the same."""

    @classmethod
    def of(cls, sample: SampleKey, holder: SampleKey, choice: int) -> RepeatRecord:
        """Return the record of a sample whose answer is stored in the record of `holder`."""
        return cls(sample, holder.repeat, choice, None if holder.vote == sample.vote else holder.vote)

    @property
    def holder(self) -> SampleKey:
        """The other sample, whose record has the answer."""
        vote = self.sample.vote if self.holder_vote is None else self.holder_vote
        return self.sample._replace(repeat=self.holder_repeat, vote=vote)

    def extract_from(self, holder: CallRecord) -> CallRecord:
        """Return a complete record of this answer, given the record of the other sample."""
        body = holder.completion.body
        assert body is not None
        full = replace(holder.completion, choices=choices_of(orjson.loads(body.json)), body=replace(body, choice=None))
        return CallRecord(self.sample, holder.request, split_choices(full)[self.choice])

    def to_json(self) -> dict[str, Any]:
        sample = self.sample.fields()
        vote = {} if self.holder_vote is None else {"of_vote": self.holder_vote}
        return {"kind": CallRecord.KIND, "sample": sample, "of": self.holder_repeat, "choice": self.choice, **vote}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RepeatRecord:
        return cls(_read_sample(data), data["of"], data["choice"], data.get("of_vote"))


@dataclass(frozen=True, slots=True)
class EndedRecord:
    """The record of an error that ended a game instead of an answer: the name of the error's type, and its message."""

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
        """Whether another attempt may succeed."""
        return self.error in (TransientError.__name__, CheckerError.__name__, MalformedError.__name__)

    def as_error(self) -> CallError:
        """Return the error as an exception."""
        return _GAME_ENDING_ERRORS[self.error](self.message)

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


_GAME_ENDING_ERRORS: Mapping[str, type[CallError]] = {
    kind.__name__: kind for kind in (TransientError, CheckerError, ContextExceededError, RefusedError, MalformedError)
}
"""The errors of a call that end its game, by their names in the journal."""


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """The record of a failed attempt."""

    KIND: ClassVar = "failure"
    sample: SampleKey
    attempt: int
    error: str
    wait: float
    """The seconds before the next attempt; negative if no attempt followed."""
    charged: UsageTotals | None = None
    """The amount that a budget counts for the attempt."""
    usage: Usage | None = None
    """The server's token counts, if the server reported any despite the failure."""

    @property
    def is_paid(self) -> bool:
        """Whether the run may have paid for the attempt. A replay has not paid for the attempts of the replayed run."""
        return self.charged != UsageTotals()

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
    """The record of a batch of calls. It is written before the batch is created, and again afterwards."""

    KIND: ClassVar = "batch"
    group: str
    intent: str
    """A random name that identifies the batch before it has an id."""
    lines: tuple[str, ...]
    """The custom id of each line in the batch's file: one line for each call."""
    batch: str | None = None
    """The id of the batch at the provider; None until the batch is created."""

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
    """The record of the calls that a killed process left in flight."""

    KIND: ClassVar = "lost"
    source: str
    """The name of the file with the calls (see `InFlightFile`), or a random name for a worker's calls."""
    charged: UsageTotals
    """The calls' maximum cost, which a budget counts."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.KIND, "of": self.source, "charged": _charge_list(self.charged)}

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
    """A record with the byte offset of its line and its sequence number in the journal."""

    offset: int
    sequence: int
    record: Record


def parse_record(data: Mapping[str, Any]) -> Record:
    """Convert the JSON of a journal's line to its record type."""
    if data["kind"] == CallRecord.KIND and "of" in data:
        return RepeatRecord.from_json(data)
    return _PARSERS.get(data["kind"], OtherRecord.from_json)(data)


def read_records(path: Path, run: str | None = None) -> Iterator[IndexedRecord]:
    """Yield every complete record of a run's journal.

    Raises:
        JournalError: the file is damaged before its last line, or does not belong to the run with the identity `run`.
        NewerFormatError: a newer version of nip-run wrote the journal.
    """
    for offset, data in read_journal(path, run):
        yield IndexedRecord(offset, data["seq"], parse_record(data))


_PARSERS: Mapping[str, Callable[[Mapping[str, Any]], Record]] = {
    kind.KIND: kind.from_json for kind in (CallRecord, EndedRecord, FailureRecord, BatchRecord, LostRecord)
}


def _read_sample(data: Mapping[str, Any]) -> SampleKey:
    return SampleKey(*data["sample"])


def _charge_list(totals: UsageTotals) -> list[float]:
    return [totals.usd, totals.tokens, totals.completions]


def _read_charge(data: Mapping[str, Any]) -> UsageTotals | None:
    charged = data.get("charged")
    return UsageTotals(*charged) if charged else None
