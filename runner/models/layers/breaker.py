"""A breaker per server: one that is down is asked by one call at a time, and then no more.

No connection, or a gateway's 502, 503 or 504, says that a server is down, whoever asks. Other failures of transport
(time-outs, resets, answers that are no completions; 500 before any answer came) may be the fault of the few prompts
that are left, and say so only where so many different samples had them in a row. A 429 comes from a server that is up.
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
"""Statuses that say that a server is down, whoever asks."""

ALIVE = (408, 409, 425, 429, 529)
"""Statuses of a server that is up and asks to come again."""


class Breaker:
    """One server's breaker: closed, open (calls wait, one at a time goes out), or given up."""

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
        self._answered = False
        self._failures = self._sure = 0
        """In a row; and those that no prompt can cause."""
        self._samples: set[SampleKey] = set()
        self._last = ""
        self._open = False
        self._probing = False
        self._probes = 0
        self._not_before = 0.0
        self._next = 0.0
        """When those who ask several servers may try this one again, while it is open."""
        self._change: asyncio.Future[None] | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    def listen(self, tell: Tell) -> Callable[[], None]:
        """Call `tell` with the message that the server is down, and with None once it is up; return how to stop that.

        It is called in the context that it came from, whose log it writes to.
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
        """Ask, when it is this call's turn, and take what becomes of it for a sign.

        Raises:
            ServerUnreachable: the server was given up.
        """
        return await self.ask(complete, request, probe=self._open and await self._turn())

    async def ask(self, complete: Complete, request: Request, *, probe: bool) -> Completion:
        """Ask at once, whether the breaker is open or not; `probe`: as the one call that tries a server that is."""
        self._probing = self._probing or probe
        try:
            completion = await complete(request)
        except TransientError as error:
            self._failed(request, error, probe=probe)
            raise
        except CallError:
            self._answered = True
            self._is_up()  # it said no, and so it is there
            raise
        else:
            self._answered = True
            self._is_up()
            return completion
        finally:
            if probe:
                self._probing = False
                self._wake()
                self._changed()

    @property
    def is_open(self) -> bool:
        """Whether the server seems down."""
        return self._open

    @property
    def is_given_up(self) -> bool:
        """Whether it was tried as often as a server is that is down."""
        return self._probes >= self._policy.probes

    @property
    def why(self) -> str:
        """How it was lost, for messages."""
        return f"{self._server}: {self._failures} calls in a row failed, the last with: {self._last}"

    def next_try(self) -> float | None:
        """In how many seconds the server, which is down, may be tried; None while a call is trying it."""
        return None if self._probing else max(self._next - self._clock(), 0.0)

    def change(self) -> asyncio.Future[None]:
        """Done once the server is up, or what became of a try is known."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    def _changed(self) -> None:
        change, self._change = self._change, None
        if change is not None and not change.done():
            change.set_result(None)

    def check(self) -> None:
        """Raise where no call goes to this server any more.

        Raises:
            ServerUnreachable: the server was given up.
        """
        if self.is_given_up:
            while self._waiting:
                self._wake()
            raise ServerUnreachable(
                f"cannot reach {self.why}\n"
                "What was paid for is kept; run the same command again when the server is up. Where it is up and "
                "these calls fail all the same, raise retry.breaker.failures."
            )

    async def _turn(self) -> bool:
        """Wait while the breaker is open; whether this is the call that tries the server while the others wait."""
        while self._open:
            self.check()
            if not self._probing:
                self._probing = True
                try:
                    own = self._waits.wait(self._probes + 1, self._jitter)
                    await self._sleep(max(own, self._not_before - self._clock()))
                except BaseException:
                    self._probing = False
                    self._wake()
                    raise
                return True
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake()  # the turn was given in the same moment
                raise
        return False

    def _is_up(self) -> None:
        self._failures = self._sure = self._probes = 0
        self._samples.clear()
        if self._open:
            self._open = False
            self._tell(None)
            self._changed()
            while self._waiting:
                self._wake()

    def _failed(self, request: Request, error: TransientError, *, probe: bool) -> None:
        says_down = error.unreachable or error.status in GATEWAY
        if error.status is not None and not says_down and (self._answered or error.status in ALIVE):
            self._is_up()  # somebody is there
            return
        self._last = str(error)
        self._failures += 1
        self._sure += says_down
        self._samples.add(request.sample)
        wait = min(error.retry_after or 0.0, self._waits.total_seconds)
        self._not_before = max(self._not_before, self._clock() + wait)
        opens = not self._open and not probe and max(self._sure, len(self._samples)) >= self._policy.failures
        if probe:
            self._probes += 1
        elif opens:
            self._open = True
            self._tell(f"cannot reach {self._server}: {self._failures} calls in a row failed; trying one at a time")
        if probe or opens:
            own = self._waits.wait(self._probes + 1, self._jitter)
            self._next = max(self._clock() + own, self._not_before)

    def _wake(self) -> None:
        """Give the next who waits its turn."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
