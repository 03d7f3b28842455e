"""Completions to journal records and back, and the layer that asks for nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from runner.errors import (
    BudgetExhausted,
    CallError,
    JournalError,
    ProviderRefusal,
    SeveralRefusedError,
    TransientError,
)
from runner.models.base import Complete, Completion, Request, SampleKey, Usage
from runner.models.events import NO_EVENTS, CallEvents
from runner.models.records import (
    BATCH,
    CALL,
    FAILURE,
    GAME_ENDING_FAILURE,
    call_error_from,
    completion_from_fields,
    ended_record,
    messages_hash,
    to_record,
)
from runner.models.tally import Tally
from runner.storage.journal import Journal

MAX_N = 128
"""The most answers that one call may ask for, by the wire format."""


class JournalIndex:
    """The completions of a journal by sample: offsets in memory, answers read when asked for."""

    def __init__(self, read: Callable[[int], bytes], records: Iterable[tuple[int, dict[str, Any]]]) -> None:
        self._read = read
        self._offsets: dict[SampleKey, int] = {}
        self._failures: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self.batches: list[dict[str, Any]] = []
        for offset, record in records:
            if record["kind"] in (CALL, GAME_ENDING_FAILURE):
                self._offsets[SampleKey(*record["sample"])] = offset
            elif record["kind"] == FAILURE:
                self._failures.setdefault((record["sample"][0], record["sample"][1]), []).append(record)
            elif record["kind"] == BATCH:
                self.batches.append(record)

    def __len__(self) -> int:
        return len(self._offsets)

    def get(self, sample: SampleKey) -> dict[str, Any] | None:
        """The record of a sample's completion, or of what ended its game instead."""
        offset = self._offsets.get(sample)
        if offset is None:
            return None
        record: dict[str, Any] = orjson.loads(self._read(offset)[9:])
        return record

    def failures(self, datapoint: str, repeat: int) -> Sequence[dict[str, Any]]:
        """The failed attempts of a rollout."""
        return self._failures.get((datapoint, repeat), ())


class JournaledCompleter:
    """`complete` that answers from the journal what it holds, and writes what it does not before going on.

    `parameters` is each model group's hash of what it sends besides the messages; `sharing` are the groups that
    ask for the answers of sibling samples in one call; `worst_case` is the most that a call may cost.
    """

    def __init__(
        self,
        complete: Complete,
        journal: Journal,
        recorded: JournalIndex,
        parameters: Mapping[str, str],
        *,
        sharing: frozenset[str] = frozenset(),
        events: CallEvents = NO_EVENTS,
        worst_case: Callable[[Request], Tally] = lambda _: Tally(),
    ) -> None:
        self._complete = complete
        self._journal = journal
        self._recorded = recorded
        self._parameters = parameters
        self._sharing = sharing
        self._events = events
        self._worst_case = worst_case
        self._ready: dict[SampleKey, Completion] = {}
        self._asking: dict[SampleKey, asyncio.Lock] = {}
        self._written: set[SampleKey] = set()

    async def complete(self, request: Request) -> Completion:
        """Answer once; the answer is on disk when this returns.

        Raises:
            JournalError: the journal holds an answer to another request for this sample.
        """
        messages = messages_hash(request.messages)
        completion = self._from_journal(request, messages)
        if completion is None:
            completion = await self._asked(request, messages)
        self._events.answered(request, completion)
        return completion

    async def _asked(self, request: Request, messages: str) -> Completion:
        """The answer of a model, on disk; or the end of the call, on disk, and then raised."""
        try:
            if request.group in self._sharing and request.siblings:
                completion = await self._shared(request, messages)
            else:
                completion = await self._alone(request, messages)
        except CallError as error:
            await self._journal.append(ended_record(request.sample, error, self._parameters[request.group], messages))
            self._events.settled(request.sample)
            raise
        except ProviderRefusal:
            self._events.refused(request.sample)
            raise
        self._events.settled(request.sample)
        return completion

    def _from_journal(self, request: Request, messages: str) -> Completion | None:
        record = self._recorded.get(request.sample)
        if record is None:
            return None
        if record["asked"] != [self._parameters[request.group], messages]:
            raise JournalError(
                f"the journal's answer for {request.sample} is to another request than this run makes; was a file "
                "in the run folder edited? Play the spec anew with --again"
            )
        if record["kind"] == GAME_ENDING_FAILURE:
            if record["error"] == TransientError.__name__:
                return None  # the next process may have more luck
            raise call_error_from(record)
        return completion_from_fields(record)

    async def _shared(self, request: Request, messages: str) -> Completion:
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
                    return await self._alone(request, messages)
                return await self._together(request, messages, wanted[:MAX_N])
            finally:
                self._written.add(request.sample)  # also where it has none: no sibling asks for it any more

    async def _together(self, request: Request, messages: str, wanted: Sequence[SampleKey]) -> Completion:
        """One call for all these samples, or for the first alone where that is refused or would cost too much."""
        together = replace(request, n=len(wanted), siblings=tuple(wanted[1:]))
        try:
            completion = await self._complete(together)
        except SeveralRefusedError as error:
            self._sharing -= {request.group}
            await self._events.failed(request, 1, error, 0.0)
            return await self._alone(request, messages)
        except BudgetExhausted:
            return await self._alone(request, messages)
        most, parameters = self._worst_case(together), self._parameters[request.group]
        parts = list(zip(wanted, split(completion), strict=False))
        # Together: a kill leaves all parts or none, and what is asked again is what was asked before.
        await self._journal.append(*(to_record(sample, part, parameters, messages, most) for sample, part in parts))
        for sample, part in parts:
            if not completion.from_cache:
                self._events.recorded(replace(request, sample=sample, n=len(wanted)), part)
            self._written.add(sample)
            self._ready[sample] = part
        return self._ready.pop(request.sample)

    async def _alone(self, request: Request, messages: str) -> Completion:
        """One call for this sample."""
        completion = await self._complete(request)
        most = self._worst_case(request) if completion.usage.estimated else None
        parameters = self._parameters[request.group]
        await self._journal.append(to_record(request.sample, completion, parameters, messages, most))
        self._events.recorded(request, completion)
        return completion


def split(completion: Completion) -> list[Completion]:
    """A completion of many choices as one for each; the first carries the usage of the whole call, and is the call."""
    first, *rest = completion.choices
    nothing = Usage(estimated=completion.usage.estimated)
    return [
        replace(completion, choices=(first,)),
        *(replace(completion, choices=(choice,), usage=nothing, from_cache=True) for choice in rest),
    ]
