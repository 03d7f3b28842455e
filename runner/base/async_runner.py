"""Coroutines run to their end from plain code, in a notebook too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_interrupts: dict[asyncio.AbstractEventLoop, Callable[[], None]] = {}
"""What an interrupt does to a loop in a thread, where its coroutine wants something else than to be cancelled."""


class AsyncRunner(Protocol):
    """Runs one coroutine to its end."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


@contextmanager
def one_after_another() -> Iterator[AsyncRunner]:
    """Run coroutines on one loop; in a thread of its own where a loop is running already, as in a notebook."""
    if not _is_in_loop():
        runner = asyncio.Runner()
        try:
            yield runner.run
        except BaseException:
            with suppress(RuntimeError):  # to close it takes a thread: where there is no memory for one, that is known
                runner.close()
            raise
        runner.close()
        return
    with ThreadPoolExecutor(1, "nip-run") as thread:
        inside = _InThread(thread)
        try:
            yield inside.run
        finally:
            inside.close()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Have `act` called in this loop at each Ctrl-C that comes while the loop is in a thread of its own."""
    loop = asyncio.get_running_loop()
    _interrupts[loop] = act
    try:
        yield
    finally:
        del _interrupts[loop]


class _InThread:
    """A loop in a thread, which signals do not reach: the main thread passes interrupts on, and waits it out."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._runner = asyncio.Runner()
        # The loop's tasks have the context in which it was made, here as in the main thread.
        self._loop = thread.submit(copy_context().run, self._runner.get_loop).result()
        self._task: asyncio.Task[Any] | None = None
        self._interrupted = False

    def run(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """As `asyncio.Runner.run`; however often it is interrupted, the coroutine has ended when this returns."""
        self._interrupted = False
        running = self._thread.submit(self._runner.run, self._noted(coroutine))
        self._wait_out(running)
        result = running.result()
        if self._interrupted:
            raise KeyboardInterrupt
        return result

    def close(self) -> None:
        """Close the loop in its thread."""
        self._wait_out(self._thread.submit(self._runner.close))

    async def _noted(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._task = asyncio.current_task()
        try:
            if self._interrupted:  # before there was anything to cancel
                coroutine.close()
                raise asyncio.CancelledError
            return await coroutine
        finally:
            self._task = None

    def _wait_out(self, running: Future[Any]) -> None:
        while not running.done():
            try:
                wait([running])
            except KeyboardInterrupt:
                self._interrupted = True
                self._loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        act = _interrupts.get(self._loop)
        if act is not None:
            act()
        elif self._task is not None:
            self._task.cancel()


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended, however they do."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def run_sync(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run one coroutine to its end, as `one_after_another` does."""
    with one_after_another() as to_end:
        return to_end(start())
