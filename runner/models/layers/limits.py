"""Limits the concurrency and the rate of calls.

A run has one fair semaphore for all its calls. Each model group has its own limit of concurrent calls, which adapts to
the server as TCP does (additive increase, multiplicative decrease, slow start). It also has two leaky buckets, for
requests and for tokens per minute.

- Increase: a group's limit starts at a quarter of the concurrency. It doubles with each round trip until the server
  refuses a quarter of the calls, and then grows by one per round trip. It grows only after successes while the limit is
  fully used, because other successes show nothing about a higher limit.
- Decrease: a 429 shrinks the limit by a fifth, at most once per cool-down. During a cool-down, the limit grows only if
  the server refuses few calls.
- Pause: a 429 also pauses the whole group for the time that the server requests, unless this exceeds the total time for
  the retries of a call. Without the pause, every waiting call would be refused once.

The log reports each decrease of the limit, and each doubling.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from runner.base.async_runner import wait_for_turn
from runner.base.errors import BudgetExhausted, Stopped, TransientError
from runner.models.interface import Complete, Completion, Request

START_DIVISOR = 4
"""The initial limit of a group is the run's concurrency divided by this."""
SHRINK = 0.8
"""Factor of the limit after a 429."""
COOLDOWN_SECONDS = 15.0
"""Minimum time between two decreases of a limit."""
EWMA_WEIGHT = 1 / 32
"""Weight of one call in the exponential moving average of 429s."""
OVERLOADED = 0.25
"""A server is overloaded if at least this share of recent calls gets a 429."""
MINUTE = 60.0
BURST = 5.5 / MINUTE
"""Share of a minute's rate that may be sent in a burst.

A server must not receive more than a tenth of a minute's rate in a burst. Half a second's rate is subtracted, because
calls may be sent later than they are admitted (at the start of games, 0.15 s in one process and 0.3 s on a Ray cluster
with two cores).
"""

log = logging.getLogger("nip_run.limits")

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[object]]


class FairSemaphore:
    """Allows `size` concurrent calls. Waiting groups get slots in turn, so a busy group does not block the others."""

    def __init__(self, size: int) -> None:
        self._free = self._size = size
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def enter(self, group: str) -> None:
        """Wait for a slot."""
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return
        await wait_for_turn(self._waiting.setdefault(group, deque()), self.leave)

    def leave(self) -> None:
        """Pass the slot to the first waiting call of the next group."""
        while self._waiting:
            group = next(iter(self._waiting))
            queue = self._waiting.pop(group)
            slot = queue.popleft()
            if queue:
                self._waiting[group] = queue  # moves the group to the end, so that other groups are next
            if not slot.cancelled():
                slot.set_result(None)
                return
        self._free += 1


@dataclass
class LeakyBucket:
    """Limits a rate in units per minute. Units are spread evenly, except for bursts of up to `BURST`."""

    per_minute: float
    clock: Clock
    _level: float = 0.0
    _updated_at: float = 0.0

    def __post_init__(self) -> None:
        self._updated_at = self.clock()

    def wait_for(self, amount: float) -> float:
        """Reserve `amount` units, and return the seconds to wait before they may be used."""
        now = self.clock()
        self._level = max(self._level - (now - self._updated_at) * self.per_minute / MINUTE, 0.0)
        self._updated_at = now
        burst = self.per_minute * BURST
        # An amount larger than a burst would never fit, so it only waits for an empty bucket.
        wait = max(self._level + min(amount, burst) - burst, 0.0) * MINUTE / self.per_minute
        self._level += amount
        return wait

    def give_back(self, amount: float) -> None:
        """Release units that were reserved but not used."""
        self._level = max(self._level - amount, 0.0)


