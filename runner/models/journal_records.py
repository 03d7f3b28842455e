"""The records of a run's journal: each kind a type of its own, read once and written as it was read."""

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
from runner.models.answers import choices_of, model_of, split, usage_of
from runner.models.interface import Body, Choice, Completion, SampleKey, Usage
from runner.models.usage_totals import UsageTotals

ANSWER_TEXT: Final = "answer_text"
"""The key of an answer that is nested too deep to stand in a line of JSON: it stands there as a text."""

SHARD: Final = "shard"
"""In the first record of the journal of a part of a run: which part, and of how many."""

ORIGIN: Final = "from"
"""The key of an answer's `Completion.origin`."""

SHORT: Final = 8
"""So many digits tell apart the parameters of a run's model groups."""


def begun(run: str, run_id: str, shard: Sequence[int] | None = None, journal: str | None = None) -> dict[str, Any]:
    """What a new journal begins with: the version of its format, its run, and a number that no other journal has.

    `shard` is which part of how many its run is, where it is one.
    """
    part = {} if shard is None else {SHARD: list(shard)}
    number = secrets.token_hex(8) if journal is None else journal
    return {"kind": "begun", KEY: LOG_FORMAT, RUN: run, RUN_ID: run_id, **part, "journal": number}


def messages_hash(messages: Sequence[ChatMessage]) -> str:
    """The identity of a chat."""
    return hashlib.sha256(b"messages\0" + canonical(list(messages))).hexdigest()[:32]


def completion_fields(completion: Completion) -> dict[str, Any]:
    """A completion as plain fields: where a server gave it, its answer and what does not follow from that."""
    usage = completion.usage
    altered: dict[str, Any] = {"altered": list(completion.altered)} if completion.altered else {}
    if completion.origin is not None:
        altered[ORIGIN] = completion.origin
    counts = _counts(usage)
    milliseconds = round(completion.latency_ms, 3)
    if completion.body is not None:
        found: dict[str, Any] = {**_body_fields(completion.body), "ms": milliseconds, **altered}
        if completion.from_cache:
            found["cache"] = True
        if usage.estimated or not (completion.body.has_usage or completion.body.is_shared):
            found["usage"] = counts
        if not completion.body.has_model:
            found["model"] = completion.model
        return found
    return {
        "choices": [[choice.text, choice.finish_reason, choice.refusal] for choice in completion.choices],
        "model": completion.model,
        "usage": counts,
        "ms": milliseconds,
        "cache": completion.from_cache,
        "other": completion.other,
        **altered,
    }


def _counts(usage: Usage) -> list[Any]:
    """A usage by place: four counts as earlier versions have them, then the later classes as far as there are any."""
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
    """Plain fields as the completion they were."""
    cached = fields.get("cache", False) if from_cache is None else from_cache
    altered = tuple(fields.get("altered", ()))
    origin = fields.get(ORIGIN)
    if ANSWER in fields or ANSWER_TEXT in fields:
        return replace(_completion_of_body(fields, cached, altered), origin=origin)
    choices = tuple(Choice(*choice) for choice in fields["choices"])
    usage = Usage(*fields["usage"])
    return Completion(choices, fields["model"], usage, fields["ms"], cached, fields["other"], altered, origin=origin)


def _completion_of_body(fields: Mapping[str, Any], cached: bool, altered: tuple[str, ...]) -> Completion:
    """What the answer says, read as on arrival, and beside it what it does not say."""
    json = fields[ANSWER] if ANSWER in fields else fields[ANSWER_TEXT].encode()
    data, choice = orjson.loads(json), fields.get("choice")
    choices = choices_of(data)
    model = model_of(data)
    body = Body(
        json, ANSWER_TEXT in fields, choice, fields.get("shared", False), model is not None, "usage" not in fields
    )
    counted = Usage(*fields["usage"]) if "usage" in fields else Usage() if body.is_shared else usage_of(data)
    return Completion(
        choices if choice is None else (choices[choice],),
        fields["model"] if model is None else model,
        counted or Usage(),
        fields["ms"],
        cached,
        altered=altered,
        body=body,
    )


class RequestRecord(NamedTuple):
    """What was asked: the hash of the model group's parameters, and that of the messages."""

    parameters: str
    """Its first digits alone, in records with whole answers: a journal holds few such hashes."""
    messages: str

    def is_of(self, other: RequestRecord) -> bool:
        """Whether what was recorded so is what another says in full."""
        return self.messages == other.messages and other.parameters.startswith(self.parameters)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """An answer. `charged` is what a budget counts for it, if that is more than the cost of its usage."""

    KIND: ClassVar = "call"
    sample: SampleKey
    asked: RequestRecord
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
            "asked": [self.asked.parameters[:short], self.asked.messages],
            **completion_fields(self.completion),
        }
        if self.charged is not None:
            record["charged"] = _charge(self.charged)
        return record

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CallRecord:
        return cls(_sample(data), RequestRecord(*data["asked"]), completion_from_fields(data), _charged(data))


