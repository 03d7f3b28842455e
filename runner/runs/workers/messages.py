"""The protocol between the writer of a run and its workers: one typed message per line of this conversation.

The writer sends `Start`; the worker answers `WorkerReady`, or `CannotStart`. The writer leases games, each with the
records that the journal has of it, and the worker reports each as `GameFinished`, `GamePlayed` or `Unfinished`. A
worker sends records to append, and continues when the writer acknowledges that they are on disk. It asks for a permit
before each call that counts, because the writer holds budget and limits, and reports how the call ended.
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
from runner.rollouts.rollout import Rollout
from runner.runs.execution.game_outputs import WorkerGame
from runner.runs.execution.unusable import AnswerCounts
from runner.runs.workers.remote_errors import RemoteError

Record = dict[str, Any]
"""A record of the journal, as its line has it."""

ALIVE_SECONDS = 5.0
"""The interval at which a worker says that it is alive."""


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
    """Whether workers turn games into rows and numbers, instead of sending whole rollouts."""
    answered: frozenset[str]
    """The model groups that a server has answered before."""
    concurrency: int
    """The most calls that all workers together have in flight."""
    adapters: Mapping[str, str]
    """Models that are LoRA adapters, each with the path that servers load it from."""
    journal: str | None = None
    """The number of the journal, which the cache stores with each answer."""


class Lease(NamedTuple):
    """A game to play, with what the journal has of it."""

    job: Job
    records: Sequence[Record]
    at_once: int
    """How many games the worker plays at the same time; others that it is leased wait there."""


class Acknowledged(NamedTuple):
    """These records are on disk."""

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
    """Some worker has got answers from these model groups."""

    groups: frozenset[str]


class Drain(NamedTuple):
    """All games are over: report what remains, and end."""


# From a worker


class WorkerReady(NamedTuple):
    """The worker takes games."""


class Alive(NamedTuple):
    """The worker's loop is running, however long its servers take."""


class CannotStart(NamedTuple):
    """The worker cannot connect, and no other worker could."""

    failure: RemoteError


class Append(NamedTuple):
    """Records for the journal."""

    number: int | None
    """The number to acknowledge; None: nobody waits for these records."""
    groups: Sequence[Sequence[Unnumbered]]
    """Records that are written together or not at all, group by group."""
    samples: Sequence[tuple[Any, ...]]
    """The sample of each record, over all groups."""
    failures: Sequence[str] = ()
    """The errors of the failed attempts among these records."""


class Ask(NamedTuple):
    """A request for a permit to call a model."""

    number: int
    group: str
    server: str | None
    """One of the group's servers; None: its only one."""
    sample: SampleKey
    most: UsageTotals
    """The most that the call can cost."""


class Ended(NamedTuple):
    """A granted call has ended: with an answer that costs so much, or with a failure."""

    number: int
    charge: UsageTotals | None
    failure: RemoteError | None = None


class GaveUp(NamedTuple):
    """Nobody waits any more for a call that was requested or granted."""

    number: int


class CallRefused(NamedTuple):
    """The provider has refused a call, which therefore has no record."""

    sample: SampleKey


class GameFinished(NamedTuple):
    """A game is over: its rows and numbers."""

    place: int
    """The index of the game's job."""
    game: WorkerGame


class GamePlayed(NamedTuple):
    """A game is over: its rollouts."""

    place: int
    """The index of the game's job."""
    rollouts: Sequence[Rollout]


class Unfinished(NamedTuple):
    """A game was not played to its end."""

    place: int
    """The index of the game's job."""
    failure: RemoteError


class TemplateRendered(NamedTuple):
    """The text of a template, which the writer then need not render again for fine-tune files."""

    key: tuple[Any, ...]
    text: str


class AnswersCounted(NamedTuple):
    """Counts of the answers that games got from one model group."""

    group: str
    from_cache: bool
    answers: UsageTotals
    repeats: int
    new_answers: AnswerCounts
    """Counts of new answers from all groups."""


class ServerDown(NamedTuple):
    """A server does not answer, as the message says; None: it answers again."""

    server: str
    message: str | None


class Unlike(NamedTuple):
    """A server refuses calls that the other servers of its group have accepted `calls` times since."""

    group: str
    server: str
    calls: int
    message: str


class Noted(NamedTuple):
    """A note for the run. Only the first note about each subject counts."""

    subject: str
    line: str


class Logged(NamedTuple):
    """A line for the log of the run."""

    logger: str
    level: int
    line: str


class RatesLearned(NamedTuple):
    """What the headers of an answer say about the server's rate limits."""

    group: str
    server: str | None
    headers: Mapping[str, str]


class Drained(NamedTuple):
    """Nothing remains, except for a failure that only shows when all games are over."""

    failure: RemoteError | None
