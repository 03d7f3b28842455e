"""What stands in a worker for what the writer holds: the journal, the permits of calls, the accounts."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.base.errors import CallError, RunError
from runner.base.redaction import redacted
from runner.base.storage.log_lines import Unnumbered, unnumbered
from runner.models.admission import Learn
from runner.models.call_events import CallEvents
from runner.models.costs import CallCosts
from runner.models.interface import Complete, Completion, Request, SampleKey
from runner.models.journal_index import JournalIndex
from runner.models.journal_records import CallRecord, EndedRecord, FailureRecord, IndexedRecord, parse_record
from runner.models.layers.cache import Cache
from runner.models.usage_totals import UsageTotals
from runner.rollouts.failed_calls import FailedCalls, failed_call
from runner.rollouts.plan import Plan
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.execution.call_events import failure_record
from runner.runs.execution.server_notes import ServerNotes
from runner.runs.execution.unusable import AnswerCounts, AnswerJudge
from runner.runs.workers.link import Link
from runner.runs.workers.messages import (
    Acked,
    AnswersCounted,
    Append,
    Ask,
    CallRefused,
    Ended,
    GaveUp,
    Learned,
    Logged,
    Noted,
    Record,
    ServerDown,
    Unlike,
)
from runner.runs.workers.record_keys import game_of_job, game_of_sample
from runner.runs.workers.remote_errors import RemoteError

UNSENT = 64
"""So many records that nobody waits for go out together, at most."""

_RATES = ("x-ratelimit-limit-requests", "x-ratelimit-limit-tokens")
"""The headers that a limit learns from."""


class RemoteJournal:
    """The journal of the run, as a worker has it: what is appended is on disk once the writer says so.

    Where all answers are drawn from the seed, or are another run's, nobody waits for that, and records go along with
    the game that they are of: what a worker loses when it is killed comes again, the same, for nothing.
    """

    def __init__(self, link: Link, *, is_bound: bool, is_durable: bool) -> None:
        self._link, self.is_bound, self._is_durable = link, is_bound, is_durable
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._unsent = _Unsent()

    async def append(self, *records: Record) -> None:
        """Have records written, all of them or none; they are kept when this returns, where that matters."""
        self._unsent.add(records)
        if not self._is_durable:
            if len(self._unsent.groups) >= UNSENT:
                self.tell()
            return
        number = next(self._numbers)
        kept = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._tell(number)
        await kept

    def tell(self) -> None:
        """Send what nobody waits for: before the writer hears that a game is over whose records are among it."""
        if self._unsent.groups:
            self._tell(None)

    def _tell(self, number: int | None) -> None:
        unsent, self._unsent = self._unsent, _Unsent()
        self._link.send(Append(number, unsent.groups, unsent.samples, unsent.failures, unsent.size))

    def acked(self, message: Acked) -> None:
        """Go on with what is on disk."""
        for number in message.numbers:
            kept = self._waiting.pop(number)
            if not kept.done():
                kept.set_result(None)


class _Unsent:
    """Records as they are sent: each is made bytes of at once, while it is in the processor's cache."""

    def __init__(self) -> None:
        self.groups: list[Sequence[Unnumbered]] = []
        self.samples: list[tuple[Any, ...]] = []
        self.failures: list[str] = []
        self.size = 0

    def add(self, records: Sequence[Record]) -> None:
        """Take in records that count together."""
        lines = unnumbered(records)
        self.groups.append(lines)
        self.size += sum(len(before) + len(behind) for before, behind in lines)
        for record in records:
            self.samples.append(tuple(record["sample"]))
            if record["kind"] == FailureRecord.KIND:
                self.failures.append(record["error"])


class LeasedRecords:
    """What the journal has of the games that are leased: each game's records by themselves."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._games: dict[object, tuple[list[Record], JournalIndex]] = {}

    def add(self, records: Sequence[Record]) -> None:
        """Take in the records of a game."""
        for record in records:
            kept, index = self._of(game_of_sample(self._plan, *record["sample"][:2]))
            kept.append(record)
            index.add(IndexedRecord(len(kept) - 1, len(kept) - 1, parse_record(record)))

    def _of(self, game: object) -> tuple[list[Record], JournalIndex]:
        if game not in self._games:
            kept: list[Record] = []
            self._games[game] = kept, JournalIndex(kept.__getitem__, ())
        return self._games[game]

    def drop(self, game: object) -> None:
        """Forget a game, which is over."""
        if not self._plan.shares_between_games:
            self._games.pop(game, None)

    def get(self, sample: SampleKey) -> CallRecord | EndedRecord | None:
        """The record of a sample's completion, or of what ended its game instead."""
        found = self._games.get(game_of_sample(self._plan, sample.datapoint, sample.repeat)) if self._games else None
        return None if found is None else found[1].get(sample)

    def failures(self, job: Any) -> Sequence[FailureRecord]:
        """The failed attempts of a rollout."""
        found = self._games.get(game_of_job(self._plan, job)) if self._games else None
        return () if found is None else found[1].failures(job.datapoint.id, job.number)


