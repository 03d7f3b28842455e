"""A worker: plays games of a run with its own agents, providers and connections.

The writer (the main process) leases games to workers, each game to one worker. `LocalWorker` runs a worker in a local
process, and `ActorChannel` in a Ray actor.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from runner.base.async_runner import cancel_all
from runner.base.errors import NipRunError
from runner.models.client import Connection
from runner.models.layers.cache import Cache
from runner.models.server_states import Servers
from runner.rollouts.engine import Engine
from runner.rollouts.failed_calls import FailedCalls, failed_calls_finder
from runner.rollouts.job import Job
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.execution.game_outputs import WorkerOutputBuilder, fine_tune_settings
from runner.runs.execution.layer_builder import connector_of_run, with_journal
from runner.runs.execution.selector_functions import with_functions
from runner.runs.execution.spending import run_costs
from runner.runs.execution.unusable_answers import AnswerChecker
from runner.runs.workers import messages
from runner.runs.workers.channel import WorkerChannel
from runner.runs.workers.leases import game_key_of_job
from runner.runs.workers.remote_errors import RemoteError
from runner.runs.workers.writer_proxy import (
    LeasedRecords,
    NoteSender,
    PermitRequester,
    RemoteEvents,
    RemoteJournal,
    RemoteLog,
)


class Worker:
    """A worker, in a local process or in a Ray actor."""

    def __init__(self) -> None:
        self.finished = asyncio.Event()
        """Set once the worker has reported everything."""
        self._channel: WorkerChannel | None = None
        self._player: _RunPlayer | None = None

    def connect(self, channel: WorkerChannel) -> None:
        """Set the channel to the writer."""
        self._channel = channel

    def receive(self, batch: Sequence[Any]) -> None:
        """Handle messages from the writer."""
        assert self._channel is not None
        for message in batch:
            if self._player is not None:
                self._player.receive(message)
            elif isinstance(message, messages.StartMessage):
                self._start(message, self._channel)

    def _start(self, start_message: messages.StartMessage, channel: WorkerChannel) -> None:
        try:
            self._player = _RunPlayer(start_message, channel, self.finished)
        except (NipRunError, MemoryError, OSError) as error:
            channel.send(messages.CannotStart(RemoteError.from_exception(error)))
        else:
            channel.send(messages.WorkerReady())


class _RunPlayer:
    """Plays the games that the writer leases to this worker."""

    def __init__(self, start: messages.StartMessage, channel: WorkerChannel, finished: asyncio.Event) -> None:
        """Connect to the servers of the run's models.

        Raises:
            NipRunError: see `ModelConnector.connect`.
        """
        plan = start.plan
        self._plan, self._channel, self._finished = plan, channel, finished
        logging.getLogger("nip_run").addHandler(RemoteLog(channel))
        logging.getLogger("nip_run").setLevel(logging.INFO)
        self._waiting_jobs: deque[Job] = deque()
        """The jobs of the leased games that have not started."""
        self._concurrent_games = 1
        """The maximum number of concurrent games, which the writer sets."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = StopSwitch()
        self._costs = costs = run_costs(plan)
        self._answered_model_groups = set(start.answered_model_groups)
        self._records = LeasedRecords(plan)
        self._journal = RemoteJournal(
            channel, is_bound_to_run=start.is_journal_bound_to_run, waits_for_disk=start.answers_cost_money
        )
        self._permits = PermitRequester(channel, costs, is_budgeted=start.is_budgeted)
        self._cache = None if plan.spec.cache is None else Cache(plan.spec.cache, start.run_id, start.journal_id)
        failed_calls = FailedCalls(failed_calls_finder(plan, self._records.failures))
        self._events = RemoteEvents(
            costs, self._stop, failed_calls, NoteSender(costs, channel), self._cache, start.is_budgeted,
            AnswerChecker(plan), channel=channel, journal=self._journal,
        )  # fmt: skip
        self._builder = WorkerOutputBuilder(plan, start.run_id, costs) if start.sends_outputs else None
        if fine_tune_settings(plan) is not None and self._builder is None:
            send = channel.send
            plan.spec.prompts.rendered.on_new_text = lambda key, text: send(messages.TemplateRendered(key, text))
        self._servers = Servers(start.concurrency)
        self._servers.adapters = start.adapters
        self._connection = self._connect()
        self._engine = self._create_engine(failed_calls)
        self._alive_task = asyncio.create_task(self._send_alive())
        self._handlers = self._create_handlers()

    def _create_handlers(self) -> Mapping[type, Callable[[Any], None]]:
        """Return the function that handles each type of message from the writer."""
        return {
            messages.Lease: self._accept_lease,
            messages.Acknowledged: self._journal.acknowledge,
            messages.Granted: self._permits.grant,
            messages.Denied: self._permits.deny,
            messages.StopRequest: lambda _: self._stop.stop(),
            messages.GroupsAnswered: lambda message: self._answered_model_groups.update(message.groups),
            messages.FinalReportRequest: self._send_final_report,
        }

    def receive(self, message: Any) -> None:
        """Handle a message from the writer."""
        self._handlers[type(message)](message)

    async def _send_alive(self) -> None:
        while True:
            await asyncio.sleep(messages.ALIVE_SECONDS)
            self._channel.send(messages.Alive())

    def _connect(self) -> Connection:
        """Return the connection to the models. Each call needs a permit of the writer."""
        sleep = self._stop.sleep_unless_stopped
        connector = connector_of_run(self._plan, self._servers, self._permits, self._events, sleep)
        return with_functions(connector.connect({}, self._cache, self._answered_model_groups), self._plan.spec)

    def _create_engine(self, failed_calls: FailedCalls) -> Engine:
        plan = self._plan
        return Engine.from_plan(
            plan,
            with_journal(plan, self._costs, self._connection, self._journal, self._records, self._events),
            failed_calls=failed_calls.take,
            on_end=lambda job: self._connection.release((job.datapoint.id, job.number)),
            stop=self._stop,
        )

    def _accept_lease(self, lease: messages.Lease) -> None:
        self._waiting_jobs.append(lease.job)
        self._records.add(lease.records)
        self._concurrent_games = lease.concurrent_games
        self._start_waiting_games()

    def _start_waiting_games(self) -> None:
        """Start waiting games in the order of their leases, up to the maximum number of concurrent games."""
        while self._waiting_jobs and len(self._tasks) < self._concurrent_games:
            task = asyncio.create_task(self._play(self._waiting_jobs.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._end_game)

    def _end_game(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start_waiting_games()

    async def _play(self, job: Job) -> None:
        """Play one game, and send its outputs or its error to the writer."""
        report: Any
        try:
            rollouts = await self._engine.play(job)
            outputs = None if self._builder is None else self._builder.build(rollouts)
            report = messages.GameFinished(job.index, rollouts if outputs is None else outputs)
        except Exception as error:  # noqa: BLE001 - the writer decides how each error affects the run
            report = messages.GameUnfinished(job.index, RemoteError.from_exception(error))
        finally:
            self._records.drop(game_key_of_job(self._plan, job))
        self._journal.flush()
        self._channel.send(report)

    def _send_final_report(self, _: messages.FinalReportRequest) -> None:
        task = asyncio.create_task(self._report_and_end())
        self._tasks.add(task)  # without a reference, the task could be garbage-collected

    async def _report_and_end(self) -> None:
        """Report everything that remains to the writer, and close all connections."""
        failure = None
        try:
            self._connection.check_groups_answered()
        except NipRunError as error:
            failure = RemoteError.from_exception(error)
        self._events.send_counts()
        self._journal.flush()
        self._alive_task.cancel()
        self._channel.send(messages.FinalReport(failure))
        await cancel_all(self._tasks - {asyncio.current_task()})
        with suppress(Exception):  # everything is reported, so errors while closing connections do not matter
            await self._connection.close()
            await self._servers.close()
        if self._cache is not None:
            self._cache.close()
        self._finished.set()
