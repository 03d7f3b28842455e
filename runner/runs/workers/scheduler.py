"""The writer of a run with workers: leases games to workers, collects results, and replaces workers that die.

The writer is the main process, and only it writes the files of the run. A lease gives a game to one worker until the
game has ended. Each worker fills a slot; if the worker dies, a new one takes over its slot. A suspect is a game that
several workers played when they died. Here, a game is a job of the plan: a single game, or a tree of branches.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from runner.base.errors import BudgetExhausted, Stopped
from runner.rollouts.engine import ERRORS_THAT_STOP_ALL, grace_seconds_after
from runner.rollouts.job import Job
from runner.rollouts.reorder_buffer import PlanOrderBuffer
from runner.runs.workers import messages
from runner.runs.workers.frames import PickledMessage
from runner.runs.workers.heartbeat import watch_workers
from runner.runs.workers.leases import LeaseBook
from runner.runs.workers.permits import WorkerCalls
from runner.runs.workers.pool import WorkerHandle, WorkerPool
from runner.runs.workers.worker_deaths import WorkerDeathCounter, record_calls_in_flight
from runner.runs.workers.worker_events import WorkerMessageHandler
from runner.runs.workers.writer_state import WorkerSlot, WriterState

FINAL_REPORT_SECONDS = 10.0
"""The maximum time to wait for the final reports of all workers."""

START_SECONDS = 15.0
"""The seconds that a starting worker's share of the concurrent games stays reserved for this worker.

If the start takes longer, as in a full cluster, the ready workers get these games.
"""

MAX_OFFLINE_GAMES = 16
"""The maximum number of concurrent games of a worker if no call waits for a server.

