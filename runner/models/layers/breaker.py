"""Circuit breaker of a server: a server that seems down gets one call at a time, and finally none.

No connection, or a gateway's 502, 503 or 504, means that a server is down for everyone. Other failures of transport
(time-outs, resets, answers that are not completions; 500 before any answer) may be caused by a few prompts. They count
only if enough different samples had them in a row. A 429 comes from a server that is up.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context

from runner.base.errors import CallError, ServerUnreachable, TransientError
from runner.models.interface import Complete, Completion, Request, SampleKey
from runner.models.retry_policy import BreakerPolicy, TransientPolicy

Tell = Callable[[str | None], None]

GATEWAY = (502, 503, 504)
"""Statuses that mean that a server is down for everyone."""

ALIVE = (408, 409, 425, 429, 529)
"""Statuses of a server that is up and asks for a later attempt."""


class Breaker:
    """A server's breaker: closed, open (calls wait, and one at a time is sent), or given up."""

    def __init__(
        self,
        server: str,
        policy: BreakerPolicy,
        waits: TransientPolicy,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._policy, self._waits = policy, waits
        self._sleep, self._clock = sleep, clock
        self._listeners: list[tuple[Context, Tell]] = []
        self._message: str | None = None
        self._jitter = random.Random()
        self._has_answered = False
        self._failures = self._certain = 0
        """Number of consecutive failures, and of those among them that no prompt can cause."""
        self._samples: set[SampleKey] = set()
        self._last_error = ""
        self._is_open = False
        self._is_probing = False
        self._probes = 0
        self._not_before = 0.0
        self._next_try = 0.0
        """Earliest time of the next try by a server pool, while the breaker is open."""
        self._state_change: asyncio.Future[None] | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    def listen(self, tell: Tell) -> Callable[[], None]:
        """Call `tell` with a message when the server goes down, and with None when it is up again.

        Return a function that stops this. `tell` is called in the context of this call, whose log it writes to.
        """
        listener = copy_context(), tell
        self._listeners.append(listener)
        if self._message is not None:
            tell(self._message)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def _tell(self, message: str | None) -> None:
        self._message = message
        for context, tell in tuple(self._listeners):
            context.run(tell, message)

    async def guard(self, complete: Complete, request: Request) -> Completion:
        """Make a call when it is its turn, and record its result.

        Raises:
            ServerUnreachable: the server was given up.
        """
        return await self.ask(complete, request, probe=self._is_open and await self._wait_for_turn())

    async def ask(self, complete: Complete, request: Request, *, probe: bool) -> Completion:
        """Make a call at once, even if the breaker is open; `probe`: it is the one call that tries the server."""
        self._is_probing = self._is_probing or probe
        try:
            completion = await complete(request)
        except TransientError as error:
            self._record_failure(request, error, probe=probe)
            raise
        except CallError:
            self._has_answered = True
            self._record_answer()  # a refusal shows that the server is up
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
        """True if the server seems down."""
        return self._is_open

    @property
    def is_given_up(self) -> bool:
        """True if the maximum number of probes has failed."""
        return self._probes >= self._policy.probes

    @property
    def failure_text(self) -> str:
        """Description of the failures, for messages."""
        return f"{self._server}: {self._failures} calls in a row failed, the last with: {self._last_error}"

    def next_try(self) -> float | None:
        """Return the seconds until the server may be tried again; None while a call is trying it."""
        return None if self._is_probing else max(self._next_try - self._clock(), 0.0)

    def change(self) -> asyncio.Future[None]:
        """Return a future that is done when the server is up, or the result of a try is known."""
        if self._state_change is None:
            self._state_change = asyncio.get_running_loop().create_future()
        return self._state_change

    def _notify_change(self) -> None:
        change, self._state_change = self._state_change, None
        if change is not None and not change.done():
            change.set_result(None)

    def check(self) -> None:
        """Raise an error if calls to this server have stopped.

        Raises:
            ServerUnreachable: the server was given up.
        """
        if self.is_given_up:
            while self._waiting:
                self._wake_next()
            raise ServerUnreachable(
                f"cannot reach {self.failure_text}\n"
                "All answers that were paid for are stored. Run the same command again when the server is up. If it is "
                "up and these calls still fail, raise retry.breaker.failures."
            )

    async def _wait_for_turn(self) -> bool:
        """Wait while the breaker is open. Return whether this call is the probe that the others wait for."""
        while self._is_open:
            self.check()
            if not self._is_probing:
                self._is_probing = True
                try:
                    own_wait = self._waits.wait(self._probes + 1, self._jitter)
                    await self._sleep(max(own_wait, self._not_before - self._clock()))
                except BaseException:
                    self._is_probing = False
                    self._wake_next()
                    raise
                return True
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake_next()  # the turn was assigned at the moment of cancellation
                raise
        return False

    def _record_answer(self) -> None:
        self._failures = self._certain = self._probes = 0
        self._samples.clear()
        if self._is_open:
            self._is_open = False
            self._tell(None)
            self._notify_change()
            while self._waiting:
                self._wake_next()

    def _record_failure(self, request: Request, error: TransientError, *, probe: bool) -> None:
        is_down = error.unreachable or error.status in GATEWAY
        if error.status is not None and not is_down and (self._has_answered or error.status in ALIVE):
            self._record_answer()  # an answer, even an error, shows that the server is up
            return
        self._last_error = str(error)
        self._failures += 1
        self._certain += is_down
        self._samples.add(request.sample)
        wait = min(error.retry_after or 0.0, self._waits.total_seconds)
        self._not_before = max(self._not_before, self._clock() + wait)
        opens = not self._is_open and not probe and max(self._certain, len(self._samples)) >= self._policy.failures
        if probe:
            self._probes += 1
        elif opens:
            self._is_open = True
            self._tell(f"cannot reach {self._server}: {self._failures} calls in a row failed; trying one at a time")
        if probe or opens:
            own_wait = self._waits.wait(self._probes + 1, self._jitter)
            self._next_try = max(self._clock() + own_wait, self._not_before)

    def _wake_next(self) -> None:
        """Wake the next waiting call."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
