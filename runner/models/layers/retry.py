"""Retries calls after failures in transport, with limited attempts and time. A server may request a longer wait.

A failure in transport is a call without an answer from the model: rate limits, time-outs, lost connections and 5xx. If
many calls of a model in a row fail in all their attempts, for example because a daily quota is used up, the run stops.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from runner.base.errors import ANSWERS_ARE_SAVED, CallError, ServerUnreachable, TransientError
from runner.models.call_events import CallEvents
from runner.models.interface import Complete, Completion, Request
from runner.models.layers.breaker import Breaker
from runner.models.retry_policy import TransientPolicy


class RetryDecision(NamedTuple):
    """The wait after a failed attempt, or the end of the attempts."""

    wait: float
    """Seconds before the next attempt."""
    is_last: bool
    """Whether there is no other attempt."""


def after_failure(
    policy: TransientPolicy,
    error: TransientError,
    attempt: int,
    elapsed: float,
    jitter: random.Random,
    *,
    moves: bool = False,
) -> RetryDecision:
    """Return what follows a failed attempt. With `moves`, the next attempt goes to another server, without a wait.

    `elapsed` is the time since the first failure in seconds; 0 if the total time of the call is not limited.
    """
    # A `retry_after` of 0 gives no time for the next attempt, so the policy decides.
    wait = 0.0 if moves else error.retry_after or policy.wait(attempt, jitter)
    is_late = elapsed + wait > policy.total_seconds
    return RetryDecision(wait, is_late or attempt >= min(policy.attempts, error.attempts or policy.attempts))


def with_retries(
    complete: Complete,
    policy: TransientPolicy,
    events: CallEvents,
    *,
    has_time_limit: Callable[[Request], bool] = lambda _: True,
    breaker_of: Callable[[Request], Breaker | None] = lambda _: None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
    rng: random.Random | None = None,
) -> Complete:
    """Return a function that calls `complete` and retries after transient failures.

    `has_time_limit` returns whether the total time of a call is limited. `breaker_of` returns the circuit breaker of
    the call's server, if there is one. The total time starts at the first failure, so that the wait for a slot or a
    rate limit does not count. Jitter uses its own random generator, so that it does not affect other random choices.
    """
    jitter = rng or random.Random()

    async def complete_with_retries(request: Request) -> Completion:
        first_failure = clock()
        attempt = 0
        breaker = breaker_of(request)
        while True:
            attempt += 1
            try:
                return await (complete(request) if breaker is None else breaker.call_in_turn(complete, request, sleep))
            except TransientError as error:
                first_failure = first_failure if attempt > 1 else clock()
                elapsed = clock() - first_failure if has_time_limit(request) else 0.0
                wait, is_last = after_failure(policy, error, attempt, elapsed, jitter)
                await events.on_failure(request, attempt, error, -1.0 if is_last else wait)
                if breaker is not None:
                    breaker.check()
                if is_last:
                    raise
                await sleep(wait)
            except CallError as error:
                if error.usage is not None:  # the server may bill these tokens, although the call is not repeated
                    await events.on_failure(request, attempt, error, -1.0)
                raise

    return complete_with_retries


def stop_after_losses(complete: Complete, maximum: int, servers: Mapping[str, str]) -> Complete:
    """Return a function that calls `complete`, and raises `ServerUnreachable` if many calls of a group fail in a row.

    A call that raises `TransientError` has failed in all its attempts. After `maximum` of them without another result
    in between, more calls would only lose more games. `servers` has the address of each group to which this applies.
    """
    losses: Counter[str] = Counter()

    async def complete_or_stop(request: Request) -> Completion:
        group = request.group
        try:
            completion = await complete(request)
        except TransientError as error:
            losses[group] += 1
            if group in servers and losses[group] >= maximum:
                wait = f" (it asks for a wait of {error.retry_after:,.0f} s)" if error.retry_after else ""
                raise ServerUnreachable(
                    f"the last {losses[group]} calls of model {group} at {servers[group]} failed in all attempts; "
                    f"the last error: {error}{wait}\n{ANSWERS_ARE_SAVED}. Run the same command again when the server "
                    "answers. If only some calls fail, raise retry.breaker.failures."
                ) from error
            raise
        except CallError:
            losses[group] = 0  # because a refusal is an answer of the server
            raise
        losses[group] = 0
        return completion

    return complete_or_stop