More games would not fit into the processor's cache. Without calls to wait for, the games of a worker end almost
together. So the writer also leases the same number of games in advance, which the worker can start at once.
"""

log = logging.getLogger("nip_run.workers")


class GameScheduler:
    """Plays games with workers. It has the method `play_all` of `Engine`."""

    def __init__(self, state: WriterState, pool: WorkerPool, worker_count: int) -> None:
        self._state, self._pool = state, pool
        self._slots = [WorkerSlot(number) for number in range(worker_count)]
        self._state_changed = asyncio.Event()
        """Set when more games may be leased, the run may be over, or the run is stopping."""
        state.stop.call_on_stop(self._state_changed.set)
        self._failure: BaseException | None = None
        """The first error that stops the run, which `play_all` raises."""
        self._budget_error: BudgetExhausted | None = None
        """The error of the budget, if the budget does not allow more games."""
        self._has_stopped_games = False
        """Whether a game in progress was stopped before it was finished."""
        self._deaths = WorkerDeathCounter(worker_count)
        self._events = WorkerMessageHandler(state, self._slots)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_ending = False
        """Whether the workers are being ended. Dead workers are then not replaced."""
        self._handlers: Mapping[type, Callable[[WorkerSlot, Any], None]] = {
            messages.WorkerReady: self._handle_ready,
            messages.Alive: lambda *_: None,
            messages.CannotStart: lambda _, message: self._stop_with(message.failure.to_exception()),
            messages.GameFinished: self._handle_finished,
            messages.GameUnfinished: self._handle_unfinished,
            messages.FinalReport: self._handle_final_report,
            **self._events.handlers,
        }

    async def play_all(self, jobs: Iterator[Job], results: PlanOrderBuffer, concurrency: int) -> None:
        """Play every game, `concurrency` of them concurrently, and put the rollouts into `results`.

        Raises:
            NipRunError, MemoryError: see `Engine.play_all`.
            RunError: workers die repeatedly, or every worker that plays a certain game dies.
        """
        state, slots = self._state, self._slots
        self._results = results
        self._concurrency = concurrency
        # Games that share calls must go to the same worker, because only this worker has the records of these calls.
        self._lease_book = LeaseBook(jobs, results.has_room, len(slots), by_datapoint=state.plan.games_share_calls)
        is_complete = False
        watch_task = asyncio.create_task(watch_workers(slots, state, self._stop_with))
        try:
            state.stop.check()
            start_message = PickledMessage(state.start_message)
            for slot in slots:
                self._create_task(self._start_worker(slot, start_message))
            del start_message  # frees its memory, because the message may be large
            await self._lease_until_played()
            await self._collect_final_reports()
            is_complete = True
        except ERRORS_THAT_STOP_ALL as error:
            await self._wait_for_calls(error)
            raise
        finally:
            self._is_ending = True
            watch_task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)  # the short tasks that start and replace workers
            await asyncio.gather(*(self._end_worker(slot, immediately=not is_complete) for slot in slots))

    # Leasing

    async def _lease_until_played(self) -> None:
        """Lease games until all games are played or, if the run is stopping, until all games in progress have ended.

        Raises:
            Stopped, BudgetExhausted: not all games were played.
        """
        while True:
            self._state_changed.clear()
            self._raise_failure()
            self._state.accounting.check_share_of_unusable_answers()
            self._events.forward_stop()
            self._lease_games()
            if (self._lease_book.is_empty or self._is_stopping) and not self._has_leases():
                break
            await self._state_changed.wait()
        if self._budget_error is not None:
            raise self._budget_error
        if self._has_stopped_games or not self._lease_book.is_empty:
            raise Stopped

    @property
    def _is_stopping(self) -> bool:
        """Whether the run is stopping or its budget is exhausted, so that no game may start."""
        return self._budget_error is not None or self._state.stop.is_stopping

    def _has_leases(self) -> bool:
        return any(slot.leases for slot in self._slots)

    def _lease_games(self) -> None:
        """Lease games to the ready workers, up to each worker's maximum number of games."""
        try:
            if self._state.budget is not None:
                self._state.budget.check()
        except BudgetExhausted as error:
            self._budget_error = error
        now = asyncio.get_running_loop().time()
        expected_workers = sum(slot.is_ready or now < slot.start_deadline for slot in self._slots)
        concurrent_games = math.ceil(self._concurrency / max(expected_workers, 1))
        waiting_games = 0
        if not self._state.start_message.answers_cost_money:  # free answers come from no server, so no call waits
            concurrent_games = waiting_games = min(concurrent_games, MAX_OFFLINE_GAMES)
        new_leases = 1
        while new_leases and not self._is_stopping:
            # Each worker gets one game per round, the least busy first, to balance the number of games.
            ready = sorted((slot for slot in self._slots if slot.is_ready), key=lambda slot: len(slot.leases))
            new_leases = sum(self._lease_game_to(slot, concurrent_games, waiting_games) for slot in ready)

    def _lease_game_to(self, slot: WorkerSlot, concurrent_games: int, waiting_games: int) -> bool:
        """Lease one game to a worker if possible, and return whether a game was leased.

        The worker plays up to `concurrent_games` games at a time, and has up to `waiting_games` further games waiting.
        """
        if slot.is_testing_suspect or len(slot.leases) >= concurrent_games + waiting_games:
            return False
        # A worker plays a suspect alone, after its other games.
        if self._lease_book.has_suspect_for(slot.number):
            if slot.leases:
                return False
            game = self._lease_book.next_suspect_for(slot.number)
            slot.is_testing_suspect = True
        else:
            game = self._lease_book.next_game_for(slot.number)
        if game is None:
            return False
        slot.leases[game.job.index] = game
        records = self._state.game_records.records_for(game, slot.sent_datapoints)
        slot.send(messages.Lease(game.job, records, concurrent_games))
        return True

    async def _wait_for_calls(self, error: Exception) -> None:
        """Stop new calls, and wait for the calls in flight, which may still be answered and are billed."""
        self._state.stop.stop_all()
        self._events.forward_stop()
        await self._wait_until(lambda: not self._has_leases(), grace_seconds_after(error))

    async def _wait_until(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Wait until `is_done()` returns true, but at most for this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_done():
                    self._state_changed.clear()
                    await self._state_changed.wait()

    # Messages of workers

    def _receive(self, slot: WorkerSlot, batch: Sequence[Any]) -> None:
        """Handle a batch of messages from a worker, and append the records in it to the journal."""
        slot.silent_checks = 0
        appends = [message for message in batch if isinstance(message, messages.Append)]
        try:
            if appends and not self._state.start_message.answers_cost_money:
                self._state.game_records.append_now(appends)
            elif appends:
                task = asyncio.create_task(self._append_records(slot, slot.worker, appends))
                slot.append_tasks.add(task)
                task.add_done_callback(slot.append_tasks.discard)
            for message in batch:
                if not isinstance(message, messages.Append):
                    self._handlers[type(message)](slot, message)
        except BaseException as error:  # noqa: BLE001 - `play_all` raises it
            self._stop_with(error)
        self._state_changed.set()

    async def _append_records(
        self, slot: WorkerSlot, worker: WorkerHandle | None, appends: Sequence[messages.Append]
    ) -> None:
        """Write records to the journal, and acknowledge them to the worker that sent them."""
        calls = slot.calls
        try:
            await self._state.game_records.append(appends, partial(self._state.permits.remove_recorded, calls))
        except Exception as error:  # noqa: BLE001 - `play_all` raises it
            self._stop_with(error)
            return
        if worker is not None:
            worker.send(messages.Acknowledged([append.number for append in appends if append.number is not None]))

    def _handle_ready(self, slot: WorkerSlot, _: messages.WorkerReady) -> None:
        slot.is_ready = True
        self._events.send_run_state(slot)

    def _handle_finished(self, slot: WorkerSlot, message: messages.GameFinished) -> None:
        game = slot.leases.pop(message.job_index)
        slot.is_testing_suspect = False
        self._deaths.reset()
        self._state.game_records.forget(game)
        self._results.put(message.job_index, message.result)

    def _handle_unfinished(self, slot: WorkerSlot, message: messages.GameUnfinished) -> None:
        """Handle a game that ended with an error. An exhausted budget stops new games; other errors stop the run."""
        slot.leases.pop(message.job_index)
        slot.is_testing_suspect = False
        error = message.failure.to_exception()
        if isinstance(error, BudgetExhausted):
            # No new games start. Games in progress continue, because they can still use budget that other calls have
            # reserved but not spent.
            self._budget_error = error
        elif isinstance(error, Stopped):
            self._has_stopped_games = True
        else:
            self._stop_with(error)

    def _stop_with(self, error: BaseException) -> None:
        """Stop the run with this error, unless an earlier error has already stopped it."""
        if self._failure is None:
            self._failure = error
        self._state_changed.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # Starts and deaths of workers

    def _create_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start_worker(self, slot: WorkerSlot, start_message: PickledMessage) -> None:
        """Start the worker process of a slot."""
        slot.calls = WorkerCalls(slot.send)
        loop = asyncio.get_running_loop()
        slot.start_deadline = loop.time() + START_SECONDS
        loop.call_later(START_SECONDS, self._state_changed.set)
        try:
            slot.worker = await self._pool.start(partial(self._receive, slot), partial(self._handle_exit, slot))
            slot.worker.send(start_message)
        except Exception as error:  # noqa: BLE001 - `play_all` raises it
            self._stop_with(error)

    def _handle_exit(self, slot: WorkerSlot, exit_reason: str) -> None:
        if not (self._is_ending or slot.has_final_report):
            self._create_task(self._replace_worker(slot, exit_reason))
        self._state_changed.set()

    async def _replace_worker(self, slot: WorkerSlot, exit_reason: str) -> None:
        """Replace a dead worker: count the calls that it left in flight, return its games, and start a new worker.

        `exit_reason` follows the words "a worker process", for example "was killed by SIGKILL".
        """
        was_ready, slot.is_ready, slot.worker = slot.is_ready, False, None
        log.warning("a worker process %s, with %d games", exit_reason, len(slot.leases))
        state = self._state
        try:
            state.permits.end_calls(slot.calls, exit_reason)
            await state.permits.wait_until_calls_end(slot.calls)
            await asyncio.gather(*slot.append_tasks)
            await record_calls_in_flight(state, slot, exit_reason)
            self._events.withdraw_server_problems(slot)
            self._deaths.count(slot, exit_reason, was_ready=was_ready)
        except Exception as error:  # noqa: BLE001 - `play_all` raises it
            self._stop_with(error)
            return
        for game in slot.leases.values():
            self._lease_book.return_game(game)
        self._lease_book.release_slot(slot.number)
        slot.leases.clear()
        slot.is_testing_suspect = False
        slot.sent_datapoints.clear()
        self._state_changed.set()
        if not (self._is_ending or self._lease_book.is_empty or self._is_stopping):
            await self._start_worker(slot, PickledMessage(state.start_message))

    async def _collect_final_reports(self) -> None:
        """Request a final report from each worker, and wait for these reports.

        Raises:
            ProviderRefusal: a model group refused every call of every worker.
        """
        for slot in self._slots:
            if slot.is_ready:
                slot.send(messages.FinalReportRequest())
            slot.has_final_report = not slot.is_ready  # a worker that was never ready has nothing to report
        await self._wait_until(
            lambda: all(slot.has_final_report or slot.worker is None for slot in self._slots), FINAL_REPORT_SECONDS
        )
        self._raise_failure()

    def _handle_final_report(self, slot: WorkerSlot, message: messages.FinalReport) -> None:
        slot.has_final_report = True
        if message.failure is not None:
            self._stop_with(message.failure.to_exception())

    async def _end_worker(self, slot: WorkerSlot, *, immediately: bool) -> None:
        """End a worker. Its unanswered calls stay in the file of calls in flight, which the next process reads."""
        self._state.permits.end_calls(slot.calls, "was ended")
        await self._state.permits.wait_until_calls_end(slot.calls)
        worker, slot.worker, slot.is_ready = slot.worker, None, False
        if worker is not None:
            await worker.end(immediately=immediately)
        await asyncio.gather(*slot.append_tasks, return_exceptions=True)
