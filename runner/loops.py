"""Coroutines run to their end from plain code, in a notebook too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class ToEnd(Protocol):
    """Runs one coroutine to its end."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


@contextmanager
def one_after_another() -> Iterator[ToEnd]:
    """Run coroutines on one loop; in a thread of its own where a loop is running already, as in a notebook."""
    with ExitStack() as stack:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            yield stack.enter_context(asyncio.Runner()).run
            return
        thread = stack.enter_context(ThreadPoolExecutor(1, "nip-run"))
        runner = asyncio.Runner()
        stack.callback(lambda: thread.submit(runner.close).result())

        def in_thread(coroutine: Coroutine[Any, Any, T], /) -> T:
            return thread.submit(runner.run, coroutine).result()

        yield in_thread


def run_to_end(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run one coroutine to its end, as `one_after_another` does."""
    with one_after_another() as to_end:
        return to_end(start())
