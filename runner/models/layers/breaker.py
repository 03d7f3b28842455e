"""The circuit breaker of a server: a server that seems down gets one call at a time, and finally no more calls.

If there is no connection, or a gateway answers 502, 503 or 504, the server is down for all calls. Other failures
(time-outs, resets, answers that are not completions, or a 500 before any answer) may be caused by a few prompts. So
they count only if calls of enough different samples fail in a row. A 429 shows that the server is up.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from dataclasses import dataclass

from runner.base.async_runner import wait_for_turn
from runner.base.errors import ANSWERS_ARE_SAVED, CallError, ServerUnreachable, TransientError
from runner.models.interface import Complete, Completion, Request, SampleKey
from runner.models.retry_policy import BreakerPolicy, TransientPolicy

Listener = Callable[[str | None], None]
"""Called with a message when a server goes down, and with None when it is up again."""

GATEWAY_STATUSES = (502, 503, 504)
"""Statuses of a gateway whose server is down for all calls."""

ALIVE_STATUSES = (408, 409, 425, 429, 529)
"""Statuses of a server that is up and requests another attempt later."""


@dataclass(eq=False)
class Breaker:
    """The circuit breaker of a server.

    It is closed if the server is up. While it is open, one call at a time is sent as a probe, and all other calls wait.
    After the last failed probe, the server is given up.
    """

    server: str
    policy: BreakerPolicy
    waits: TransientPolicy
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._listeners: list[tuple[Context, Listener]] = []
        self._message: str | None = None
        """The last message to the listeners."""
        self._jitter = random.Random()
        self._has_answered = False
        self._failures = self._outages = 0
        """Number of consecutive failures, and of consecutive failures that no prompt can cause."""
        self._samples: set[SampleKey] = set()
        """Samples of the consecutive failures."""
        self._last_error = ""
        self._is_open = False
        self._is_probing = False
        self._failed_probes = 0
        self._not_before = 0.0
        """Earliest time of the next probe according to the server."""
        self._next_probe_at = 0.0
        """Earliest time of the next probe by a server pool, while the breaker is open."""
        self._state_change: asyncio.Future[None] | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        """The turns of the waiting calls, in their order."""

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with a message when the server goes down, and with None when it is up again.

        Return a function that removes the listener. The listener is called in the current context, and uses its log.
        """
        entry = copy_context(), listener
        self._listeners.append(entry)
        if self._message is not None:
            listener(self._message)
        return lambda: self._listeners.remove(entry) if entry in self._listeners else None

    def _notify_listeners(self, message: str | None) -> None:
        self._message = message
        for context, listener in tuple(self._listeners):
            context.run(listener, message)

    async def call_in_turn(
        self, complete: Complete, request: Request, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> Completion:
        """Make a call and record its result. While the breaker is open, wait until it is this call's turn.

        `sleep` waits for the next probe. Each run has its own, which ends when the run stops.

        Raises:
            ServerUnreachable: the server was given up.
        """
        return await self.call_now(complete, request, probe=self._is_open and await self._wait_while_open(sleep))

    async def call_now(self, complete: Complete, request: Request, *, probe: bool) -> Completion:
        """Make a call immediately, even if the breaker is open, and record its result.

        With `probe`, the call tests whether the server is up again.
        """
        self._is_probing = self._is_probing or probe
        try:
            completion = await complete(request)
        except TransientError as error:
            self._record_failure(request, error, probe=probe)
            raise
        except CallError:
            self._has_answered = True
            self._record_answer()  # because a refusal shows that the server is up
            raise
        else:
            self._has_answered = True
            self._record_answer()
            return completion
        finally:
            if probe:
                self._is_probing = False
                self._wake_next()
                self._notify_change()

    @property
    def is_open(self) -> bool:
        """Whether the server seems down."""
        return self._is_open

    @property
    def is_given_up(self) -> bool:
        """Whether the maximum number of probes has failed."""
        return self._failed_probes >= self.policy.probes

    @property
    def failure_text(self) -> str:
        """Description of the failures, for messages."""
        return f"{self.server}: {self._failures} calls in a row failed; the last error: {self._last_error}"

    def seconds_to_next_probe(self) -> float | None:
        """Return the seconds until the next probe; None while a probe is in progress."""
        return None if self._is_probing else max(self._next_probe_at - self.clock(), 0.0)

    def next_change(self) -> asyncio.Future[None]:
        """Return a future that is done when the server is up or the result of a probe is known."""
        if self._state_change is None:
            self._state_change = asyncio.get_running_loop().create_future()
        return self._state_change

    def _notify_change(self) -> None:
        change, self._state_change = self._state_change, None
        if change is not None and not change.done():
            change.set_result(None)

    def check(self) -> None:
        """Check that the server was not given up.

        Raises:
            ServerUnreachable: the server was given up.
        """
        if self.is_given_up:
            while self._waiting:
                self._wake_next()
            raise ServerUnreachable(
                f"cannot reach {self.failure_text}\n"
                f"{ANSWERS_ARE_SAVED}. Correct base_url if the address is wrong, or run the same command again when "
                "the server is up. If the server is up and only some calls fail, raise retry.breaker.failures."
            )

    async def _wait_while_open(self, sleep: Callable[[float], Awaitable[object]]) -> bool:
        """Wait until the breaker closes or this call becomes the probe. Return whether it is the probe."""
        while self._is_open:
            self.check()
            if not self._is_probing:
                self._is_probing = True
                try:
                    own_wait = self.waits.wait(self._failed_probes + 1, self._jitter)
                    await sleep(max(own_wait, self._not_before - self.clock()))
                except BaseException:
                    self._is_probing = False
                    self._wake_next()
                    raise
                return True
            await wait_for_turn(self._waiting, self._wake_next)
        return False

    def _record_answer(self) -> None:
        self._failures = self._outages = self._failed_probes = 0
        self._samples.clear()
        if self._is_open:
            self._is_open = False
            self._notify_listeners(None)
            self._notify_change()
            while self._waiting:
                self._wake_next()

    def _record_failure(self, request: Request, error: TransientError, *, probe: bool) -> None:
        """Count a failed call, and open the breaker after too many.

        An error status does not count if it shows that the server is up.
        """
        is_down = error.unreachable or error.status in GATEWAY_STATUSES
        if error.status is not None and not is_down and (self._has_answered or error.status in ALIVE_STATUSES):
            self._record_answer()  # because any answer, even an error, shows that the server is up
            return
        self._last_error = str(error)
        self._failures += 1
        self._outages += is_down
        self._samples.add(request.sample)
        wait = min(error.retry_after or 0.0, self.waits.total_seconds)
        self._not_before = max(self._not_before, self.clock() + wait)
        opens = not self._is_open and not probe and max(self._outages, len(self._samples)) >= self.policy.failures
        if probe:
            self._failed_probes += 1
        elif opens:
            self._is_open = True
            self._notify_listeners(
                f"cannot reach {self.server}: {self._failures} calls in a row failed; retrying one call at a time"
            )
        if probe or opens:
            own_wait = self.waits.wait(self._failed_probes + 1, self._jitter)
            self._next_probe_at = max(self.clock() + own_wait, self._not_before)

    def _wake_next(self) -> None:
        """Wake the next waiting call."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
