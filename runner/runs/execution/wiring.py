"""The layers of a run put together, and closed again.

From the outside in: the journal, which asks for nothing twice; then, of live models, the verdict on refusals, the
cache, retries, the budget, limits, and the provider (see `models.connect`); of a replayed run, its journal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from runner.base.errors import JournalError
from runner.base.hashing import tagged_hash
from runner.base.storage.journal import Journal
from runner.base.storage.log_lines import NOT_BOUND
from runner.documents.dataclass_schema import to_plain
from runner.game.prompts.chat import ChatMessage
from runner.models.call_events import CallEvents
from runner.models.client import Connection, connect
from runner.models.connectors import ReplayedRun, connect_batches
from runner.models.costs import CallCosts
from runner.models.interface import Complete, Completion, Provider, Request
from runner.models.journal_index import JournalIndex
from runner.models.journal_records import BatchRecord, FailureRecord, begun, read_records
from runner.models.layers.budget import Budget
from runner.models.layers.cache import Cache
from runner.models.layers.journal import JournaledCompleter, Log, Recorded
from runner.models.layers.lost_calls import InFlight
from runner.models.layers.replay import ReplayModel, ReplayThenLive
from runner.models.settings import ModelSettings
from runner.models.toy_models import examples_behind
from runner.models.usage_totals import UsageTotals
from runner.results.folder import RunFolder
from runner.rollouts.failed_calls import FailedCalls, failed_call
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Call
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.execution.accounting import Accounting
from runner.runs.execution.call_events import RunCallEvents
from runner.runs.execution.server_notes import ServerNotes
from runner.runs.execution.shared_resources import Shared
from runner.runs.execution.spending import count_lost
from runner.runs.execution.unusable import AnswerJudge
from runner.runs.finished.selection import ReplayOf


@dataclass(frozen=True)
class Wired:
    """How the games of a run ask, and what failed on the way to a finished rollout."""

    complete: Complete
    failed_calls: Callable[[Job], Sequence[Call]]
    check_there: Callable[[], None]
    """Raises `FolderGoneError` where the run's folder is not at its place any more."""
    check_answered: Callable[[], None]
    """Raises `ProviderRefusal` where all that a model group answered were refusals."""
    records: Callable[[], int]
    """How many records the journal has."""
    ended: Callable[[Job], None]
    """Told of each game that is over."""


@dataclass(frozen=True)
class Wiring:
    """What the layers of a run are made of."""

    plan: Plan
    folder: RunFolder
    costs: CallCosts
    accounting: Accounting
    shared: Shared
    stop: StopSwitch
    """The run's own, which stops with the shared one."""
    notes: list[str]
    budget: Budget | None = None
    replay: ReplayOf | None = None
    recorded_only: bool = False
    """Whether all is in the journal: nobody is asked, and what ended in transport has ended."""

    @property
    def asks(self) -> bool:
        """Whether models may be asked."""
        return self.replay is None and not self.recorded_only

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Wired]:
        """Open the journal, count what an earlier process left in flight, and connect every layer.

        Raises:
            RunDirectoryError, JournalError: the journal is in use, damaged, or of another run.
            RunError: a file cannot be opened, or the run to replay has no journal.
            ProviderRefusal: a key is missing.
        """
        async with AsyncExitStack() as closing:
            journal = await self.journal(closing)
            entries = read_records(self.folder.journal) if journal.opened.records else ()
            recorded = JournalIndex(journal.record, entries, group_of=self.plan.group_of)
            cache = None if self.recorded_only else self._cache(closing, journal.number)
            replayed = (
                None
                if self.replay is None
                else ReplayModel(*replayed_run(self.replay.run), sent=partial(_sent, self.costs))
            )
            whole = replayed is not None and self._until_round is None
            failures = replayed.failures if replayed is not None and whole else recorded.failures
            failed_calls = FailedCalls(failed_calls_in(self.plan, self.costs, failures))
            in_flight = InFlight(self.folder.in_flight)
            self.accounting.progress.in_flight = in_flight.count
            events = RunCallEvents(
                self.costs, self.stop, self.accounting, journal, in_flight, failed_calls,
                ServerNotes(self.costs.groups, self.notes, self.accounting.tell),
                cache=None if self.replay is not None else cache,
                budgeted=self.budget is not None,
                judge=AnswerJudge(self.plan),
            )  # fmt: skip
            batches = self._batches(journal, recorded, events)
            connection = self._connect(replayed, cache, events, batches, recorded.answered)
            closing.push_async_callback(connection.close)
            closing.callback(in_flight.close)
            complete = journaled(
                self.plan, self.costs, connection, journal, recorded, events, asks_again=not self.recorded_only
            )
            yield Wired(
                complete, failed_calls.take, journal.check_there, connection.check_answered,
                lambda: journal.records, lambda job: connection.ended((job.datapoint.id, job.number)),
            )  # fmt: skip

    @property
    def _until_round(self) -> int | None:
        return None if self.replay is None else self.replay.until_round

    @property
    def is_durable(self) -> bool:
        """Whether answers are to outlive a power cut: what replays, or is drawn, comes again for nothing."""
        return any(settings.traits.metered for settings in self.costs.groups.values())

    async def journal(self, closing: AsyncExitStack) -> Journal:
        """The run's journal, with what an earlier process left in flight counted in it."""
        run, shard = self.plan.identity, self.plan.shard
        first = begun(run, self.folder.run_id, None if shard is None else shard.pair)
        journal = Journal(self.folder.journal, first=first, run=run, durable=self.is_durable)
        closing.push_async_callback(journal.close)
        if journal.opened.torn_bytes:
            self.notes.append(f"the journal ended in {journal.opened.torn_bytes} torn bytes, which were cut off")
        if not journal.is_bound:
            self.notes.append(f"the journal is {NOT_BOUND}")
        self._note_lost(await count_lost(self.folder, journal))
        return journal

    def _note_lost(self, most: UsageTotals) -> None:
        if most.completions:
            upto = f"${most.usd:.4f} is" if self.costs.priced else f"{most.tokens} tokens are"
            calls = "1 call was" if most.completions == 1 else f"{most.completions} calls were"
            self.notes.append(f"{calls} in flight when the run was cut short; up to {upto} counted for what they cost")

    def _cache(self, closing: AsyncExitStack, journal: str | None) -> Cache | None:
        path = self.plan.spec.cache
        if path is None:
            return None
        cache = Cache(path, self.folder.run_id, journal)
        closing.callback(cache.close)
        return cache

    def _connect(
        self,
        replayed: ReplayModel | None,
        cache: Cache | None,
        events: CallEvents,
        batches: Mapping[str, Provider],
        answered: Collection[str],
    ) -> Connection:
        """A whole replay alone; or live models, with a replay before them where there is one."""
        if self.recorded_only:
            return Connection(_not_recorded)
        if replayed is not None and self._until_round is None:
            return Connection(replayed.complete, (replayed.close,))
        self.note_few_files()
        live = connect(
            self.costs.groups,
            self.plan.spec.experiment.retry,
            replays={group: replayed_run(run) for group, run in self.plan.spec.replays.items()},
            budget=self.budget,
            costs=self.costs,
            cache=cache,
            providers=batches,
            events=events,
            answered=answered,
            labels=labels_for_toys(self.plan, self.costs.groups),
            sleep=self.stop.sleep,
            servers=self.shared.servers,
        )
        if replayed is None or self._until_round is None:
            return live
        both = ReplayThenLive(replayed, live, self._until_round)
        return Connection(both.complete, (both.close,), live.check_answered, live.ended)

    def note_few_files(self) -> None:
        limited = self.shared.few_files
        if limited is not None and any(settings.called_live for settings in self.costs.groups.values()):
            self.notes.append(limited)
            self.accounting.warn("open files", limited)

    def _batches(self, journal: Journal, recorded: JournalIndex, events: CallEvents) -> dict[str, Provider]:
        """The groups that are asked by batch; they write to the journal themselves."""
        if self.recorded_only or (self.replay is not None and self._until_round is None):
            return {}
        batched = {name: s for name, s in self.costs.groups.items() if s.batched}

        async def write(record: BatchRecord) -> None:
            await journal.append(record.to_json())

        return {
            name: connect_batches(
                settings, name, write, recorded.batches,
                before_sending=self.stop.check,
                waits=self.plan.spec.experiment.retry.transient,
                tell=partial(events.server_down, settings.server_url),
            )
            for name, settings in batched.items()
        }  # fmt: skip


