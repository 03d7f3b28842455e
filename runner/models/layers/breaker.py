"""A breaker per server: one that is down is asked by one call at a time, and then no more.

What says that a server is down: no connection, or a gateway's 502, 503 or 504. Other failures of transport (time-outs,
resets, 500, answers that are no completions) say it only while the server has given no answer at all: later they may
be the fault of the few prompts that are left. A 429 comes from a server that is up.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable

from runner.errors import CallError, ServerUnreachable, TransientError
from runner.models.base import Complete, Completion, Request
from runner.models.layers.waits import own_wait
from runner.models.policy import BreakerPolicy, TransientPolicy

_GATEWAY = (502, 503, 504)
_ALIVE = (408, 409, 425, 429)
"""Statuses of a server that is up and asks to come again."""


class Breaker:
    """One server's breaker: closed, open (calls wait, one at a time goes out), or given up.

    `tell` is told what a user should see: that the server is down, and None once it is up again.
    """

    def __init__(
        self,
        server: str,
        policy: BreakerPolicy,
        waits: TransientPolicy,
        *,
        tell: Callable[[str | None], None] = lambda _: None,
        answered: bool = False,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._server = server
        self._policy, self._waits = policy, waits
        self._tell, self._sleep = tell, sleep
        self._answered = answered
        self._jitter = random.Random()
        self._failures = 0
        self._open = False
        self._probing = False
        self._probes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._last = ""

    async def guard(self, complete: Complete, request: Request) -> Completion:
        """Ask, when it is this call's turn, and take what becomes of it for a sign.

        Raises:
            ServerUnreachable: the server was given up.
        """
        probe = self._open and await self._turn()
        try:
            completion = await complete(request)
        except TransientError as error:
            self._failed(error, probe=probe)
            raise
        except CallError:
            self._is_up()  # it said no, and so it is there
            raise
        else:
            self._is_up()
            return completion
        finally:
            if probe:
                self._probing = False
                self._wake()

    def check(self) -> None:
        """Raise where no call goes to this server any more.

        Raises:
            ServerUnreachable: the server was given up.
        """
        if self._probes >= self._policy.probes:
            while self._waiting:
                self._wake()
            raise ServerUnreachable(
                f"cannot reach {self._server}: {self._failures} calls in a row failed, the last with: {self._last}\n"
                "What was paid for is kept; run the same command again when the server is up."
            )

    async def _turn(self) -> bool:
        """Wait while the breaker is open; whether this is the call that tries the server while the others wait."""
        while self._open:
            self.check()
            if not self._probing:
                self._probing = True
                try:
                    await self._sleep(own_wait(self._waits, self._probes + 1, self._jitter))
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
        self._answered = True
        self._failures = self._probes = 0
        if self._open:
            self._open = False
            self._tell(None)
            while self._waiting:
                self._wake()

    def _failed(self, error: TransientError, *, probe: bool) -> None:
        if not self._says_down(error):
            if error.status is not None:
                self._is_up()  # somebody is there
            return
        self._last = str(error)
        self._failures += 1
        if probe:
            self._probes += 1
        elif not self._open and self._failures >= self._policy.failures:
            self._open = True
            self._tell(f"cannot reach {self._server}: {self._failures} calls in a row failed; trying one at a time")

    def _says_down(self, error: TransientError) -> bool:
        if error.unreachable or error.status in _GATEWAY:
            return True
        return not self._answered and error.status not in _ALIVE

    def _wake(self) -> None:
        """Give the next who waits its turn."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
