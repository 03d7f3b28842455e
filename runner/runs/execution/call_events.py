"""Handles the events of model calls: updates a run's journal, file of calls in flight, cache and counts.

`RunCallEvents` is for a run in one process. Workers use `RemoteEvents` in `runner.runs.workers.writer_proxy`.
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.base.errors import CallError, RunError
from runner.base.storage.journal import Journal
from runner.models.call_events import CallEvents
from runner.models.costs import CallCosts, cost_of_failure
from runner.models.interface import Completion, Request, SampleKey
from runner.models.journal_records import FailureRecord
from runner.models.layers.cache import Cache
from runner.models.layers.lost_calls import InFlightFile
from runner.rollouts.failed_calls import FailedCalls, call_from_failure
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.execution.accounting import Accounting
from runner.runs.execution.server_notes import ServerProblemDetector
from runner.runs.execution.unusable_answers import AnswerChecker


@dataclass
class RecordedCallEvents(CallEvents):
    """The handling of events that is the same in a run of one process and in a worker."""

    costs: CallCosts
    stop: StopSwitch
    failed_calls: FailedCalls
    notes: ServerProblemDetector
    cache: Cache | None
    """The cache that stores new answers for other runs, if any."""
    is_budgeted: bool
    """Whether the run has a budget, which reserves the maximum cost of each call."""
    answer_checker: AnswerChecker

    def on_fewer_answers(self, request: Request) -> None:
        self.notes.report_fewer_answers(request.group)

    def add_failure(self, request: Request, attempt: int, error: CallError, wait: float) -> dict[str, object]:
        """Add a failed attempt to the calls of its game, and return the attempt's record for the journal."""
        # The cost of a call that may be billed is recorded even without a budget, because a budget may be set later.
        cost = cost_of_failure(self.costs.worst_case(request), error)
        self.costs.recorded_usd += cost.usd
        charged = cost if self.is_budgeted or cost.tokens else None
        record = FailureRecord(request.sample, attempt, str(error), wait, charged, error.usage)
        self.failed_calls.add(request.sample, call_from_failure(record, self.costs.groups[request.group].name))
        return record.to_json()

    def store_in_cache(self, request: Request, completion: Completion) -> None:
        """Store an answer in the cache, if there is one."""
        if self.cache is None:
            return
        try:
            self.cache.store(request, self.costs.groups[request.group], completion)
        except RunError as error:  # a note is enough, because the answer is in the journal
            self.notes.note(str(error))


@dataclass(kw_only=True)
class RunCallEvents(RecordedCallEvents):
    """Handles the events of one run's calls."""

    accounting: Accounting
    journal: Journal
    in_flight: InFlightFile

    def before_call(self, request: Request) -> None:
        self.stop.check()
        if self.costs.groups[request.group].sends_requests:
            self.in_flight.add_call(request.sample, self.costs.worst_case(request), self.journal.records)

    async def on_failure(self, request: Request, attempt: int, error: CallError, wait: float) -> None:
        self.accounting.count_failure(error)
        await self.journal.append(self.add_failure(request, attempt, error, wait))
        self.in_flight.settle_call(request.sample)
        self.stop.check()

    def on_server_status(self, server: str, problem: str | None) -> None:
        self.accounting.warn(server, problem)

    def on_server_difference(self, group: str, server: str, refused_calls: int, error_text: str) -> None:
        self.notes.report_differing_server(group, server, refused_calls, error_text)

    def on_recorded(self, request: Request, completion: Completion) -> None:
        self.accounting.count_new_answers(self.answer_checker.count(request, completion))
        self.store_in_cache(request, completion)

    def on_settled(self, sample: SampleKey) -> None:
        self.in_flight.settle_call(sample)

    def on_refused(self, sample: SampleKey) -> None:
        self.in_flight.discard_call(sample)

    def on_answer(self, request: Request, completion: Completion) -> None:
        self.notes.check_answer(request, completion)
        self.accounting.count_answer(request, completion)
        self.accounting.check_share_of_unusable_answers()  # comes last, because it may raise an error
