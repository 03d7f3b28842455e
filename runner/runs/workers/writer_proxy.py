"""A worker's proxies for objects of the writer (the main process): journal, permits, call events, notes and log.

A proxy has the interface of the object, but sends messages to the writer instead of changing files or counts itself.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.base.errors import CallError
from runner.base.redaction import redacted
from runner.base.storage.log_lines import Unnumbered, encode_unnumbered
from runner.models.admission import RateListener
from runner.models.costs import CallCosts
from runner.models.interface import Complete, Completion, Request, SampleKey
from runner.models.journal_index import JournalIndex
from runner.models.journal_records import CallRecord, EndedRecord, FailureRecord, IndexedRecord, parse_record
from runner.models.usage_totals import UsageTotals
from runner.rollouts.plan import Plan
from runner.runs.execution.call_events import RecordedCallEvents
from runner.runs.execution.server_notes import ServerProblemDetector
from runner.runs.execution.unusable_answers import AnswerCounts
from runner.runs.workers import messages
from runner.runs.workers.channel import WorkerChannel
from runner.runs.workers.leases import GameKey, game_key_of_sample
from runner.runs.workers.remote_errors import RemoteError

MAX_UNSENT_APPENDS = 64
"""The maximum number of appends that are collected and sent together, if no call waits for their records."""

_RATE_HEADERS = ("x-ratelimit-limit-requests", "x-ratelimit-limit-tokens")
"""The response headers that state a rate limit."""


class RemoteJournal:
    """A worker's proxy for the journal. The writer acknowledges appended records once they are on disk.

    Unless `waits_for_disk` is true, calls do not wait for the acknowledgement, and records are sent together. If the
    worker is then killed, its unsent records are lost, and the worker that replaces it creates the same records again.
    """

    def __init__(self, channel: WorkerChannel, *, is_bound_to_run: bool, waits_for_disk: bool) -> None:
        self._channel, self.is_bound_to_run, self._waits_for_disk = channel, is_bound_to_run, waits_for_disk
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._clear()

    def _clear(self) -> None:
        # The records that were not sent yet, as in the message `Append`.
        self._record_groups: list[Sequence[Unnumbered]] = []
        self._samples: list[tuple[Any, ...]] = []
        self._errors: list[str] = []

    async def append(self, *records: messages.Record) -> None:
        """Append records atomically. With `waits_for_disk`, wait until the records are on disk."""
        # Encode the records here, while their data is in the processor's cache.
        self._record_groups.append(encode_unnumbered(records))
        for record in records:
            self._samples.append(tuple(record["sample"]))
            if record["kind"] == FailureRecord.KIND:
                self._errors.append(record["error"])
        if not self._waits_for_disk:
            if len(self._record_groups) >= MAX_UNSENT_APPENDS:
                self.flush()
            return
        number = next(self._numbers)
        written_future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send(number)
        await written_future

    def flush(self) -> None:
        """Send the unsent records. The writer must get the records of a game before `GameFinished`."""
        if self._record_groups:
            self._send(None)

    def _send(self, number: int | None) -> None:
        self._channel.send(messages.Append(number, self._record_groups, self._samples, self._errors))
        self._clear()

    def acknowledge(self, message: messages.Acknowledged) -> None:
        """Continue the calls whose records are on disk."""
        for number in message.numbers:
            written_future = self._waiting.pop(number)
            if not written_future.done():
                written_future.set_result(None)


class LeasedRecords:
    """The journal's records of a worker's leased games, by game."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._games: dict[GameKey, tuple[list[messages.Record], JournalIndex]] = {}

    def add(self, records: Sequence[messages.Record]) -> None:
        """Add the records of a game."""
        for record in records:
            key = game_key_of_sample(self._plan, *record["sample"][:2])
            if key not in self._games:
                game_records: list[messages.Record] = []
                self._games[key] = game_records, JournalIndex(game_records.__getitem__, ())
            game_records, index = self._games[key]
            game_records.append(record)
            index.add(IndexedRecord(len(game_records) - 1, len(game_records) - 1, parse_record(record)))

    def drop(self, key: GameKey) -> None:
        """Forget the records of a game that has ended."""
        if not self._plan.games_share_calls:
            self._games.pop(key, None)

    def get(self, sample: SampleKey) -> CallRecord | EndedRecord | None:
        """Return the record of a sample's answer or of the error that ended its game; None if there is no record."""
        index = self._find_index(sample.datapoint, sample.repeat)
        return None if index is None else index.get(sample)

    def failures(self, datapoint: str, repeat: int) -> Sequence[FailureRecord]:
        """Return the records of a rollout's failed calls."""
        index = self._find_index(datapoint, repeat)
        return () if index is None else index.failures(datapoint, repeat)

    def _find_index(self, datapoint: str, repeat: int) -> JournalIndex | None:
        """Return the index of a game's records; None if there are no records."""
        game = self._games.get(game_key_of_sample(self._plan, datapoint, repeat)) if self._games else None
        return None if game is None else game[1]