class RemotePermits:
    """Asks the writer for a permit for each call that counts, and tells it how the call ended."""

    def __init__(self, link: Link, costs: CallCosts, *, budgeted: bool) -> None:
        self._link, self._costs, self._budgeted = link, costs, budgeted
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._learned: dict[tuple[str, str | None], Mapping[str, str]] = {}

    def around(self, complete: Complete, server: str | None) -> Complete:
        """`complete` for one attempt of one call, which the writer must allow."""

        async def permitted(request: Request) -> Completion:
            if not (self._budgeted or self._costs.groups[request.group].called_live):
                return await complete(request)
            number = await self._granted(request, server)
            try:
                completion = await complete(request)
            except BaseException as error:
                gave_up = isinstance(error, asyncio.CancelledError)
                self._link.send(GaveUp(number) if gave_up else Ended(number, None, RemoteError.of(error)))
                raise
            self._link.send(Ended(number, self._costs.charge(request, completion)))
            return completion

        return permitted

    async def _granted(self, request: Request, server: str | None) -> int:
        number = next(self._numbers)
        granted = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._link.send(Ask(number, request.group, server, request.sample, self._costs.worst_case(request)))
        try:
            await granted
        except asyncio.CancelledError:
            self._waiting.pop(number, None)
            self._link.send(GaveUp(number))
            raise
        return number

    def answered(self, number: int, failure: RemoteError | None) -> None:
        """A call is granted, or denied; nothing where it is waited for no more."""
        granted = self._waiting.pop(number, None)
        if granted is None or granted.done():
            return
        if failure is None:
            granted.set_result(None)
        else:
            granted.set_exception(failure.error())

    def learns(self, group: str, server: str | None) -> Learn | None:
        """Passes on what a server says of its rates, where it says something new."""
        if not self._costs.groups[group].called_live:
            return None

        def learn(headers: Mapping[str, str]) -> None:
            said = {name: headers[name] for name in _RATES if name in headers}
            if said and self._learned.get((group, server)) != said:
                self._learned[group, server] = said
                self._link.send(Learned(group, server, said))

        return learn


class RemoteNotes(ServerNotes):
    """Notes that the writer says, each once for all workers."""

    def __init__(self, costs: CallCosts, link: Link) -> None:
        super().__init__(costs.groups, [])
        self._link = link

    def note(self, line: str, about: str | None = None) -> None:
        self._link.send(Noted(about or line, line))


@dataclass
class RemoteEvents(CallEvents):
    """The events of a worker's calls, told to the writer as far as it does not see them itself."""

    writer: Link
    costs: CallCosts
    stop: StopSwitch
    journal: RemoteJournal
    failed_calls: FailedCalls
    notes: RemoteNotes
    cache: Cache | None
    budgeted: bool
    judge: AnswerJudge
    _new_answers: AnswerCounts = AnswerCounts()
    _counted: dict[tuple[str, bool], tuple[UsageTotals, int]] = field(default_factory=dict)

    def sending(self, request: Request) -> None:
        del request
        self.stop.check()

    async def failed(self, request: Request, attempt: int, error: CallError, wait: float) -> None:
        record = failure_record(self.costs, request, attempt, error, wait, budgeted=self.budgeted)
        self.failed_calls.add(request.sample, failed_call(record, self.costs.groups[request.group].name))
        await self.journal.append(record.to_json())
        self.stop.check()

    def server_down(self, server: str, message: str | None) -> None:
        self.writer.send(ServerDown(server, message))

    def unlike(self, group: str, server: str, calls: int, said: str) -> None:
        self.writer.send(Unlike(group, server, calls, said))

    def recorded(self, request: Request, completion: Completion) -> None:
        self._new_answers = self._new_answers.plus(self.judge.judge(request, completion))
        if self.cache is None:
            return
        try:
            self.cache.keep(request, self.costs.groups[request.group], completion)
        except RunError as error:  # a note and no failure: the answer is in the journal
            self.notes.note(str(error))

    def refused(self, sample: SampleKey) -> None:
        self.writer.send(CallRefused(sample))

    def gave_fewer(self, request: Request) -> None:
        self.notes.gave_fewer(request.group)

    def answered(self, request: Request, completion: Completion) -> None:
        self.notes.answered(request, completion)
        if not self._counted:
            asyncio.get_running_loop().call_soon(self.tell_counts)
        key = request.group, completion.from_cache
        answers, repeats = self._counted.get(key) or (UsageTotals(), 0)
        answers.count(completion.usage, None if completion.from_cache else self.costs.prices[request.group])
        self._counted[key] = answers, repeats + (request.sample.attempt > 0)

    def tell_counts(self) -> None:
        """Tell what was counted since the last time."""
        counted, self._counted = self._counted, {}
        for (group, from_cache), (answers, repeats) in counted.items():
            new_answers, self._new_answers = self._new_answers, AnswerCounts()
            self.writer.send(AnswersCounted(group, from_cache, answers, repeats, new_answers))


class RemoteLog(logging.Handler):
    """Sends what a worker logs to the log of the run; keys that only the worker knows are taken out here."""

    def __init__(self, link: Link) -> None:
        super().__init__(logging.INFO)
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        self._link.send(Logged(record.name, record.levelno, redacted(record.getMessage())))
