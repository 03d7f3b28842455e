"""The outermost layer around the models: answers from the journal, or records each new answer before a game gets it.

Samples whose games send identical requests are siblings. One call can request the answers of all of them, which share
its record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from runner.base.errors import (
    BudgetExhausted,
    CallError,
    JournalError,
    ProviderRefusal,
    SeveralRefusedError,
)
from runner.game.prompts.chat import ChatMessage
from runner.models.answers import split_choices, with_own_choice, without_body
from runner.models.call_events import NO_EVENTS, CallEvents
from runner.models.interface import Complete, Completion, Request, SampleKey
from runner.models.journal_records import CallRecord, EndedRecord, RepeatRecord, RequestRecord, messages_hash
from runner.models.usage_totals import UsageTotals

MAX_N = 128
"""Maximum value of `n`, the number of answers to one call, in the OpenAI API."""


class Log(Protocol):
    """Stores answers: the run's journal, or a worker's connection to the process with the journal."""

    @property
    def is_bound(self) -> bool: ...

    async def append(self, *records: dict[str, Any]) -> None: ...


class Recorded(Protocol):
    """The records of a journal, by sample."""

    def get(self, sample: SampleKey) -> CallRecord | EndedRecord | None: ...


class JournaledCompleter:
    """Answers requests from the journal, or calls the model and writes the answer to the journal before returning it.

    `parameters` has the hash of each model group's parameters. `sharing` are the groups that request the answers of
    sibling samples in one call. `sent` returns a request's messages as the server receives them. `charge` returns the
    amount that a budget counts for an answer, if it differs from the answer's cost.
    """

    def __init__(
        self,
        complete: Complete,
        journal: Log,
        recorded: Recorded,
        parameters: Mapping[str, str],
        *,
        sharing: frozenset[str] = frozenset(),
        sent: Callable[[Request], Sequence[ChatMessage]] = lambda request: request.messages,
        events: CallEvents = NO_EVENTS,
        charge: Callable[[Request, Completion], UsageTotals | None] = lambda _, __: None,
        repeats_lost_calls: bool = True,
    ) -> None:
        """Prepare the layer. With `repeats_lost_calls`, samples that failed in transport are requested again."""
        self._complete = complete
        self._journal = journal
        self._recorded = recorded
        self._parameters = parameters
        self._sharing = sharing
        self._sent = sent
        self._events = events
        self._charge = charge
        self._repeats_lost_calls = repeats_lost_calls
        self._unclaimed: dict[SampleKey, Completion] = {}
        """Recorded answers for siblings, whose games have not requested them yet."""
        self._locks: dict[SampleKey, asyncio.Lock] = {}
        """A lock for each set of siblings, by its first sample."""
        self._recorded_now: set[SampleKey] = set()
        """Samples that this process has requested."""

    async def complete(self, request: Request) -> Completion:
        """Return the answer to a request, which is on disk when this returns.

        Raises:
            JournalError: the journal has an answer to another request for this sample.
        """
        # Journals before format 2 have the hash of the messages before they are converted for the server.
        messages = self._sent(request) if self._journal.is_bound else request.messages
        identity = RequestRecord(self._parameters[request.group], messages_hash(messages))
        completion = self._from_journal(request, identity)
        if completion is None:
            completion = await self._from_model(request, identity)
        self._events.answered(request, completion)
        return completion

    async def _from_model(self, request: Request, identity: RequestRecord) -> Completion:
        """Return the model's answer, or raise the error that ended the call. Both are on disk before."""
        try:
            if request.group in self._sharing and request.siblings:
                completion = await self._call_with_siblings(request, identity)
            else:
                completion = await self._call_one(request, identity)
        except CallError as error:
            await self._journal.append(EndedRecord.from_error(request.sample, identity, error).to_json())
            self._events.settled(request.sample)
            raise
        except ProviderRefusal:
            self._events.refused(request.sample)
            raise
        self._events.settled(request.sample)
        return completion

    def _from_journal(self, request: Request, identity: RequestRecord) -> Completion | None:
        """Return the recorded answer to a request; None if there is none, or if another attempt is due.

        Raises:
            JournalError: the recorded request differs.
            CallError: the request failed for good.
        """
        record = self._recorded.get(request.sample)
        if record is None:
            return None
        if not record.request.matches(identity):
            raise JournalError(
                f"the journal has an answer for {request.sample}, but to another request. Restore spec.yaml and "
                "inputs/ in the run's folder if they were edited, or add --again to play a new run"
            )
        if isinstance(record, CallRecord):
            return record.completion
        if record.is_transient and self._repeats_lost_calls:
            return None  # another attempt may succeed
        raise record.as_error()

    async def _call_with_siblings(self, request: Request, identity: RequestRecord) -> Completion:
        """Make one call for this sample and for all its siblings without an answer, and return this sample's answer."""
        samples = sorted((request.sample, *request.siblings))
        async with self._locks.setdefault(samples[0], asyncio.Lock()):
            if request.sample in self._unclaimed:
                return self._unclaimed.pop(request.sample)
            unanswered = [
                sample
                for sample in samples
                if sample == request.sample or (sample not in self._recorded_now and self._recorded.get(sample) is None)
            ]
            # This sample must be first, because a server may return fewer answers than requested.
            unanswered.sort(key=lambda sample: sample != request.sample)
            try:
                if len(unanswered) == 1 or request.group not in self._sharing:
                    return await self._call_one(request, identity)
                return await self._call_many(request, identity, unanswered[:MAX_N])
            finally:
                # Even without an answer, so that siblings do not request it again.
                self._recorded_now.add(request.sample)

    async def _call_many(self, request: Request, identity: RequestRecord, samples: Sequence[SampleKey]) -> Completion:
        """Make one call for all these samples, and return the first sample's answer.

        If the server refuses this call, or the budget does not allow it, make a call for only the first sample.
        """
        combined = replace(request, n=len(samples), siblings=tuple(samples[1:]))
        try:
            completion = await self._answer(combined)
        except SeveralRefusedError as error:
            self._sharing -= {request.group}
            await self._events.failed(request, 1, error, 0.0)
            return await self._call_one(request, identity)
        except BudgetExhausted:
            return await self._call_one(request, identity)
        parts = list(zip(samples, split_choices(completion), strict=False))
        if len(parts) < len(samples) and not completion.from_cache and "error" not in completion.other_fields:
            self._events.returned_fewer_answers(request)
        first_sample, _ = parts[0]
        charge = self._charge(combined, completion)
        records = (
            RepeatRecord(sample, first_sample.repeat, number)
            if number and part.body is not None
            else CallRecord(sample, identity, part, charge if number == 0 else None)
            for number, (sample, part) in enumerate(parts)
        )
        # The records are written atomically, so that a resumed run sends the same request again after a kill.
        await self._journal.append(*(record.to_json() for record in records))
        for sample, part in parts:
            if not completion.from_cache:
                self._events.recorded(replace(request, sample=sample, n=len(samples)), part)
            self._recorded_now.add(sample)
            self._unclaimed[sample] = part
        return self._unclaimed.pop(request.sample)

    async def _call_one(self, request: Request, identity: RequestRecord) -> Completion:
        """Make one call for this sample."""
        completion = await self._answer(request)
        record = CallRecord(request.sample, identity, completion, self._charge(request, completion))
        await self._journal.append(record.to_json())
        self._events.recorded(request, completion)
        return completion

    async def _answer(self, request: Request) -> Completion:
        """Make one call, and return the answer in the form that this journal's format requires."""
        completion = with_own_choice(await self._complete(request))
        return completion if self._journal.is_bound else without_body(completion)
