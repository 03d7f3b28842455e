"""A worker: plays the games that it is leased, with agents, providers and connections of its own."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from runner.base.async_runner import cancel_all
from runner.base.errors import NipRunError
from runner.game.prompts.chat import ChatMessage
from runner.models.client import Connection, connect
from runner.models.interface import Request
from runner.models.layers.cache import Cache
from runner.models.layers.journal import JournaledCompleter
from runner.models.shared_servers import Servers
from runner.rollouts.engine import Engine
from runner.rollouts.failed_calls import FailedCalls, failed_call
from runner.rollouts.job import Job
from runner.rollouts.rollout import Call, Rollout
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.execution.game_outputs import MadeGame, WorkersMaker, fine_tune_of
from runner.runs.execution.spending import run_costs
from runner.runs.execution.unusable import AnswerJudge
from runner.runs.execution.wiring import labels_for_toys, parameters_hash, replayed_run
from runner.runs.workers import messages
from runner.runs.workers.link import Link
from runner.runs.workers.prefetched_permits import PermitsAhead
from runner.runs.workers.record_keys import game_of_job
from runner.runs.workers.remote_errors import RemoteError
from runner.runs.workers.writer_proxy import (
    LeasedRecords,
    RemoteEvents,
    RemoteJournal,
    RemoteLog,
    RemoteNotes,
    RemotePermits,
)
from runner.spec.datasets.datapoint import Datapoint


class Playing:
    """What a worker does with the messages that it gets; `left` is set once there is nothing more to do."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self._link: Link | None = None
        self._begun: _Begun | None = None

    def connected(self, link: Link) -> None:
        """The way to the writer is there."""
        self._link = link

    def receive(self, batch: Sequence[Any]) -> None:
        """Act on messages of the writer."""
        assert self._link is not None
        for message in batch:
            if self._begun is not None:
                self._begun.receive(message)
            elif isinstance(message, messages.Start):
                self._start(message, self._link)

    def _start(self, start: messages.Start, link: Link) -> None:
        try:
            self._begun = _Begun(start, link, self.left)
        except (NipRunError, MemoryError, OSError) as error:
            link.send(messages.CannotStart(RemoteError.of(error)))
        else:
            link.send(messages.WorkerReady())


