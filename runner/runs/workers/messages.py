"""The messages between the writer of a run and its workers.

The writer sends `Start`; the worker answers `WorkerReady` or `CannotStart`. The writer leases games, each with its
records in the journal, and the worker reports each as `GameFinished` or `Unfinished`. A worker sends
records to append, and continues when the writer acknowledges that they are on disk. The writer holds the budget and
the limits, so a worker requests a permit before each call that counts, and reports how the call ended.
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
from runner.rollouts.plan_order import FinishedJob
from runner.runs.execution.unusable import AnswerCounts
from runner.runs.workers.remote_errors import RemoteError

Record = dict[str, Any]
"""A record of the journal as JSON."""

ALIVE_SECONDS = 5.0
"""The seconds between a worker's reports that it is alive."""


# From the writer


@dataclass(frozen=True, kw_only=True)
class Start:
    """Everything a worker needs to know about the run: the first message."""

    plan: Plan
    run_id: str
    is_bound: bool
    """Whether the journal is bound to its run; see `runner.base.storage.log_lines`."""
    is_durable: bool
    """Whether answers cost something, so that a game continues only when its answer is on disk."""
    is_budgeted: bool
    makes_outputs: bool
    """Whether workers send the outputs of games instead of rollouts."""
    answered: frozenset[str]
    """The model groups that a server has answered before."""
    concurrency: int
    """The maximum number of calls in flight for all workers together."""
    adapters: Mapping[str, str]
    """The paths of the models that are LoRA adapters, for servers that must load them."""
    journal: str | None = None
    """The number of the journal, which the cache stores with each answer."""


class Lease(NamedTuple):
    """A game to play, with its records in the journal."""

    job: Job
    records: Sequence[Record]
    at_once: int
    """The number of games that the worker plays concurrently; further leased games wait in the worker."""


class Acknowledged(NamedTuple):
    """The records with these numbers are on disk."""

    numbers: Sequence[int]


class Granted(NamedTuple):
    """A call may be sent."""

    number: int


class Denied(NamedTuple):
    """A call may not be sent."""

    number: int
    failure: RemoteError


class StopRequest(NamedTuple):
    """Send no new calls."""


class GroupsAnswered(NamedTuple):
    """At least one worker has received answers from these model groups."""

    groups: frozenset[str]


class Drain(NamedTuple):
    """The games have all ended: report everything that remains, and exit."""


# From a worker


class WorkerReady(NamedTuple):
    """The worker is ready for games."""


class Alive(NamedTuple):
    """The worker's event loop is running, even if its servers are slow."""


class CannotStart(NamedTuple):
    """The worker cannot connect, which would be the same for any other worker."""

    failure: RemoteError


class Append(NamedTuple):
    """Records for the journal."""

    number: int | None
    """The number to acknowledge; None if no call waits for these records."""
    groups: Sequence[Sequence[Unnumbered]]
    """Groups of records; the records of a group are written atomically."""
    samples: Sequence[tuple[Any, ...]]
    """The sample of each record, over all groups."""
    failures: Sequence[str] = ()
    """The errors of the failed attempts among these records."""


class Ask(NamedTuple):
    """A request for a permit to call a model."""

    number: int
    group: str
    server: str | None
    """One of the group's servers; None if it has only one."""
    sample: SampleKey
    most: UsageTotals
    """The maximum usage and cost of the call."""


class Ended(NamedTuple):
    """A granted call has ended with an answer and its cost (`charge`), or with a failure."""

    number: int
    charge: UsageTotals | None
    failure: RemoteError | None = None


class GaveUp(NamedTuple):
    """The worker no longer waits for a call that was requested or granted."""

    number: int


class CallRefused(NamedTuple):
    """The provider has refused a call, which therefore has no record."""

    sample: SampleKey


class GameFinished(NamedTuple):
    """A game has ended."""

    job_index: int
    """The index of the game's job."""
    result: FinishedJob


class Unfinished(NamedTuple):
    """A game was not finished."""

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


class ServerDown(NamedTuple):
    """A server does not answer, for the reason in the message; the message None means that it answers again."""

    server: str
    message: str | None


class Unlike(NamedTuple):
    """A server has refused `calls` more calls that the other servers of its group accepted."""

    group: str
    server: str
    calls: int
    message: str


class Noted(NamedTuple):
    """A note for the run; only the first note about each subject is used."""

    subject: str
    line: str


class Logged(NamedTuple):
    """A line for the log of the run."""

    logger: str
    level: int
    line: str


class RatesLearned(NamedTuple):
    """The rate limits that a server stated in the headers of an answer."""

    group: str
    server: str | None
    headers: Mapping[str, str]


class Drained(NamedTuple):
    """The worker has reported everything; `failure` is an error that is only known after all games have ended."""

    failure: RemoteError | None
