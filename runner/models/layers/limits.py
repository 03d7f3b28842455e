"""Concurrency control: one fair semaphore a run; an AIMD limit with slow start, and two leaky buckets, a model group.

A group's limit starts at a quarter of the concurrency and doubles with each round trip until the server refuses a
quarter of the calls; from then on it grows by one a round trip. A 429 shrinks it by a fifth, at most once in a
cool-down, in which it grows only if the server keeps up otherwise. Only successes while the limit was full make it
grow: an idle group learns nothing. A 429 also holds back the whole group for as long as the server asks, unless that is
longer than any call may take, so that a thousand calls do not each find out for themselves. The log has each shrinking
of the limit, and its growth at each doubling.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from runner.base.errors import TransientError
from runner.models.interface import Complete, Completion, Request

START_SHARE = 4
SHRINK = 0.8
BACKOFF_COOLDOWN_SECONDS = 15.0
EWMA_WEIGHT = 1 / 32
"""EWMA weight of one call in the recent rate of 429s."""
OVERLOADED = 0.25
"""The recent rate of 429s from which on a server does not keep up."""
MINUTE = 60.0
BURST = 5.5 / MINUTE
"""What of a minute's rate may go out at once: a tenth, less half a second's. Where games begin, calls are sent later
than they are let through (0.15 s in one process, 0.3 s on a Ray cluster of two cores), and a server shall not see more
than a tenth of a minute's beyond its rate."""

log = logging.getLogger("nip_run.limits")

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[object]]


class FairSemaphore:
    """At most `size` calls at once; groups that wait are let in by turns, so that none starves another."""

    def __init__(self, size: int) -> None:
        self._free = self._size = size
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def enter(self, group: str) -> None:
        """Wait for a place."""
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """Give the place to the first who waits in the next group."""
        while self._waiting:
            group = next(iter(self._waiting))
            queue = self._waiting.pop(group)
            place = queue.popleft()
            if queue:
                self._waiting[group] = queue  # at the end: the other groups come first
            if not place.cancelled():
                place.set_result(None)
                return
        self._free += 1


@dataclass
class LeakyBucket:
    """A rate: so many units a minute, spread evenly, with a burst of `BURST`."""

    per_minute: float
    clock: Clock
    _level: float = 0.0
    _at: float = 0.0

    def __post_init__(self) -> None:
        self._at = self.clock()

    def wait_for(self, amount: float) -> float:
        """Take `amount` and say how long to wait before using it."""
        now = self.clock()
        self._level = max(self._level - (now - self._at) * self.per_minute / MINUTE, 0.0)
        self._at = now
        burst = self.per_minute * BURST
        # What is more than a burst at once could never pass: it waits for an empty bucket instead.
        wait = max(self._level + min(amount, burst) - burst, 0.0) * MINUTE / self.per_minute
        self._level += amount
        return wait

    def give_back(self, amount: float) -> None:
        """Return what was taken and not used."""
        self._level = max(self._level - amount, 0.0)


