"""The layer that asks for nothing twice: a write-ahead log of completions, on disk before a game goes on."""

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
from runner.models.answers import split, with_own_choice, without_body
from runner.models.call_events import NO_EVENTS, CallEvents
from runner.models.interface import Complete, Completion, Request, SampleKey
from runner.models.journal_records import CallRecord, EndedRecord, RepeatRecord, RequestRecord, messages_hash
from runner.models.usage_totals import UsageTotals

MAX_N = 128
"""The most answers that one call may ask for, by the wire format."""


class Log(Protocol):
    """Where answers are written: the journal of the run, or the way to whoever has it open."""

    @property
    def is_bound(self) -> bool: ...

    async def append(self, *records: dict[str, Any]) -> None: ...


class Recorded(Protocol):
    """What a journal holds, by sample."""

    def get(self, sample: SampleKey) -> CallRecord | EndedRecord | None: ...


class JournaledCompleter:
    """`complete` that answers from the journal what it holds, and writes what it does not before going on.

    `parameters` is each model group's hash of what it sends besides the messages; `sharing` are the groups that
    ask for the answers of sibling samples in one call; `sent` is a request's messages as the server gets them;
    `charge` is what a budget counts for an answer, if that is more than the cost of its usage.
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
        asks_again: bool = True,
    ) -> None:
        """`asks_again`: what ended in transport is asked for once more, rather than to have ended."""
        self._complete = complete
        self._journal = journal
        self._recorded = recorded
        self._parameters = parameters
        self._sharing = sharing
        self._sent = sent
        self._events = events
        self._charge = charge
        self._asks_again = asks_again
        self._ready: dict[SampleKey, Completion] = {}
        self._asking: dict[SampleKey, asyncio.Lock] = {}
        self._written: set[SampleKey] = set()

    async def complete(self, request: Request) -> Completion:
        """Answer once; the answer is on disk when this returns.

        Raises:
            JournalError: the journal holds an answer to another request for this sample.
        """
        # Each journal goes on as it was begun: before format 2 it had the messages as they are before the wire.
        chat = self._sent(request) if self._journal.is_bound else request.messages
        asked = RequestRecord(self._parameters[request.group], messages_hash(chat))
        completion = self._from_journal(request, asked)
        if completion is None:
            completion = await self._from_model(request, asked)
        self._events.answered(request, completion)
        return completion

    async def _from_model(self, request: Request, asked: RequestRecord) -> Completion:
        """The answer of a model, on disk; or the end of the call, on disk, and then raised."""
        try:
            if request.group in self._sharing and request.siblings:
                completion = await self._ask_with_siblings(request, asked)
            else:
                completion = await self._ask_one(request, asked)
        except CallError as error:
            await self._journal.append(EndedRecord.of(request.sample, asked, error).to_json())
            self._events.settled(request.sample)
            raise
        except ProviderRefusal:
            self._events.refused(request.sample)
            raise
        self._events.settled(request.sample)
        return completion

    def _from_journal(self, request: Request, asked: RequestRecord) -> Completion | None:
        record = self._recorded.get(request.sample)
        if record is None:
            return None
        if not record.asked.is_of(asked):
            raise JournalError(
                f"the journal's answer for {request.sample} is to another request than this run makes; was a file "
                "in the run folder edited? Play the spec again with --again"
            )
        if isinstance(record, CallRecord):
            return record.completion
        if record.is_transient and self._asks_again:
            return None  # this process may have more luck
        raise record.as_error()

    async def _ask_with_siblings(self, request: Request, asked: RequestRecord) -> Completion:
        """One call for this sample and all its siblings that have no answer yet."""
        family = sorted((request.sample, *request.siblings))
        async with self._asking.setdefault(family[0], asyncio.Lock()):
            if request.sample in self._ready:
                return self._ready.pop(request.sample)
            wanted = [
                sample
                for sample in family
                if sample == request.sample or (sample not in self._written and self._recorded.get(sample) is None)
            ]
            # Our own sample first: a server that gives fewer answers than asked must still answer us.
            wanted.sort(key=lambda sample: sample != request.sample)
            try:
                if len(wanted) == 1 or request.group not in self._sharing:
                    return await self._ask_one(request, asked)
                return await self._ask_many(request, asked, wanted[:MAX_N])
            finally:
                self._written.add(request.sample)  # also where it has none: no sibling asks for it any more

    async def _ask_many(self, request: Request, asked: RequestRecord, wanted: Sequence[SampleKey]) -> Completion:
        """One call for all these samples, or for the first alone where that is refused or would cost too much."""
        many = replace(request, n=len(wanted), siblings=tuple(wanted[1:]))
        try:
            completion = await self._answer(many)
        except SeveralRefusedError as error:
            self._sharing -= {request.group}
            await self._events.failed(request, 1, error, 0.0)
            return await self._ask_one(request, asked)
        except BudgetExhausted:
            return await self._ask_one(request, asked)
        parts = list(zip(wanted, split(completion), strict=False))
        if len(parts) < len(wanted) and not completion.from_cache and "error" not in completion.other:
            self._events.gave_fewer(request)
        first, _ = parts[0]
        charged = self._charged(many, completion)
        records = (
            RepeatRecord(sample, first.repeat, number)
            if number and part.body is not None
            else CallRecord(sample, asked, part, charged if number == 0 else None)
            for number, (sample, part) in enumerate(parts)
        )
        # Together: a kill leaves all parts or none, and what is asked again is what was asked before.
        await self._journal.append(*(record.to_json() for record in records))
        for sample, part in parts:
            if not completion.from_cache:
                self._events.recorded(replace(request, sample=sample, n=len(wanted)), part)
            self._written.add(sample)
            self._ready[sample] = part
        return self._ready.pop(request.sample)

    async def _ask_one(self, request: Request, asked: RequestRecord) -> Completion:
        """One call for this sample."""
        completion = await self._answer(request)
        record = CallRecord(request.sample, asked, completion, self._charged(request, completion))
        await self._journal.append(record.to_json())
        self._events.recorded(request, completion)
        return completion

    async def _answer(self, request: Request) -> Completion:
        """The answer to one call, as this journal takes it: each goes on in the format that it was begun in."""
        completion = with_own_choice(await self._complete(request))
        return completion if self._journal.is_bound else without_body(completion)

    def _charged(self, request: Request, completion: Completion) -> UsageTotals | None:
        return None if completion.from_cache else self._charge(request, completion)
