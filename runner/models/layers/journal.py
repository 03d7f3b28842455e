"""The outermost layer around the models: answers from the journal, or records each new answer before a game gets it.

A sample is a request of a game, with its place in the run. Samples of several repeats with identical requests are
siblings, and so are the samples of several candidates. One call can request the answers for all of them. These answers
are in a single record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from runner.base.errors import BudgetExhausted, CallError, JournalError, ProviderRefusal, SeveralRefusedError
from runner.game.prompts.chat import ChatMessage
from runner.models.answers import split_choices, with_own_choice, without_body
from runner.models.call_events import NO_EVENTS, CallEvents
from runner.models.interface import Complete, Completion, Request, SampleKey
from runner.models.journal_records import CallRecord, EndedRecord, RepeatRecord, RequestRecord, messages_hash
from runner.models.usage_totals import UsageTotals

MAX_N = 128
"""Maximum value of `n`, the number of answers to one call, in the OpenAI API."""


class RecordLog(Protocol):
    """Stores records: the run's journal, or a worker's connection to the process with the journal."""

    @property
    def is_bound_to_run(self) -> bool:
        """Whether the journal has format 2 or later. These formats bind every line to its run."""
        ...

    async def append(self, *records: dict[str, Any]) -> None:
        """Store the records, and return once they are on disk."""
        ...


class RecordLookup(Protocol):
    """Finds the records of a journal by sample."""

    def get(self, sample: SampleKey) -> CallRecord | EndedRecord | None: ...


@dataclass(eq=False)
class JournaledCompleter:
    """Answers requests from the journal, or calls the model and stores the answer in the journal first."""

    complete_live: Complete
    """Calls the model."""
    journal: RecordLog
    records: RecordLookup
    """The records at the start of this process."""
    parameter_hashes: Mapping[str, str]
    """The hash of each model group's parameters."""
    sharing_groups: frozenset[str] = frozenset()
    """The groups that request the answers for siblings in one call."""
    sent_messages: Callable[[Request], Sequence[ChatMessage]] = lambda request: request.messages
    """Returns a request's messages as the server receives them."""
    events: CallEvents = NO_EVENTS
    charge: Callable[[Request, Completion], UsageTotals | None] = lambda _, __: None
    """Returns the amount that a budget counts for an answer, if it differs from the answer's cost."""
    repeats_lost_calls: bool = True
    """Whether calls that failed in transport are repeated."""

    def __post_init__(self) -> None:
        self._unclaimed: dict[SampleKey, Completion] = {}
        """Recorded answers for siblings, whose games have not requested them yet."""
        self._locks: dict[SampleKey, asyncio.Lock] = {}
        """A lock for each set of siblings, by its first sample."""
        self._requested: set[SampleKey] = set()
        """Samples that this process has requested."""

    async def complete(self, request: Request) -> Completion:
        """Return the answer to a request, which is on disk when this returns.

        Raises:
            JournalError: the journal has an answer to another request for this sample.
        """
        # Journals before format 2 have a hash of the messages before their conversion for the server.
        messages = self.sent_messages(request) if self.journal.is_bound_to_run else request.messages
        identity = RequestRecord(self.parameter_hashes[request.group], messages_hash(messages, request.schema))
        completion = self._from_journal(request, identity)
        if completion is None:
            completion = await self._from_model(request, identity)
        self.events.on_answer(request, completion)
        return completion

    async def _from_model(self, request: Request, identity: RequestRecord) -> Completion:
        """Return the model's answer or raise the error that ended the call, once its record is on disk."""
        try:
            if request.group in self.sharing_groups and request.siblings:
                completion = await self._call_with_siblings(request, identity)
            else:
                completion = await self._call_one(request, identity)
        except CallError as error:
            await self.journal.append(EndedRecord.from_error(request.sample, identity, error).to_json())
            self.events.on_settled(request.sample)
            raise
        except ProviderRefusal:
            self.events.on_refused(request.sample)
            raise
        self.events.on_settled(request.sample)
        return completion

    def _from_journal(self, request: Request, identity: RequestRecord) -> Completion | None:
        """Return the recorded answer to a request; None if there is none, or if a failed call must be repeated.

        Raises:
            JournalError: the recorded request differs.
            CallError: the call failed, and must not be repeated.
        """
        record = self.records.get(request.sample)
        if record is None:
            return None
        if not record.request.matches(identity):
            raise JournalError(
                f"the journal has an answer for {request.sample}, but to another request. Restore spec.yaml and "
                "inputs/ in the run's folder if they were edited, or add --again to play a new run"
            )
        if isinstance(record, CallRecord):
            return record.completion
        if record.is_transient and self.repeats_lost_calls:
            return None  # another attempt may succeed
        raise record.as_error()

    async def _call_with_siblings(self, request: Request, identity: RequestRecord) -> Completion:
        """Make one call for this sample and all its siblings without an answer. Return this sample's answer."""
        first_sample = min(request.sample, *request.siblings)
        async with self._locks.setdefault(first_sample, asyncio.Lock()):
            if request.sample in self._unclaimed:
                return self._unclaimed.pop(request.sample)
            unanswered = [
                sample
                for sample in request.siblings
                if sample not in self._requested and self.records.get(sample) is None
            ]
            try:
                if not unanswered or request.group not in self.sharing_groups:
                    return await self._call_one(request, identity)
                # This sample must be first, because a server may return fewer answers than requested.
                return await self._call_many(request, identity, [request.sample, *sorted(unanswered)][:MAX_N])
            finally:
                # Even without an answer, so that siblings do not request it again.
                self._requested.add(request.sample)

    async def _call_many(self, request: Request, identity: RequestRecord, samples: Sequence[SampleKey]) -> Completion:
        """Make one call for all these samples, and return the first sample's answer.

        If the server refuses this call, or the budget does not allow it, make a call for only the first sample.
        """
        combined = replace(request, n=len(samples), siblings=tuple(samples[1:]))
        try:
            completion = await self._answer(combined)
        except SeveralRefusedError as error:
            self.sharing_groups -= {request.group}
            await self.events.on_failure(request, 1, error, 0.0)
            return await self._call_one(request, identity)
        except BudgetExhausted:
            return await self._call_one(request, identity)
        answers = list(zip(samples, split_choices(completion), strict=False))
        if len(answers) < len(samples) and not completion.from_cache and "error" not in completion.other_fields:
            self.events.on_fewer_answers(request)
        charge = self.charge(combined, completion)
        records = (
            RepeatRecord.of(sample, request.sample, index)
            if index and answer.body is not None
            else CallRecord(sample, identity, answer, charge if index == 0 else None)
            for index, (sample, answer) in enumerate(answers)
        )
        # The records are written atomically, so that a resumed run sends the same request again after a kill.
        await self.journal.append(*(record.to_json() for record in records))
        for sample, answer in answers:
            if not completion.from_cache:
                self.events.on_recorded(replace(request, sample=sample, n=len(samples)), answer)
            self._requested.add(sample)
            self._unclaimed[sample] = answer
        return self._unclaimed.pop(request.sample)

    async def _call_one(self, request: Request, identity: RequestRecord) -> Completion:
        """Make one call for this sample."""
        completion = await self._answer(request)
        record = CallRecord(request.sample, identity, completion, self.charge(request, completion))
        await self.journal.append(record.to_json())
        self.events.on_recorded(request, completion)
        return completion

    async def _answer(self, request: Request) -> Completion:
        """Make one call, and convert the answer to the form that the journal's format requires."""
        completion = with_own_choice(await self.complete_live(request))
        return completion if self.journal.is_bound_to_run else without_body(completion)