@dataclass(eq=False)
class GroupLimit:
    """The concurrency limit and the rate limits of a model group."""

    group: str
    maximum: int
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_pause: float = math.inf
    clock: Clock = time.monotonic

    def __post_init__(self) -> None:
        self.limit = float(max(self.maximum // START_DIVISOR, min(self.maximum, 8)))
        self._logged_limit = int(self.limit)
        self._fixed_rates = {"requests": self.requests_per_minute, "tokens": self.tokens_per_minute}
        self._buckets = {
            kind: LeakyBucket(rate, self.clock) for kind, rate in self._fixed_rates.items() if rate is not None
        }
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._slow_start = True
        self._refusal_rate = 0.0
        self._cool_until = 0.0
        self._paused_until = 0.0

    def learn_rates(self, headers: Mapping[str, str]) -> None:
        """Use the rate limits in a server's headers, unless the spec sets the limits."""
        for kind in ("requests", "tokens"):
            text = headers.get(f"x-ratelimit-limit-{kind}", "")
            is_valid = text.isascii() and text.isdigit() and len(text) < 16 and int(text) > 0
            if is_valid and self._fixed_rates[kind] is None:
                bucket = self._buckets.get(kind)
                if bucket is None or bucket.per_minute != int(text):
                    self._buckets[kind] = LeakyBucket(float(text), self.clock)
                    log.info("%s: the server allows %s %s per minute", self.group, text, kind)

    async def enter(self, tokens: Callable[[], int] = lambda: 0, sleep: Sleep = asyncio.sleep) -> int:
        """Wait for a slot and for the rate limits, and return the number of tokens that were reserved.

        `tokens` returns the maximum number of tokens of the call. It is called only if a limit of tokens is known.
        `sleep` waits for the rate limits. Each run has its own, which ends when the run stops.
        """
        if self._in_flight < int(self.limit) and not self._waiting:
            self._in_flight += 1
        else:
            await wait_for_turn(self._waiting, self._leave)
        try:
            return await self._wait_for_rates(tokens, sleep)
        except BaseException:
            self._leave()
            raise

    async def _wait_for_rates(self, tokens: Callable[[], int], sleep: Sleep) -> int:
        reserved = tokens() if "tokens" in self._buckets else 0
        waits = [bucket.wait_for(1 if kind == "requests" else reserved) for kind, bucket in self._buckets.items()]
        wait = max(waits, default=0.0)
        try:
            if wait > 0:
                await sleep(wait)
            while (pause := self._paused_until - self.clock()) > 0:
                await sleep(pause)
        except BaseException:
            self.give_back(reserved, requests=1)
            raise
        return reserved

    def _leave(self) -> None:
        self._in_flight -= 1
        self._wake()

    def _wake(self) -> None:
        """Assign free slots to waiting calls. An assigned slot immediately counts as used."""
        while self._waiting and self._in_flight < int(self.limit):
            slot = self._waiting.popleft()
            if not slot.done():
                self._in_flight += 1
                slot.set_result(None)

    def give_back(self, tokens: int, *, requests: int = 0) -> None:
        """Release tokens that were reserved for a call but not used, and the request if the call was not sent."""
        for kind, amount in (("tokens", tokens), ("requests", requests)):
            if amount and (bucket := self._buckets.get(kind)) is not None:
                bucket.give_back(amount)

    def succeeded(self) -> None:
        """Record that a call was answered."""
        is_full = self._in_flight >= int(self.limit)
        self._refusal_rate -= self._refusal_rate * EWMA_WEIGHT
        if is_full and self.limit < self.maximum and (self._refuses_few or self.clock() >= self._cool_until):
            old_limit = int(self.limit)
            self.limit = min(self.limit + (1 if self._slow_start else 1 / self.limit), float(self.maximum))
            if int(self.limit) > old_limit:
                self._log_growth()
        self._leave()

    @property
    def _refuses_few(self) -> bool:
        """Whether the server refuses only few calls. Some servers refuse a few calls at any load."""
        return self._refusal_rate < OVERLOADED

    def _log_growth(self) -> None:
        """Log the limit if it has reached the maximum, or twice the value in the last message."""
        limit = int(self.limit)
        if limit == self.maximum:
            log.info("%s: %d calls at once, all that rollouts.concurrency allows", self.group, limit)
        elif limit >= 2 * self._logged_limit:
            log.info("%s: up to %d calls at once", self.group, limit)
        else:
            return
        self._logged_limit = limit

    def failed(self, error: BaseException) -> None:
        """Record that a call failed. After a 429, shrink the limit and pause the group."""
        if isinstance(error, TransientError) and error.status == 429:
            now = self.clock()
            self._refusal_rate += (1 - self._refusal_rate) * EWMA_WEIGHT
            self._slow_start = self._slow_start and self._refuses_few
            if error.retry_after and error.retry_after <= self.max_pause:
                self._paused_until = max(self._paused_until, now + error.retry_after)
            if now >= self._cool_until:
                self.limit = max(self.limit * SHRINK, 1.0)
                self._cool_until = now + max(COOLDOWN_SECONDS, min(error.retry_after or 0.0, self.max_pause))
                self._logged_limit = int(self.limit)
                log.info("%s: 429, down to %d calls at once", self.group, self._logged_limit)
        self._leave()


def within_limits(
    complete: Complete,
    semaphore: FairSemaphore,
    limits: Mapping[str, GroupLimit],
    tokens: Callable[[Request], int],
    sleep: Sleep = asyncio.sleep,
) -> Complete:
    """Return a function that waits for the group's limits and the run's semaphore, and then calls `complete`.

    `tokens` returns the maximum number of tokens of a call.
    """

    async def limited(request: Request) -> Completion:
        limit = limits.get(request.group)
        if limit is None:
            return await complete(request)
        reserved = await limit.enter(lambda: tokens(request), sleep)
        try:
            await semaphore.enter(request.group)
            try:
                completion = await complete(request)
            finally:
                semaphore.leave()
        except BaseException as error:
            if isinstance(error, (Stopped, BudgetExhausted)):
                limit.give_back(reserved, requests=1)
            limit.failed(error)
            raise
        if reserved:
            limit.give_back(reserved - completion.usage.prompt_tokens - completion.usage.completion_tokens)
        limit.succeeded()
        return completion

    return limited