class GroupLimit:
    """The AIMD limit and the rates of one model group: additive increase, multiplicative decrease at a 429."""

    def __init__(
        self,
        group: str,
        most: int,
        *,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        most_hold: float = math.inf,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.group = group
        self.limit = float(max(most // START_SHARE, min(most, 8)))
        self._logged = int(self.limit)
        self._most = most
        self._most_hold = most_hold
        self._clock, self._sleep = clock, sleep
        self._given = {"requests": requests_per_minute, "tokens": tokens_per_minute}
        self._buckets = {kind: LeakyBucket(rate, clock) for kind, rate in self._given.items() if rate is not None}
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._slow_start = True
        self._refused = 0.0
        self._cool_until = 0.0
        self._not_before = 0.0

    def learn(self, headers: Mapping[str, str]) -> None:
        """Take the rates that the server says it allows, where the spec gives none."""
        for kind in ("requests", "tokens"):
            text = headers.get(f"x-ratelimit-limit-{kind}", "")
            if self._given[kind] is None and text.isascii() and text.isdigit() and len(text) < 16 and int(text) > 0:
                bucket = self._buckets.get(kind)
                if bucket is None or bucket.per_minute != int(text):
                    self._buckets[kind] = LeakyBucket(float(text), self._clock)
                    log.info("%s: the server allows %s %s a minute", self.group, text, kind)

    async def enter(self, tokens: Callable[[], int] = lambda: 0) -> int:
        """Wait for a place and for the rates; the tokens that were counted of what the call may use.

        `tokens` says how many that are. It is asked once there is a place, where a rate of tokens is known by then.
        """
        if self._in_flight < int(self.limit) and not self._waiting:
            self._in_flight += 1
        else:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._leave()  # the place was given in the same moment
                raise
        try:
            return await self._pause(tokens)
        except BaseException:
            self._leave()
            raise

    async def _pause(self, tokens: Callable[[], int]) -> int:
        counted = tokens() if "tokens" in self._buckets else 0
        waits = [bucket.wait_for(1 if kind == "requests" else counted) for kind, bucket in self._buckets.items()]
        wait = max(waits, default=0.0)
        if wait > 0:
            await self._sleep(wait)
        while (held := self._not_before - self._clock()) > 0:
            await self._sleep(held)
        return counted

    def _leave(self) -> None:
        self._in_flight -= 1
        self._wake()

    def _wake(self) -> None:
        """Give free places to those who wait; a place that is given counts as taken at once."""
        while self._waiting and self._in_flight < int(self.limit):
            place = self._waiting.popleft()
            if not place.done():
                self._in_flight += 1
                place.set_result(None)

    def give_back(self, tokens: int) -> None:
        """Return tokens that a call was allowed and did not use."""
        bucket = self._buckets.get("tokens")
        if bucket is not None:
            bucket.give_back(tokens)

    def succeeded(self) -> None:
        """A call came back with an answer."""
        full = self._in_flight >= int(self.limit)
        self._refused -= self._refused * EWMA_WEIGHT
        if full and self.limit < self._most and (self._keeps_up or self._clock() >= self._cool_until):
            before = int(self.limit)
            self.limit = min(self.limit + (1 if self._slow_start else 1 / self.limit), float(self._most))
            if int(self.limit) > before:
                self._log_growth()
        self._leave()

    @property
    def _keeps_up(self) -> bool:
        """Whether the server refuses a call now and then at most, as some do whatever the load."""
        return self._refused < OVERLOADED

    def _log_growth(self) -> None:
        """Log what the limit has grown to, at the most there is and at twice what the log said last."""
        now = int(self.limit)
        if now == self._most:
            log.info("%s: %d calls at once, all that rollouts.concurrency allows", self.group, now)
        elif now >= 2 * self._logged:
            log.info("%s: up to %d calls at once", self.group, now)
        else:
            return
        self._logged = now

    def failed(self, error: BaseException) -> None:
        """A call failed; a 429 shrinks the limit and holds the group back."""
        if isinstance(error, TransientError) and error.status == 429:
            now = self._clock()
            self._refused += (1 - self._refused) * EWMA_WEIGHT
            self._slow_start = self._slow_start and self._keeps_up
            if error.retry_after and error.retry_after <= self._most_hold:
                self._not_before = max(self._not_before, now + error.retry_after)
            if now >= self._cool_until:
                self.limit = max(self.limit * SHRINK, 1.0)
                self._cool_until = now + max(BACKOFF_COOLDOWN_SECONDS, min(error.retry_after or 0.0, self._most_hold))
                self._logged = int(self.limit)
                log.info("%s: 429, down to %d calls at once", self.group, self._logged)
        self._leave()


def within_limits(
    complete: Complete, semaphore: FairSemaphore, limits: Mapping[str, GroupLimit], tokens: Callable[[Request], int]
) -> Complete:
    """`complete` that waits for the group's limit and rates, then for the run's semaphore."""

    async def limited(request: Request) -> Completion:
        limit = limits.get(request.group)
        if limit is None:
            return await complete(request)
        allowed = await limit.enter(lambda: tokens(request))
        try:
            await semaphore.enter(request.group)
            try:
                completion = await complete(request)
            finally:
                semaphore.leave()
        except BaseException as error:
            limit.failed(error)
            raise
        if allowed:
            limit.give_back(allowed - completion.usage.prompt_tokens - completion.usage.completion_tokens)
        limit.succeeded()
        return completion

    return limited
