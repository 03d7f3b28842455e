"""Builds the layers around a run's models, and closes them. A layer handles a request itself or passes it on.

The outermost layer is the journal, which answers a call if it has recorded the answer. In a replay, the only other
layer is the replayed run's journal. Otherwise, these layers follow, from the outside in: the check of refusals, the
cache, retries, the budget, limits and the provider (see `runner.models.client`). A run in one process opens its layers
with `LayerBuilder.open_layers`. A worker builds its own layers with `with_journal`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from runner.base.errors import JournalError, Stopped
from runner.base.hashing import tagged_hash
from runner.base.storage.journal import Journal
from runner.base.storage.log_lines import NOT_BOUND
from runner.documents.dataclass_schema import to_plain
from runner.game.prompts.chat import ChatMessage
from runner.models.admission import Admission, LocalAdmission
from runner.models.call_events import CallEvents
from runner.models.client import Connection, ModelConnector
from runner.models.connectors import ReplayedRun, connect_batches
from runner.models.costs import CallCosts
from runner.models.interface import Complete, Completion, Provider, Request
from runner.models.journal_index import JournalIndex
from runner.models.journal_records import log_header, read_records
from runner.models.layers.budget import Budget
from runner.models.layers.cache import Cache
from runner.models.layers.human import HumanModel
from runner.models.layers.journal import JournaledCompleter, RecordLog, RecordLookup
from runner.models.layers.limits import Sleep
from runner.models.layers.lost_calls import InFlightFile
from runner.models.layers.replay import ReplayModel, ReplayThenLive
from runner.models.server_states import Servers
from runner.models.settings import ModelSettings
from runner.models.toy_models import training_examples
from runner.results.folder import RunFolder
from runner.rollouts.failed_calls import FailedCalls, failed_calls_finder
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan, human_groups, used_models
from runner.rollouts.rollout import Call
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.execution.accounting import Accounting
from runner.runs.execution.call_events import RunCallEvents
from runner.runs.execution.selector_functions import with_functions
from runner.runs.execution.server_notes import ServerProblemDetector
from runner.runs.execution.shared_resources import SharedResources
from runner.runs.execution.spending import describe_lost_calls, record_lost_calls
from runner.runs.execution.unusable_answers import AnswerChecker
from runner.runs.finished.selection import ReplayOf, is_whole_replay


@dataclass(frozen=True)
class ModelLayers:
    """The connected layers, as the functions that a session and its games call."""

    complete: Complete
    """Sends a request to its model."""
    failed_calls: Callable[[Job], Sequence[Call]]
    """Returns the failed calls of a game."""
    check_folder: Callable[[], None]
    """Raises `FolderGoneError` if the run's folder was moved or deleted."""
    check_groups_answered: Callable[[], None]
    """Raises `ProviderRefusal` if the provider of a model group has refused all calls."""
    count_records: Callable[[], int]
    """Returns the number of records in the journal."""
    on_end: Callable[[Job], None]
    """Called with the job of each game that has ended."""