@dataclass(frozen=True, slots=True)
class RepeatRecord:
    """An answer that came with another's: the repeat whose record holds the server's answer, and which choice it is."""

    sample: SampleKey
    of: int
    choice: int

    @property
    def holder(self) -> SampleKey:
        """The sample whose record holds it."""
        return self.sample._replace(repeat=self.of)

    def found_in(self, holder: CallRecord) -> CallRecord:
        """The record of this answer by itself."""
        body = holder.completion.body
        assert body is not None
        whole = replace(holder.completion, choices=choices_of(orjson.loads(body.json)), body=replace(body, choice=None))
        return CallRecord(self.sample, holder.asked, split(whole)[self.choice])

    def to_json(self) -> dict[str, Any]:
        return {"kind": CallRecord.KIND, "sample": self.sample.fields(), "of": self.of, "choice": self.choice}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RepeatRecord:
        return cls(_sample(data), data["of"], data["choice"])


@dataclass(frozen=True, slots=True)
class EndedRecord:
    """What ended a game in the place of an answer: the failure's type, by name, and its message."""

    KIND: ClassVar = "ended"
    sample: SampleKey
    asked: RequestRecord
    error: str
    message: str

    @classmethod
    def of(cls, sample: SampleKey, asked: RequestRecord, error: CallError) -> EndedRecord:
        return cls(sample, asked, type(error).__name__, str(error))

    @property
    def is_transient(self) -> bool:
        """Whether another process may have more luck."""
        return self.error in (TransientError.__name__, MalformedError.__name__)

    def as_error(self) -> CallError:
        """The failure that ended the game."""
        return _ENDINGS[self.error](self.message)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.KIND,
            "sample": self.sample.fields(),
            "asked": list(self.asked),
            "error": self.error,
            "message": self.message,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EndedRecord:
        return cls(_sample(data), RequestRecord(*data["asked"]), data["error"], data["message"])


_ENDINGS: Mapping[str, type[CallError]] = {
    kind.__name__: kind for kind in (TransientError, ContextExceededError, RefusedError, MalformedError)
}
"""The failures of a call that end its game, by the names that the journal has them under."""


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """A failed attempt. `charged` is what a budget counts for it; a negative wait: there is no further attempt.

    `usage` is what the server counted all the same.
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
            "charged": None if self.charged is None else _charge(self.charged),
            **({} if self.usage is None else {"usage": _counts(self.usage)}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FailureRecord:
        usage = Usage(*data["usage"]) if "usage" in data else None
        return cls(_sample(data), data["attempt"], data["error"], data["wait"], _charged(data), usage)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch of calls: what is meant to be sent, and once the provider has taken it its id."""

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
    """Calls that a killed process left in flight: the name of its file of slots, and what they may have cost."""

    KIND: ClassVar = "lost"
    of: str
    charged: UsageTotals

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.KIND, "of": self.of, "charged": _charge(self.charged)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LostRecord:
        return cls(data["of"], UsageTotals(*data["charged"]))


@dataclass(frozen=True, slots=True)
class OtherRecord:
    """A record of a kind that another version writes."""

    kind: str
    sample: SampleKey | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OtherRecord:
        return cls(data["kind"], _sample(data) if "sample" in data else None)


Record = CallRecord | RepeatRecord | EndedRecord | FailureRecord | BatchRecord | LostRecord | OtherRecord


class IndexedRecord(NamedTuple):
    """A record where it stands: the offset of its line, and its number in the journal."""

    offset: int
    sequence: int
    record: Record


def parse_record(data: Mapping[str, Any]) -> Record:
    """A journal's line as the record that it is."""
    if data["kind"] == CallRecord.KIND and "of" in data:
        return RepeatRecord.from_json(data)
    return _KINDS.get(data["kind"], OtherRecord.from_json)(data)


def read_records(path: Path, run: str | None = None) -> Iterator[IndexedRecord]:
    """Every whole record of a run's journal.

    Raises:
        JournalError: the file is damaged before its last line, or is not of the run with the identity `run`.
    """
    for offset, data in read_journal(path, run):
        yield IndexedRecord(offset, data["seq"], parse_record(data))


_KINDS: Mapping[str, Callable[[Mapping[str, Any]], Record]] = {
    kind.KIND: kind.from_json for kind in (CallRecord, EndedRecord, FailureRecord, BatchRecord, LostRecord)
}


def _sample(data: Mapping[str, Any]) -> SampleKey:
    return SampleKey(*data["sample"])


def _charge(tally: UsageTotals) -> list[float]:
    return [tally.usd, tally.tokens, tally.completions]


def _charged(data: Mapping[str, Any]) -> UsageTotals | None:
    charged = data.get("charged")
    return UsageTotals(*charged) if charged else None