class PermitRequester:
    """Requests a permit from the writer for each call that counts toward a budget or limit, and reports its end."""

    def __init__(self, channel: WorkerChannel, costs: CallCosts, *, is_budgeted: bool) -> None:
        self._channel, self._costs, self._is_budgeted = channel, costs, is_budgeted
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._sent_rate_limits: dict[tuple[str, str | None], Mapping[str, str]] = {}

    def wrap(self, complete: Complete, server: str | None) -> Complete:
        """Return a function that gets a permit from the writer, and then makes one attempt of the call."""

        async def complete_with_permit(request: Request) -> Completion:
            if not (self._is_budgeted or self._costs.groups[request.group].sends_requests):
                return await complete(request)
            number = next(self._numbers)
            grant_future = self._waiting[number] = asyncio.get_running_loop().create_future()
            self._channel.send(
                messages.PermitRequested(number, request.group, server, request.sample, self._costs.worst_case(request))
            )
            try:
                await grant_future
            except asyncio.CancelledError:
                self._waiting.pop(number, None)
                self._channel.send(messages.CallAbandoned(number))
                raise
            try:
                completion = await complete(request)
            except BaseException as error:
                is_abandoned = isinstance(error, asyncio.CancelledError)
                self._channel.send(
                    messages.CallAbandoned(number)
                    if is_abandoned
                    else messages.CallEnded(number, None, RemoteError.from_exception(error))
                )
                raise
            self._channel.send(messages.CallEnded(number, self._costs.charge(request, completion)))
            return completion

        return complete_with_permit

    def grant(self, message: messages.Granted) -> None:
        """Start a call that has its permit."""
        grant_future = self._waiting.pop(message.call_number, None)
        if grant_future is not None and not grant_future.done():
            grant_future.set_result(None)

    def deny(self, message: messages.Denied) -> None:
        """End a call whose permit was denied."""
        grant_future = self._waiting.pop(message.call_number, None)
        if grant_future is not None and not grant_future.done():
            grant_future.set_exception(message.failure.to_exception())

    def rate_listener(self, group: str, server: str | None) -> RateListener | None:
        """Return a function that sends a server's new rate limits to the writer; None if the group calls no server."""
        if not self._costs.groups[group].sends_requests:
            return None

        def send_rates(headers: Mapping[str, str]) -> None:
            rates = {name: headers[name] for name in _RATE_HEADERS if name in headers}
            if rates and self._sent_rate_limits.get((group, server)) != rates:
                self._sent_rate_limits[group, server] = rates
                self._channel.send(messages.RateLimitsReported(group, server, rates))

        return send_rates


class NoteSender(ServerProblemDetector):
    """Sends notes to the writer, which reports each note once for all workers."""

    def __init__(self, costs: CallCosts, channel: WorkerChannel) -> None:
        super().__init__(costs.groups, [])
        self._channel = channel

    def note(self, line: str, subject: str | None = None) -> None:
        self._channel.send(messages.NoteAdded(subject or line, line))


@dataclass(kw_only=True)
class RemoteEvents(RecordedCallEvents):
    """Handles the events of a worker's model calls: stores records, and sends counts and warnings to the writer."""

    channel: WorkerChannel
    journal: RemoteJournal
    _new_answers: AnswerCounts = AnswerCounts()
    _unsent_counts: dict[tuple[str, bool], tuple[UsageTotals, int]] = field(default_factory=dict)
    """The usage and the number of repeats of the answers since the last `AnswersCounted`.

    The key is a model group, and whether these answers come from the cache.
    """

    def before_call(self, request: Request) -> None:
        del request
        self.stop.check()

    async def on_failure(self, request: Request, attempt: int, error: CallError, wait: float) -> None:
        await self.journal.append(self.add_failure(request, attempt, error, wait))
        self.stop.check()

    def on_server_status(self, server: str, problem: str | None) -> None:
        self.channel.send(messages.ServerStatus(server, problem))

    def on_server_difference(self, group: str, server: str, refused_calls: int, error_text: str) -> None:
        self.channel.send(messages.DifferingServer(group, server, refused_calls, error_text))

    def on_recorded(self, request: Request, completion: Completion) -> None:
        self._new_answers = self._new_answers.plus(self.answer_checker.count(request, completion))
        self.store_in_cache(request, completion)

    def on_refused(self, sample: SampleKey) -> None:
        self.channel.send(messages.CallRefused(sample))

    def on_answer(self, request: Request, completion: Completion) -> None:
        self.notes.check_answer(request, completion)
        if not self._unsent_counts:
            asyncio.get_running_loop().call_soon(self.send_counts)
        key = request.group, completion.from_cache
        answers, repeats = self._unsent_counts.get(key) or (UsageTotals(), 0)
        answers.count(completion.usage, None if completion.from_cache else self.costs.prices[request.group])
        self._unsent_counts[key] = answers, repeats + (request.sample.attempt > 0)

    def send_counts(self) -> None:
        """Send the counts of all answers since the last `AnswersCounted`."""
        counts, self._unsent_counts = self._unsent_counts, {}
        for (group, from_cache), (answers, repeats) in counts.items():
            new_answers, self._new_answers = self._new_answers, AnswerCounts()
            self.channel.send(messages.AnswersCounted(group, from_cache, answers, repeats, new_answers))


class RemoteLog(logging.Handler):
    """Sends the log lines of a worker to the run's log, after redacting secrets that only the worker knows."""

    def __init__(self, channel: WorkerChannel) -> None:
        super().__init__(logging.INFO)
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.send(messages.LogLine(record.name, record.levelno, redacted(record.getMessage())))
