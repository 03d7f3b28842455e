"""Run coroutines to completion from synchronous code, including in a notebook, and helpers for tasks and queues."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")

_interrupts: dict[asyncio.AbstractEventLoop, Callable[[], None]] = {}
"""The callback of each loop that runs in a thread, called on Ctrl-C. A loop without one cancels its task."""


def run_sync(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of the coroutine. If an event loop is running, as in a notebook, use a loop in a new thread."""
    if not _is_in_loop():
        runner = asyncio.Runner()
        try:
            result = runner.run(start())
        except BaseException:
            with suppress(RuntimeError):  # closing starts a thread, which fails without free memory
                runner.close()
            raise
        runner.close()
        return result
    with ThreadPoolExecutor(1, "nip-run") as thread, closing(_ThreadedLoop(thread)) as threaded_loop:
        return threaded_loop.run(start())


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` in the running loop at each Ctrl-C, if `run_sync` runs the loop in a thread."""
    loop = asyncio.get_running_loop()
    _interrupts[loop] = act
    try:
        yield
    finally:
        del _interrupts[loop]


class _ThreadedLoop:
    """An event loop in a thread. Only the main thread receives signals, so it waits and forwards Ctrl-C to the loop."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._runner = asyncio.Runner()
        # The loop's tasks inherit the context that is active here, as tasks in the main thread would.
        self._loop = thread.submit(copy_context().run, self._runner.get_loop).result()
        self._task: asyncio.Task[Any] | None = None
        self._interrupted = False

    def run(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """Return the coroutine's result, as `asyncio.Runner.run` does, but wait for its end even after Ctrl-C."""
        self._interrupted = False
        future = self._thread.submit(self._runner.run, self._track_task(coroutine))
        self._wait_out(future)
        result = future.result()
        if self._interrupted:
            raise KeyboardInterrupt
        return result

    def close(self) -> None:
        """Close the loop in its thread."""
        self._wait_out(self._thread.submit(self._runner.close))

    async def _track_task(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._task = asyncio.current_task()
        try:
            if self._interrupted:  # the interrupt came before there was a task to cancel
                coroutine.close()
                raise asyncio.CancelledError
            return await coroutine
        finally:
            self._task = None

    def _wait_out(self, future: Future[Any]) -> None:
        while not future.done():
            try:
                wait([future])
            except KeyboardInterrupt:
                self._interrupted = True
                self._loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        act = _interrupts.get(self._loop)
        if act is not None:
            act()
        elif self._task is not None:
            self._task.cancel()


async def wait_for_turn(queue: deque[asyncio.Future[None]], pass_on: Callable[[], object]) -> None:
    """Join a queue, and wait until the future that this adds to the queue is done.

    If the waiting task is cancelled just after its turn has come, `pass_on` must give the turn to the next one.
    """
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    queue.append(turn)
    try:
        await turn
    except asyncio.CancelledError:
        if turn.done() and not turn.cancelled():
            pass_on()
        raise


async def close_all(closers: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Call all closers, even if one fails, and then raise the first error."""
    outcomes = await asyncio.gather(*(close() for close in closers), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until all have finished, ignoring their results and exceptions."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