def journaled(  # noqa: PLR0917 - the parts that a run is made of
    plan: Plan,
    costs: CallCosts,
    connection: Connection,
    journal: Log,
    recorded: Recorded,
    events: CallEvents,
    *,
    asks_again: bool = True,
) -> Complete:
    """Wrap a connection: answer from what is recorded, and write other answers to the journal."""
    return JournaledCompleter(
        connection.complete,
        journal,
        recorded,
        {name: parameters_hash(settings) for name, settings in costs.groups.items()},
        sharing=plan.sharing,
        sent=partial(_sent, costs),
        events=events,
        charge=costs.extra_charge,
        asks_again=asks_again,
    ).complete


def _sent(costs: CallCosts, request: Request) -> Sequence[ChatMessage]:
    return costs.groups[request.group].sent_messages(request.messages)


def failed_calls_in(
    plan: Plan, costs: CallCosts, failures: Callable[[str, int], Sequence[FailureRecord]]
) -> Callable[[Job], list[Call]]:
    """Return a function that finds the failed attempts of a rollout in a journal."""

    def find(job: Job) -> list[Call]:
        failed = failures(job.datapoint.id, job.number)
        return [failed_call(record, costs.groups[plan.group_of(record.sample)].name) for record in failed]

    return find


async def _not_recorded(request: Request) -> Completion:
    """Where all is to be in the journal, what is asked is missing there."""
    sample = request.sample
    raise JournalError(
        f"the journal has no answer to {sample.agent} in round {sample.round} of datapoint {sample.datapoint!r}, play "
        f"{sample.repeat}: the game was not finished, or its records are gone"
    )


def parameters_hash(settings: ModelSettings) -> str:
    """The identity of what a group's requests hold besides the messages."""
    sent = {"model": settings.model, "sampling": to_plain(settings.sampling()), "system_role": settings.system_role}
    return tagged_hash("model", sent)


def labels_for_toys(plan: Plan, groups: Mapping[str, ModelSettings]) -> dict[str, int]:
    """The datapoints' labels, where the toy of a trained model is to answer; no other provider is given them."""
    if not any(one.traits.drawn and examples_behind(one.model) for one in groups.values()):
        return {}
    return {point.id: point.label for point in plan.spec.dataset.datapoints if point.label is not None}


def replayed_run(run: Path) -> ReplayedRun:
    """A run whose answers are taken, with its identity."""
    return ReplayedRun(run, RunFolder(run).identity())
