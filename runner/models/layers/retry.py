"""The one retry layer for failures of transport: bounded attempts, bounded time, the server's wish first."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from runner.base.errors import TransientError
from runner.models.call_events import CallEvents
from runner.models.interface import Complete, Completion, Request
from runner.models.layers.breaker import Breaker
from runner.models.retry_policy import TransientPolicy


def after_failure(
    policy: TransientPolicy, error: TransientError, attempt: int, elapsed: float, jitter: random.Random
) -> tuple[float, bool]:
    """How long to wait after a failed attempt, and whether it was the last; `elapsed`: seconds since the first failed.

    Of a call whose total time is not bounded nothing elapses.
    """
    # A server that says `0` says no more than that it does not know.
    wait = error.retry_after or policy.wait(attempt, jitter)
    late = elapsed + wait > policy.total_seconds
    return wait, attempt >= min(policy.attempts, error.attempts or policy.attempts) or late


def with_retries(
    complete: Complete,
    policy: TransientPolicy,
    events: CallEvents,
    *,
    timed: Callable[[Request], bool] = lambda _: True,
    breaker_of: Callable[[Request], Breaker | None] = lambda _: None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
    rng: random.Random | None = None,
) -> Complete:
    """`complete` with transient failures asked again; `timed` says for which calls the total time is bounded.

    `breaker_of` is the breaker of the server that a request goes to, where it has one.
    The total time runs from the first failure: waiting for a place or for a rate is no failure. Jitter draws
    from a generator of its own: waiting is the one thing that may differ between equal runs.
    """
    jitter = rng or random.Random()

    async def retrying(request: Request) -> Completion:
        started = clock()
        attempt = 0
        breaker = breaker_of(request)
        while True:
            attempt += 1
            try:
                return await (complete(request) if breaker is None else breaker.guard(complete, request))
            except TransientError as error:
                started = started if attempt > 1 else clock()
                elapsed = clock() - started if timed(request) else 0.0
                wait, last = after_failure(policy, error, attempt, elapsed, jitter)
                await events.failed(request, attempt, error, -1.0 if last else wait)
                if breaker is not None:
                    breaker.check()
                if last:
                    raise
                await sleep(wait)

    return retrying
