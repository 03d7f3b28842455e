"""What the writer of a run and its workers tell each other, as plain values; how they travel is the link's.

A worker is told to start, and says that it is ready. It is leased games, each with the records that the journal has of
it already, and gives back a finished game, or what it ended with instead. What it wants to be in the journal it sends,
and goes on once that is acknowledged as being on disk. It asks for a permit for each call that counts: the writer holds
the budget, the limits and the places, and is told how the call ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from runner.base.storage.log_lines import Unnumbered
from runner.models.interface import SampleKey
from runner.models.usage_totals import UsageTotals
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Rollout
from runner.runs.execution.game_outputs import MadeGame
from runner.runs.execution.unusable import AnswerCounts
from runner.runs.workers.remote_errors import RemoteError

FACTS = tuple(field.name for field in fields(Rollout) if field.name != "job")
"""What a rollout is besides its job, which the writer has."""

Record = dict[str, Any]
"""A record of the journal, as its line has it."""

ALIVE_SECONDS = 5.0
"""So often a worker says that it lives, whatever else it says."""


# What a worker is told


@dataclass(frozen=True)
class Start:
    """What a worker plays: the first that it is told."""

    plan: Plan
    run_id: str
    is_bound: bool
    """Whether the journal is bound to its run; see `runner.base.storage.log_lines`."""
    is_durable: bool
    """Whether an answer costs something, and a game goes on once it is on disk."""
    budgeted: bool
    makes: bool
    """Whether a worker makes of its games what the files of the run get, and does not tell the games themselves."""
    answered: frozenset[str]
    """The model groups that a server has answered before."""
    concurrency: int
    """The most calls that all workers together have in flight."""
    adapters: Mapping[str, str]
    """Models that are LoRA adapters, each with the path that servers load it from."""
    is_far: bool
    """Whether the way to the writer is long, so that a worker takes permits ahead."""
    journal: str | None = None
    """The journal's number, which the cache stores with each answer."""


class Lease(NamedTuple):
    """A game to play: its job without the datapoint, which the worker has, and what the journal has of it."""

    job: Sequence[Any]
    datapoint: str
    records: Sequence[Record]
    at_once: int
    """How many games the worker plays at the same time; what it is leased beyond them waits there."""


class Acked(NamedTuple):
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
    """Ask for nothing new."""


class GroupsAnswered(NamedTuple):
    """These model groups have been answered, by some worker."""

    groups: frozenset[str]


class Drain(NamedTuple):
    """All games are over: say what remains to be said."""


# What a worker says


class WorkerReady(NamedTuple):
    """It takes games."""


class Alive(NamedTuple):
    """It is there, and its loop goes round: servers may take as long as they like."""


class CannotStart(NamedTuple):
    """It could not connect; so will no other."""

    failure: RemoteError


class Append(NamedTuple):
    """Records for the journal."""

    number: int | None
    """By which they are acknowledged; None: nobody waits for that."""
    groups: Sequence[Sequence[Unnumbered]]
    """Of each group all records, or none."""
    samples: Sequence[tuple[Any, ...]]
    """The sample of each record, over all groups."""
    failures: Sequence[str] = ()
    """What failed attempts said that are among them."""
    size: int = 0
    """About how many bytes it is."""


class Ask(NamedTuple):
    """A call to a model, which may cost so much."""

    number: int
    group: str
    server: str | None
    """One of several that the group is at; None: its only one."""
    sample: SampleKey
    most: UsageTotals


class AskAhead(NamedTuple):
    """Calls that are to be made soon, and none of which is known yet: what each may cost at most."""

    numbers: Sequence[int]
    group: str
    server: str | None
    most: UsageTotals


class Used(NamedTuple):
    """A permit that was granted ahead is used for this call."""

    number: int
    sample: SampleKey


class Unused(NamedTuple):
    """Permits that were granted ahead are given back."""

    numbers: Sequence[int]


class Ended(NamedTuple):
    """A call that was granted has ended: with an answer that a budget counts as so much, or with a failure."""

    number: int
    charge: UsageTotals | None
    failure: RemoteError | None = None


class GaveUp(NamedTuple):
    """A call that was asked for, or granted, is waited for no more."""

    number: int


class CallRefused(NamedTuple):
    """The provider has refused a call, of which there is no record."""

    sample: SampleKey


class GameFinished(NamedTuple):
    """A game is over: what the files of the run get of it."""

    place: int
    """Of the game, in the order of the plan."""
    game: MadeGame

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        return self.game.size


class GamePlayed(NamedTuple):
    """A game is over: of each rollout the place in its tree, and its facts."""

    place: int
    """Of the game, in the order of the plan."""
    rollouts: Sequence[tuple[int, Sequence[Any]]]


class Unfinished(NamedTuple):
    """A game was not played to its end."""

    place: int
    """Of the game, in the order of the plan."""
    failure: RemoteError


class TemplateRendered(NamedTuple):
    """The text of a template, which the writer needs for fine-tune files and so need not make again."""

    key: tuple[Any, ...]
    text: str


class AnswersCounted(NamedTuple):
    """Answers that games got, of one model group."""

    group: str
    from_cache: bool
    answers: UsageTotals
    repeats: int
    new_answers: AnswerCounts
    """New answers of models so far, of all groups."""


class ServerDown(NamedTuple):
    """What the worker sees of a server: it does not answer, as the message says; with None it does again."""

    server: str
    message: str | None


class Unlike(NamedTuple):
    """Other servers of a group took so many more calls, to the last of which this one had said so."""

    group: str
    server: str
    calls: int
    said: str


class Noted(NamedTuple):
    """What was noticed, and about what, of which it is said once."""

    about: str
    line: str


class Logged(NamedTuple):
    """A line for the log of the run."""

    logger: str
    level: int
    line: str


class Learned(NamedTuple):
    """What a server says of its rates."""

    group: str
    server: str | None
    headers: Mapping[str, str]


class Drained(NamedTuple):
    """Nothing remains; or what stops the run now that all games are over."""

    failure: RemoteError | None


_JOB = tuple(field.name for field in fields(Job) if field.name != "datapoint")


def job_fields(job: Job) -> list[Any]:
    """A job without its datapoint."""
    return [getattr(job, name) for name in _JOB]


def job_of(values: Sequence[Any], datapoint: Any) -> Job:
    """The job that `job_fields` told."""
    return Job(datapoint=datapoint, **dict(zip(_JOB, values, strict=True)))


def facts_of(rollout: Rollout) -> list[Any]:
    """A rollout without its job."""
    return [getattr(rollout, name) for name in FACTS]


def rollout_of(job: Job, facts: Sequence[Any]) -> Rollout:
    """The rollout that `facts_of` told."""
    return Rollout(job, **dict(zip(FACTS, facts, strict=True)))