class _Begun:
    """A worker that knows what is played."""

    def __init__(self, start: messages.Start, link: Link, left: asyncio.Event) -> None:
        """Raises as `connect`."""
        self._plan, self._link, self._left = start.plan, link, left
        logging.getLogger("nip_run").addHandler(RemoteLog(link))
        logging.getLogger("nip_run").setLevel(logging.INFO)
        plan = self._plan
        self._points: Mapping[str, Datapoint] = {point.id: point for point in plan.spec.dataset.datapoints}
        self._waiting: deque[Job] = deque()
        """Games that are leased, and not begun."""
        self._at_once = 1
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = StopSwitch()
        self._costs = costs = run_costs(plan)
        self._answered = set(start.answered)
        self._records = LeasedRecords(plan)
        self._journal = RemoteJournal(link, is_bound=start.is_bound, is_durable=start.is_durable)
        self._ahead = PermitsAhead(link, costs, budgeted=start.budgeted) if start.is_far else None
        self._permits = self._ahead or RemotePermits(link, costs, budgeted=start.budgeted)
        self._cache = None if plan.spec.cache is None else Cache(plan.spec.cache, start.run_id, start.journal)
        failed_calls = FailedCalls(self._earlier)
        self._events = RemoteEvents(
            link, costs, self._stop, self._journal, failed_calls, RemoteNotes(costs, link), self._cache,
            start.budgeted, AnswerJudge(plan),
        )  # fmt: skip
        self._maker = WorkersMaker(plan, start.run_id, costs) if start.makes else None
        if fine_tune_of(plan) is not None and self._maker is None:
            plan.spec.prompts.rendered.tell = self._rendered
        self._servers = Servers(start.concurrency, self._stop.sleep)
        self._servers.adapters = start.adapters
        self._connection = self._connected()
        self._engine = self._engine_of(failed_calls)
        self._alive = asyncio.create_task(self._say_alive())
        self._actions: Mapping[type, Callable[[Any], None]] = {
            messages.Lease: self._lease,
            messages.Acked: self._journal.acked,
            messages.Granted: lambda message: self._permits.answered(message.number, None),
            messages.Denied: lambda message: self._permits.answered(message.number, message.failure),
            messages.StopRequest: self._told_to_stop,
            messages.GroupsAnswered: lambda message: self._answered.update(message.groups),
            messages.Drain: self._drain,
        }

    def receive(self, message: Any) -> None:
        """Act on a message of the writer."""
        self._actions[type(message)](message)

    async def _say_alive(self) -> None:
        while True:
            await asyncio.sleep(messages.ALIVE_SECONDS)
            self._link.send(messages.Alive())

    def _connected(self) -> Connection:
        plan = self._plan
        return connect(
            self._costs.groups,
            plan.spec.experiment.retry,
            replays={group: replayed_run(run) for group, run in plan.spec.replays.items()},
            cache=self._cache,
            events=self._events,
            answered=self._answered,
            labels=labels_for_toys(plan, self._costs.groups),
            sleep=self._stop.sleep,
            servers=self._servers,
            admission=self._permits,
        )

    def _engine_of(self, failed_calls: FailedCalls) -> Engine:
        plan, groups = self._plan, self._costs.groups

        def sent(request: Request) -> Sequence[ChatMessage]:
            return groups[request.group].sent_messages(request.messages)

        journaled = JournaledCompleter(
            self._connection.complete,
            self._journal,
            self._records,
            {name: parameters_hash(settings) for name, settings in groups.items()},
            sharing=plan.sharing,
            sent=sent,
            events=self._events,
            charge=self._costs.extra_charge,
        )
        return Engine.of_plan(
            plan,
            journaled.complete,
            failed_calls=failed_calls.take,
            ended=lambda job: self._connection.ended((job.datapoint.id, job.number)),
            siblings=plan.siblings,
            sharing=plan.sharing,
            stop=self._stop,
        )

    def _earlier(self, job: Job) -> list[Call]:
        groups = self._costs.groups
        failed = self._records.failures(job)
        return [failed_call(record, groups[self._plan.group_of(record.sample)].name) for record in failed]

    def _rendered(self, key: tuple[Any, ...], text: str) -> None:
        self._link.send(messages.TemplateRendered(key, text))

    def _lease(self, lease: messages.Lease) -> None:
        self._waiting.append(messages.job_of(lease.job, self._points[lease.datapoint]))
        self._records.add(lease.records)
        self._at_once = lease.at_once
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Begin games as far as there is room for them, in the order in which they were leased."""
        while self._waiting and len(self._tasks) < self._at_once:
            task = asyncio.create_task(self._play(self._waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._begin_waiting()

    def _told_to_stop(self, _: messages.StopRequest) -> None:
        self._stop.stop()
        if self._ahead is not None:
            self._ahead.end()

    async def _play(self, job: Job) -> None:
        try:
            try:
                rollouts = await self._engine.play(job)
            finally:
                if self._ahead is not None and len(self._tasks) == 1:
                    self._ahead.give_back()  # before the last game is told to be over: the run may be
        except Exception as error:  # noqa: BLE001 - the writer knows what each means for the run
            self._journal.tell()
            self._link.send(messages.Unfinished(job.index, RemoteError.of(error)))
        else:
            self._journal.tell()
            self._link.send(self._told(job, rollouts))
        finally:
            self._records.drop(game_of_job(self._plan, job))

    def _told(self, job: Job, rollouts: Sequence[Rollout]) -> messages.GameFinished | messages.GamePlayed:
        made = None if self._maker is None else self._maker.made(rollouts)
        if made is not None:
            return messages.GameFinished(job.index, MadeGame(made))
        return messages.GamePlayed(
            job.index, [(rollout.job.repeat, messages.facts_of(rollout)) for rollout in rollouts]
        )

    def _drain(self, _: messages.Drain) -> None:
        if self._ahead is not None:
            self._ahead.end()
        task = asyncio.create_task(self._end())
        self._tasks.add(task)  # which keeps it alive

    async def _end(self) -> None:
        failure = None
        try:
            self._connection.check_answered()
        except NipRunError as error:
            failure = RemoteError.of(error)
        self._events.tell_counts()
        self._journal.tell()
        self._alive.cancel()
        self._link.send(messages.Drained(failure))
        await cancel_all(self._tasks - {asyncio.current_task()})
        with suppress(Exception):  # all is said; what a connection does at its end matters to nobody
            await self._connection.close()
            await self._servers.close()
        if self._cache is not None:
            self._cache.close()
        self._left.set()