@dataclass(frozen=True)
class LayerBuilder:
    """Builds the layers of a run."""

    plan: Plan
    folder: RunFolder
    costs: CallCosts
    accounting: Accounting
    shared: SharedResources
    stop: StopSwitch
    """The run's own switch. It is also stopped when the switch of all runs is stopped."""
    notes: list[str]
    budget: Budget | None = None
    replay: ReplayOf | None = None
    """The replay of another run's answers, if any."""
    recorded_only: bool = False
    """Whether all answers must come from the run's own journal. No model is called, and lost games stay lost."""

    @property
    def is_live(self) -> bool:
        """Whether models give all new answers: none is replayed, and the run is not rebuilt from its journal."""
        return self.replay is None and not self.recorded_only

    @property
    def calls_models(self) -> bool:
        """Whether a model may be called: not all answers come from this run's journal or from a replayed run."""
        return not self.recorded_only and not is_whole_replay(self.replay)

    @asynccontextmanager
    async def open_layers(self) -> AsyncIterator[ModelLayers]:
        """Open the journal, count the calls that an earlier process left in flight, and yield the connected layers.

        Raises:
            RunDirectoryError, JournalError: the journal is in use, damaged, or belongs to another run.
            RunError: a file cannot be opened, or the replayed run has no journal.
            ProviderRefusal: an API key is missing.
        """
        async with AsyncExitStack() as exit_stack:
            journal = await self.open_journal(exit_stack)
            entries = read_records(self.folder.journal) if journal.state_at_opening.records else ()
            index = JournalIndex(journal.record, entries, group_of=self.plan.group_of)
            cache = None if self.recorded_only else self._open_cache(exit_stack, journal.journal_id)
            replayer = self._open_replayer()
            replayed = replayer if is_whole_replay(self.replay) else None
            failures = index.failures if replayed is None else replayed.failures
            failed_calls = FailedCalls(failed_calls_finder(self.plan, failures))
            in_flight = InFlightFile(self.folder.in_flight)
            self.accounting.progress.in_flight = in_flight.count_calls
            answer_checker = AnswerChecker(self.plan)
            events = RunCallEvents(
                self.costs, self.stop, failed_calls,
                ServerProblemDetector(self.costs.groups, self.notes, self.accounting.report_note),
                cache=None if self.replay is not None else cache, is_budgeted=self.budget is not None,
                answer_checker=answer_checker, accounting=self.accounting, journal=journal,
                in_flight=in_flight,
            )  # fmt: skip
            people = self._connect_people(answer_checker)
            providers = self._batch_providers(journal, index, events)
            if people is not None:
                providers |= dict.fromkeys(people.groups, people)
            connection = self._connect(replayer, cache, events, providers, index.answered)
            if replayed is not None:
                connection = replace(connection, complete=_with_copied_failures(replayed, journal, index))
            exit_stack.push_async_callback(connection.close)
            exit_stack.callback(in_flight.close)
            complete = with_journal(
                self.plan, self.costs, connection, journal, index, events, repeats_lost_calls=not self.recorded_only
            )
            if people is not None:
                complete = people.confirm_answers(complete)
            yield ModelLayers(
                complete, failed_calls.take, journal.check_not_moved, connection.check_groups_answered,
                lambda: journal.records, lambda job: connection.release((job.datapoint.id, job.number)),
            )  # fmt: skip

    def _open_replayer(self) -> ReplayModel | None:
        if self.replay is None:
            return None
        return ReplayModel(*replayed_run(self.replay.run), sent_messages=partial(_sent_messages, self.costs))

    @property
    def answers_cost_money(self) -> bool:
        """Whether answers cost money or people's time, so that they must survive a power failure."""
        return any(settings.traits.metered or settings.traits.asks_people for settings in self.costs.groups.values())

    async def open_journal(self, exit_stack: AsyncExitStack) -> Journal:
        """Open the run's journal, record the calls that an earlier process left in flight, and return the journal.

        `exit_stack` closes it.
        """
        identity, shard = self.plan.identity, self.plan.shard
        header = log_header(identity, self.folder.run_id, None if shard is None else shard.pair)
        journal = Journal(self.folder.journal, first=header, run=identity, durable=self.answers_cost_money)
        exit_stack.push_async_callback(journal.close)
        if journal.state_at_opening.torn_bytes:
            self.notes.append(
                f"the journal ended in an incomplete line of {journal.state_at_opening.torn_bytes} bytes from an "
                "interrupted write, which nip-run removed"
            )
        if not journal.is_bound_to_run:
            self.notes.append(f"the journal is {NOT_BOUND}")
        max_cost = await record_lost_calls(self.folder, journal)
        if max_cost.completions:
            self.notes.append(
                describe_lost_calls(max_cost, "when the run was interrupted", is_priced=self.costs.is_priced)
            )
        return journal

    def _open_cache(self, exit_stack: AsyncExitStack, journal: str | None) -> Cache | None:
        path = self.plan.spec.cache
        if path is None:
            return None
        cache = Cache(path, self.folder.run_id, journal)
        exit_stack.callback(cache.close)
        return cache

    def _connect(
        self,
        replayer: ReplayModel | None,
        cache: Cache | None,
        events: CallEvents,
        providers: Mapping[str, Provider],
        answered_groups: Collection[str],
    ) -> Connection:
        """Connect the replayed run, the live models, or both if only the first rounds are replayed."""
        if self.recorded_only:
            return Connection(_refuse_unrecorded)
        if replayer is not None and is_whole_replay(self.replay):
            return Connection(replayer.complete, (replayer.close,))
        self.warn_about_open_files()
        sleep, servers = self.stop.sleep_unless_stopped, self.shared.servers
        admission = LocalAdmission(self.costs, servers, self.plan.spec.experiment.retry, self.budget, sleep)
        connector = connector_of_run(self.plan, servers, admission, events, sleep)
        live = with_functions(connector.connect(providers, cache, answered_groups), self.plan.spec)
        if replayer is None or self.replay is None or self.replay.until_round is None:
            return live
        combined = ReplayThenLive(replayer, live, self.replay.until_round)
        return Connection(combined.complete, (combined.close,), live.check_groups_answered, live.release)

    def warn_about_open_files(self) -> None:
        """Add a note if the limit of open files allows fewer concurrent calls than the spec."""
        note = self.shared.open_files_note
        if note is not None and any(settings.sends_requests for settings in self.costs.groups.values()):
            self.notes.append(note)
            self.accounting.warn("open files", note)

    def _connect_people(self, answer_checker: AnswerChecker) -> HumanModel | None:
        """Connect the model groups that people answer for; return None if there are none, or if no people are asked."""
        groups = human_groups(self.plan)
        if not self.calls_models or not groups:
            return None
        queue = self.shared.questions
        assert queue is not None, "open_session opens the page"
        people = HumanModel(queue, self.folder.run_id, groups, answer_checker.problem)
        self.stop.call_on_stop(lambda: people.stop(Stopped()))
        progress = self.accounting.progress
        progress.questions, progress.question_page = queue.count_waiting, queue.page
        return people

    def _batch_providers(self, journal: Journal, index: JournalIndex, events: CallEvents) -> dict[str, Provider]:
        """Return a provider for each model group that uses batches. Each provider writes its batches to the journal."""
        if not self.calls_models:
            return {}
        batched = {name: settings for name, settings in self.costs.groups.items() if settings.is_batched}
        return {
            name: connect_batches(
                settings, name, lambda record: journal.append(record.to_json()), index.batches,
                before_sending=self.stop.check,
                waits=self.plan.spec.experiment.retry.transient,
                notify=partial(events.on_server_status, settings.server_url),
            )
            for name, settings in batched.items()
        }  # fmt: skip


