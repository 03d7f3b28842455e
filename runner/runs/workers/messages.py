"""The messages between the writer of a run (the main process, which writes the run's files) and its workers.

The writer sends `StartMessage`; the worker answers `WorkerReady` or `CannotStart`. The writer leases games, each with
its records in the journal, and the worker reports each game as `GameFinished` or `GameUnfinished`. A worker sends
records to append, and continues when the writer acknowledges that they are on disk. The writer enforces the budget and
the limits, so a worker requests a permit before each call that counts toward them, and reports how the call ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from runner.base.storage.log_lines import Unnumbered
from runner.models.interface import SampleKey
from runner.models.usage_totals import UsageTotals
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.rollouts.reorder_buffer import FinishedJob
from runner.runs.execution.unusable_answers import AnswerCounts
from runner.runs.workers.remote_errors import RemoteError

Record = dict[str, Any]
"""A record of the journal as a JSON object."""

ALIVE_SECONDS = 5.0
"""The seconds between a worker's reports that it is alive."""


# From the writer


@dataclass(frozen=True, kw_only=True)
class StartMessage:
    """The first message to a worker, with everything that it needs to know about the run."""

    plan: Plan
    run_id: str
    is_journal_bound_to_run: bool
    """Whether the journal is bound to its run; see `runner.base.storage.log_lines`."""
    answers_cost_money: bool
    """Whether a provider charges for answers. A game must then wait until its answer is on disk."""
    is_budgeted: bool
    """Whether the run has a budget."""
    sends_outputs: bool
    """Whether workers send the outputs of games (`WorkerGame`) instead of rollouts."""
    answered_model_groups: frozenset[str]
    """The model groups whose servers have answered at least once."""
    concurrency: int
    """The maximum number of calls in flight for all workers together."""
    adapters: Mapping[str, str]
    """The paths of the models that are LoRA adapters, for servers that must load them."""
    journal_id: str | None = None
    """The id of the journal, which the cache stores with each answer."""


class Lease(NamedTuple):
    """A game to play, with its records in the journal."""

    job: Job
    records: Sequence[Record]
    concurrent_games: int
    """The number of games that the worker plays concurrently; further leased games wait in the worker."""


class Acknowledged(NamedTuple):
    """The records with these numbers are on disk."""

    numbers: Sequence[int]


class Granted(NamedTuple):
    """A call may be sent."""

    call_number: int


class Denied(NamedTuple):
    """A call may not be sent."""

    call_number: int
    failure: RemoteError


class StopRequest(NamedTuple):
    """The order to send no new calls."""


class GroupsAnswered(NamedTuple):
    """The model groups that have answered at least one worker."""

    groups: frozenset[str]


class FinalReportRequest(NamedTuple):
    """The order to report everything that remains and then to end. The writer sends it after all games have ended."""


# From a worker


class WorkerReady(NamedTuple):
    """The worker is ready for games."""


class Alive(NamedTuple):
    """The worker's event loop is running, even if its servers are slow."""


class CannotStart(NamedTuple):
    """The worker cannot connect to its servers. Any other worker would fail in the same way."""

    failure: RemoteError


class Append(NamedTuple):
    """Records for the journal."""

    number: int | None
    """The number of this message for the acknowledgement; None if no call waits for these records."""
    record_groups: Sequence[Sequence[Unnumbered]]
    """The records, in groups that are each written atomically."""
    samples: Sequence[tuple[Any, ...]]
    """The sample of each record, in the order of the records in all groups."""
    errors: Sequence[str] = ()
    """The errors of the failed attempts among these records."""


class PermitRequested(NamedTuple):
    """A request for a permit to call a model."""

    call_number: int
    group: str
    server: str | None
    """One of the group's servers; None if the group has only one."""
    sample: SampleKey
    max_cost: UsageTotals
    """The maximum usage and cost of the call."""


class CallEnded(NamedTuple):
    """A granted call has ended with an answer or a failure."""

    call_number: int
    charge: UsageTotals | None
    """The cost of the answer."""
    failure: RemoteError | None = None


class CallAbandoned(NamedTuple):
    """The worker has canceled a call that it had requested or made."""

    call_number: int


class CallRefused(NamedTuple):
    """The provider has refused a call. The call has no record."""

    sample: SampleKey


class GameFinished(NamedTuple):
    """A game has ended."""

    job_index: int
    """The index of the game's job."""
    result: FinishedJob


class GameUnfinished(NamedTuple):
    """A game ended with an error before it was finished."""

    job_index: int
    """The index of the game's job."""
    failure: RemoteError


class TemplateRendered(NamedTuple):
    """The text of a rendered template, so that the writer does not render it again for fine-tune files."""

    key: tuple[Any, ...]
    text: str


class AnswersCounted(NamedTuple):
    """The counts of the answers that games received from one model group."""

    group: str
    from_cache: bool
    answers: UsageTotals
    repeats: int
    new_answers: AnswerCounts
    """The counts of new answers from all groups."""


class ServerStatus(NamedTuple):
    """A server has stopped answering, or answers again."""

    server: str
    problem: str | None
    """The reason why the server does not answer; None if it answers again."""


class DifferingServer(NamedTuple):
    """A server has refused `refused_calls` more calls that other servers of its group accepted."""

    group: str
    server: str
    refused_calls: int
    error_text: str
    """The server's last error."""


class NoteAdded(NamedTuple):
    """A note for the run. The run has only the first note about each subject."""

    subject: str
    line: str


class LogLine(NamedTuple):
    """A line for the log of the run."""

    logger: str
    level: int
    line: str


class RateLimitsReported(NamedTuple):
    """A server stated rate limits in the headers of an answer."""

    group: str
    server: str | None
    headers: Mapping[str, str]


class FinalReport(NamedTuple):
    """The worker has reported everything. `failure` is set if a provider refused every call of a model group."""

    failure: RemoteError | None
