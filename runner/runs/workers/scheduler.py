"""The writer of a run that workers play: leases games, writes what comes back, and goes on where a worker dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from runner.base.errors import BudgetExhausted, NipRunError, ProviderRefusal
from runner.rollouts.engine import REFUSED_SECONDS, STOPS_ALL, UNREACHABLE_SECONDS
from runner.rollouts.job import Job
from runner.rollouts.plan_order import InOrder
from runner.rollouts.rollout import Rollout
from runner.rollouts.stop_switch import Stopped
from runner.runs.workers import messages
from runner.runs.workers.heartbeat import HeartbeatMonitor
from runner.runs.workers.leases import LeaseBook, Leased
from runner.runs.workers.lost_workers import LostWorkers, count_lost
from runner.runs.workers.message_codec import Packed
from runner.runs.workers.messages import job_fields, rollout_of
from runner.runs.workers.notifications import WorkerNotifications
from runner.runs.workers.permits import Asking
from runner.runs.workers.pool import WorkerHandle, WorkerPool
from runner.runs.workers.worker_state import WorkerSlot, WriterState

DRAIN_SECONDS = 10.0

SOON_SECONDS = 15.0
"""A worker that begins has its share of the games kept for it so long; one that a cluster has no room for has not."""

DRAWN_AT_ONCE = 16
"""A worker plays no more games at once where no call waits for a server: more of them leave the processor's cache. They
end together, so that it has as many there that come next.
"""

log = logging.getLogger("nip_run.workers")


class GameScheduler:
    """Has workers play jobs, as `Engine.play_all` plays them."""

    def __init__(self, held: WriterState, crew: WorkerPool, workers: int) -> None:
        self._held, self._crew = held, crew
        self._places = [WorkerSlot(number) for number in range(workers)]
        self._moved = asyncio.Event()
        held.stop.wakes(self._moved)
        self._failure: BaseException | None = None
        self._exhausted: BudgetExhausted | None = None
        self._was_stopped = False
        self._deaths = LostWorkers(workers)
        self._news = WorkerNotifications(held, self._places)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_over = False
        self._actions: Mapping[type, Callable[[WorkerSlot, Any], None]] = {
            messages.WorkerReady: self._ready,
            messages.Alive: lambda *_: None,
            messages.CannotStart: lambda _, message: self._fail(message.failure.error()),
            messages.GameFinished: self._made,
            messages.GamePlayed: self._played,
            messages.Unfinished: self._unfinished,
            messages.Drained: self._drained,
            **self._news.actions,
        }

    async def play_all(self, jobs: Iterator[Job], results: InOrder, concurrency: int) -> None:
        """Play every job, `concurrency` at once; its rollouts go to `results` when its turn comes.

        Raises:
            NipRunError, MemoryError: see `Engine.play_all`.
            RunError: workers die again and again, or each that plays one game.
        """
        held, places = self._held, self._places
        self._results = results
        self._concurrency = concurrency
        self._book = LeaseBook(jobs, results.has_room, len(places), by_datapoint=held.plan.shares_between_games)
        is_whole = False
        watching = asyncio.create_task(HeartbeatMonitor(places, held, self._fail).watch())
        try:
            held.stop.check()
            start = Packed(held.start)
            for place in places:
                self._begin(self._start(place, start))
            del start  # which may be large
            await self._until_over()
            await self._drain()
            is_whole = True
        except STOPS_ALL as error:
            await self._let_come_in(error)
            raise
        finally:
            self._is_over = True
            watching.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)  # of workers that come and go: short, and whole
            await asyncio.gather(*(self._end(place, at_once=not is_whole) for place in places))

    # Playing

    async def _until_over(self) -> None:
        """Lease until all games are played, or none is to begin any more and none is being played.

        Raises:
            Stopped, BudgetExhausted: not all were played; or what `_fail` was told.
        """
        while True:
            self._moved.clear()
            self._raise_failure()
            self._held.accounting.check_unusable()
            self._news.tell_stop()
            self._lease()
            is_done = self._book.is_empty or self._begins_nothing
            if is_done and not any(place.leases for place in self._places):
                break
            await self._moved.wait()
        if self._exhausted is not None:
            raise self._exhausted
        if self._was_stopped or not self._book.is_empty:
            raise Stopped

    @property
    def _begins_nothing(self) -> bool:
        return self._exhausted is not None or self._held.stop.stopping

    def _lease(self) -> None:
        """Give games to all who have room for them."""
        try:
            self._held.check_budget()
        except BudgetExhausted as error:
            self._exhausted = error
        now = asyncio.get_running_loop().time()
        expected = sum(place.is_ready or now < place.waited_until for place in self._places)
        at_once, ahead = -(-self._concurrency // max(expected, 1)), 0
        if not self._held.start.is_durable:
            at_once = ahead = min(at_once, DRAWN_AT_ONCE)
        given = True
        while given and not self._begins_nothing:
            # The least busy first, one game each time, so that all have the same to do.
            ready = sorted((place for place in self._places if place.is_ready), key=lambda one: len(one.leases))
            given = sum(self._lease_to(place, at_once, ahead) for place in ready) > 0

    def _lease_to(self, place: WorkerSlot, at_once: int, ahead: int) -> bool:
        if place.plays_alone or len(place.leases) >= at_once + ahead:
            return False
        if self._book.has_suspects(place.number):
            if place.leases:
                return False  # it takes one once it has nothing else
            leased = self._book.suspect_for(place.number)
            place.plays_alone = True
        else:
            leased = self._book.next_for(place.number)
        if leased is None:
            return False
        place.leases[leased.job.index] = leased
        job = leased.job
        records = self._held.written.of(leased, place.known)
        place.send(messages.Lease(job_fields(job), job.datapoint.id, records, at_once))
        return True

    async def _let_come_in(self, error: NipRunError) -> None:
        """Ask nothing new, and wait for what is in flight: it may be answered, and billed."""
        self._held.stop.stop_all()
        self._news.tell_stop()
        seconds = REFUSED_SECONDS if isinstance(error, ProviderRefusal) else UNREACHABLE_SECONDS
        await self._moved_until(lambda: not any(place.leases for place in self._places), seconds)

    async def _moved_until(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Wait until something is so, or for this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_done():
                    self._moved.clear()
                    await self._moved.wait()

    # What workers say

    def _receive(self, place: WorkerSlot, batch: Sequence[Any]) -> None:
        place.silent = 0
        appends = [message for message in batch if isinstance(message, messages.Append)]
        try:
            if appends and not self._held.start.is_durable:
                self._held.written.append_now(appends)
            elif appends:
                task = asyncio.create_task(self._append(place, place.worker, appends))
                place.appends.add(task)
                task.add_done_callback(place.appends.discard)
            for message in batch:
                if not isinstance(message, messages.Append):
                    self._actions[type(message)](place, message)
        except BaseException as error:  # noqa: BLE001 - `play_all` raises it
            self._fail(error)
        self._moved.set()

    async def _append(self, place: WorkerSlot, worker: WorkerHandle | None, appends: Sequence[messages.Append]) -> None:
        asking = place.asking
        try:
            await self._held.written.append(appends, partial(self._held.permits.settled, asking))
        except Exception as error:  # noqa: BLE001 - `play_all` raises it
            self._fail(error)
            return
        if worker is not None:
            worker.send(messages.Acked([append.number for append in appends if append.number is not None]))

    def _ready(self, place: WorkerSlot, _: messages.WorkerReady) -> None:
        place.is_ready = True
        self._news.greet(place)

    def _made(self, place: WorkerSlot, message: messages.GameFinished) -> None:
        self._over(place, message.place)
        self._results.put(message.place, message.game)

    def _played(self, place: WorkerSlot, message: messages.GamePlayed) -> None:
        leased = self._over(place, message.place)
        self._results.put(message.place, [self._rollout(leased.job, *told) for told in message.rollouts])

    def _over(self, place: WorkerSlot, index: int) -> Leased:
        """A game was played to its end."""
        leased = place.leases.pop(index)
        place.plays_alone = False
        self._deaths.forget()
        self._held.written.over(leased)
        return leased

    def _rollout(self, job: Job, repeat: int, facts: Sequence[Any]) -> Rollout:
        return rollout_of(job if repeat == job.repeat else self._held.plan.branch(job, repeat), facts)

    def _unfinished(self, place: WorkerSlot, message: messages.Unfinished) -> None:
        place.leases.pop(message.place)
        place.plays_alone = False
        error = message.failure.error()
        if isinstance(error, BudgetExhausted):
            # Games that were begun may still fit what is reserved for others now; new ones may not.
            self._exhausted = error
        elif isinstance(error, Stopped):
            self._was_stopped = True
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Keep what stops the run; the first counts, and one that stops all before what follows from that."""
        if self._failure is None:
            self._failure = error
        self._moved.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # Workers come and go

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, place: WorkerSlot, start: Packed) -> None:
        place.asking = Asking(place.send)
        loop = asyncio.get_running_loop()
        place.waited_until = loop.time() + SOON_SECONDS
        loop.call_later(SOON_SECONDS, self._moved.set)
        try:
            place.worker = await self._crew.start(partial(self._receive, place), partial(self._died, place))
            place.worker.send(start)
        except Exception as error:  # noqa: BLE001 - `play_all` raises it
            self._fail(error)

    def _died(self, place: WorkerSlot, how: str) -> None:
        if not self._is_over and not place.is_drained:
            self._begin(self._bury(place, how))
        self._moved.set()

    async def _bury(self, place: WorkerSlot, how: str) -> None:
        """Count what a worker left in flight, give its games to others, and start a new one."""
        was_ready, place.is_ready, place.worker = place.is_ready, False, None
        log.warning("a worker process %s, with %d games", how, len(place.leases))
        held = self._held
        try:
            held.permits.died(place.asking, how)
            await held.permits.all_over(place.asking)
            await asyncio.gather(*place.appends)
            await count_lost(held, place, how)
            self._news.died(place)
            self._deaths.count(place, how, was_ready=was_ready)
        except Exception as error:  # noqa: BLE001 - `play_all` raises it
            self._fail(error)
            return
        for leased in place.leases.values():
            self._book.give_back(leased)
        self._book.leave(place.number)
        place.leases.clear()
        place.plays_alone = False
        place.known.clear()
        self._moved.set()
        if not (self._is_over or self._book.is_empty or self._begins_nothing):
            await self._start(place, Packed(held.start))

    async def _drain(self) -> None:
        """Have all workers say what remains to be said.

        Raises:
            ProviderRefusal: all that a model group answered, to any of them, were refusals.
        """
        for place in self._places:
            if place.is_ready:
                place.send(messages.Drain())
            place.is_drained = not place.is_ready
        await self._moved_until(
            lambda: all(place.is_drained or place.worker is None for place in self._places), DRAIN_SECONDS
        )
        self._raise_failure()

    def _drained(self, place: WorkerSlot, message: messages.Drained) -> None:
        place.is_drained = True
        if message.failure is not None:
            self._fail(message.failure.error())

    async def _end(self, place: WorkerSlot, *, at_once: bool) -> None:
        """Let go of a worker, and of the calls that it has in flight: their slots stay, for the next process."""
        self._held.permits.died(place.asking, "was let go of")
        await self._held.permits.all_over(place.asking)
        worker, place.worker, place.is_ready = place.worker, None, False
        if worker is not None:
            await worker.end(at_once=at_once)
        await asyncio.gather(*place.appends, return_exceptions=True)
