"""Updates the journal, the calls in flight, the cache and the counts of a run at each event of a model call."""

from __future__ import annotations

from dataclasses import dataclass

from runner.base.errors import CallError, RunError
from runner.base.storage.journal import Journal
from runner.models.call_events import CallEvents
from runner.models.costs import CallCosts, cost_of_failure
from runner.models.interface import Completion, Request, SampleKey
from runner.models.journal_records import FailureRecord
from runner.models.layers.cache import Cache
from runner.models.layers.lost_calls import InFlight
from runner.rollouts.failed_calls import FailedCalls, failed_call
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.execution.accounting import Accounting
from runner.runs.execution.server_notes import ServerNotes
from runner.runs.execution.unusable import AnswerJudge


def failure_record(
    costs: CallCosts, request: Request, attempt: int, error: CallError, wait: float, *, budgeted: bool
) -> FailureRecord:
    """Return the journal's record of a failed attempt."""
    # A failed call that may have been billed is charged even without a budget, because a budget may be set later.
    charge = cost_of_failure(costs.worst_case(request), error)
    charged = charge if budgeted or charge.tokens else None
    return FailureRecord(request.sample, attempt, str(error), wait, charged, error.usage)


@dataclass(frozen=True)
class RunCallEvents(CallEvents):
    """Handles the events of one run's calls."""

    costs: CallCosts
    stop: StopSwitch
    accounting: Accounting
    journal: Journal
    in_flight: InFlight
    failed_calls: FailedCalls
    server_notes: ServerNotes
    cache: Cache | None
    """The cache that stores new answers for other runs, if any."""
    budgeted: bool
    """Whether the run has a budget, which reserves the maximum cost of each call."""
    judge: AnswerJudge

    def sending(self, request: Request) -> None:
        self.stop.check()
        if self.costs.groups[request.group].is_called_live:
            self.in_flight.sent(request.sample, self.costs.worst_case(request), self.journal.records)

    async def failed(self, request: Request, attempt: int, error: CallError, wait: float) -> None:
        self.accounting.failed(error)
        record = failure_record(self.costs, request, attempt, error, wait, budgeted=self.budgeted)
        self.failed_calls.add(request.sample, failed_call(record, self.costs.groups[request.group].name))
        await self.journal.append(record.to_json())
        self.in_flight.settled(request.sample)
        self.stop.check()

    def server_down(self, server: str, message: str | None) -> None:
        self.accounting.warn(server, message)

    def unlike(self, group: str, server: str, calls: int, error_text: str) -> None:
        self.server_notes.unlike(group, server, calls, error_text)

    def recorded(self, request: Request, completion: Completion) -> None:
        self.accounting.count_new(self.judge.judge(request, completion))
        if self.cache is None:
            return
        try:
            self.cache.store(request, self.costs.groups[request.group], completion)
        except RunError as error:  # a note is enough, because the answer is in the journal
            self.server_notes.note(str(error))

    def settled(self, sample: SampleKey) -> None:
        self.in_flight.settled(sample)

    def refused(self, sample: SampleKey) -> None:
        self.in_flight.refused(sample)

    def gave_fewer(self, request: Request) -> None:
        self.server_notes.gave_fewer(request.group)

    def answered(self, request: Request, completion: Completion) -> None:
        self.server_notes.answered(request, completion)
        self.accounting.answered(request, completion)
        self.accounting.check_unusable_share()  # may raise, so only after everything else has counted the call