def _with_copied_failures(replayed: ReplayModel, journal: Journal, index: JournalIndex) -> Complete:
    """Return a function that replays answers, and first copies the records of a sample's failed calls to the journal.

    With the copies, `verify` can rebuild the tables of the replay from its own journal.
    """

    async def complete(request: Request) -> Completion:
        sample = request.sample
        game = sample.datapoint, sample.repeat
        failures = [record for record in replayed.failures(*game) if record.sample == sample]
        if failures and not any(record.sample == sample for record in index.failures(*game)):
            await journal.append(*(record.to_json() for record in failures))
        return await replayed.complete(request)

    return complete


def connector_of_run(
    plan: Plan, servers: Servers, admission: Admission, events: CallEvents, sleep: Sleep
) -> ModelConnector:
    """Return the connector of a run's model groups."""
    groups = used_models(plan)
    replays = {group: replayed_run(run) for group, run in plan.spec.replays.items()}
    return ModelConnector(
        groups, plan.spec.experiment.retry, servers, admission, events, replays, labels_for_dummy(plan, groups), sleep
    )


def with_journal(  # noqa: PLR0917 - these are the parts of a run
    plan: Plan,
    costs: CallCosts,
    connection: Connection,
    journal: RecordLog,
    recorded: RecordLookup,
    events: CallEvents,
    *,
    repeats_lost_calls: bool = True,
) -> Complete:
    """Return a function that answers a request from the recorded answers, or calls the model and records the answer.

    With `repeats_lost_calls`, the function makes a call again if its record says that it failed in transport.
    """
    return JournaledCompleter(
        connection.complete,
        journal,
        recorded,
        {name: parameters_hash(settings) for name, settings in costs.groups.items()},
        sharing_groups=plan.sharing_groups,
        sent_messages=partial(_sent_messages, costs),
        events=events,
        charge=costs.record_charge,
        repeats_lost_calls=repeats_lost_calls,
    ).complete


def _sent_messages(costs: CallCosts, request: Request) -> Sequence[ChatMessage]:
    return costs.groups[request.group].sent_messages(request.messages)


async def _refuse_unrecorded(request: Request) -> Completion:
    """Raise the error for a request whose answer is missing from the journal."""
    sample = request.sample
    raise JournalError(
        f"the journal has no answer for {sample.agent} in round {sample.round} of datapoint {sample.datapoint!r}, "
        f"repeat {sample.repeat}: the game was not finished, or its records are missing. Resume the run with the "
        "command that started it"
    )


def parameters_hash(settings: ModelSettings) -> str:
    """Return a hash of the parts that all requests of a model group have in common: everything except the messages."""
    request_fields = {
        "model": settings.model,
        "sampling": to_plain(settings.request_parameters),
        "system_role": settings.system_role,
    }
    return tagged_hash("model", request_fields)


def labels_for_dummy(plan: Plan, groups: Mapping[str, ModelSettings]) -> dict[str, int] | dict[str, str]:
    """Return the labels by datapoint id if the dummy provider imitates a trained model; otherwise an empty mapping.

    With listed answers, the label is the index of a right answer. With a checker that has a column, it is the right
    answer as text, which an untrained model needs, too, to find half of the answers.
    """
    checker, points = plan.spec.experiment.dataset.checker, plan.spec.dataset.datapoints
    if checker is not None:
        if checker.column is None:
            return {}
        answers = {point.id: point.columns[checker.column] for point in points}
        return {id_: str(answer[0] if isinstance(answer, (list, tuple)) else answer) for id_, answer in answers.items()}
    if not any(settings.traits.generates_locally and training_examples(settings.model) for settings in groups.values()):
        return {}
    labels = {}
    for point in points:
        label = point.answers.right[0] if point.answers and point.answers.right else point.label
        if label is not None:
            labels[point.id] = label
    return labels


def replayed_run(run: Path) -> ReplayedRun:
    """Return the run whose answers are replayed, with its identity."""
    return ReplayedRun(run, RunFolder(run).identity())
