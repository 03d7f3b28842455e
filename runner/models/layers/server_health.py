"""How one of several servers stands beside the others: which calls it did not take, and another did.

What it said to such a call (too long, malformed, no such model, a key; 500) tells of the server, and not of the call.
One that says so to all calls is left, but for one call at a time that tries it:

- one that serves nobody (its key, no such model): at the first such call;
- one that fails: after as many different samples in a row as open a breaker;
- one that refuses prompts: likewise, where it has never answered. One that has takes others: it may have a shorter
  context.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from runner.base.errors import (
    CallError,
    ContextExceededError,
    MalformedError,
    NipRunError,
    ProviderRefusal,
    RefusedError,
    TransientError,
)
from runner.models.interface import Completion, Provider, Request, SampleKey
from runner.models.layers.breaker import ALIVE, GATEWAY
from runner.models.retry_policy import TransientPolicy


class ServerRefusal(CallError):
    """One of several servers refuses a call; the others are asked before its `refusal` counts."""

    def __init__(self, refusal: ProviderRefusal) -> None:
        of_one = refusal.of_one_call
        # Some status of an error: nobody bills what was answered with one.
        super().__init__(said_by(refusal), status=(of_one.status if of_one is not None else None) or 400)
        self.refusal = refusal


def said_by(refusal: ProviderRefusal) -> str:
    """What the server said, without the advice to those who have no other."""
    return str(refusal).partition("\n")[0]


class OneOfSeveral:
    """A provider at one of several servers: what it refuses, another may take."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def complete(self, request: Request) -> Completion:
        """Ask it.

        Raises:
            ServerRefusal: in the place of a `ProviderRefusal`.
        """
        try:
            return await self._provider.complete(request)
        except ProviderRefusal as refusal:
            raise ServerRefusal(refusal) from None

    async def close(self) -> None:
        await self._provider.close()


def serves_nobody(error: CallError) -> bool:
    """Whether what a server says to one call is what it says to all."""
    return isinstance(error, ServerRefusal) and error.refusal.of_one_call is None


def is_refusal(error: CallError) -> bool:
    """Whether a server will not take this call, however often it is asked."""
    return isinstance(error, (ServerRefusal, ContextExceededError, RefusedError))


def is_fault(error: CallError) -> bool:
    """Whether a server that is there failed in a call: it answered, and with no answer to it."""
    return isinstance(error, TransientError) and error.status is not None and error.status not in (*ALIVE, *GATEWAY)


def judged(group: str, refusals: Sequence[CallError], gone: Sequence[str] = ()) -> NipRunError:
    """What is to be made of a call that all servers of a group refuse, but for those that are `gone`, as each says."""
    of_it = [error for error in refusals if not serves_nobody(error)]
    # What one says of the prompt is more than that another cannot read it.
    error = min(of_it or refusals, key=lambda error: isinstance(error, ServerRefusal))
    if not isinstance(error, ServerRefusal):
        if not gone:
            return error
        away = "; ".join(gone)
        return TransientError(f"{error} (whether its other servers take it is not known: {away})", status=error.status)
    said = [str(error), *(str(other) for other in refusals if other is not error)]
    advice = str(error.refusal).partition("\n")[2]
    refusal = error.refusal
    return ProviderRefusal(
        "\n".join((*said, *(f"cannot reach {why}" for why in gone), advice)),
        of_one_call=None
        if refusal.of_one_call is None
        else MalformedError(
            f"{error} (none of the servers of models.{group} that can be asked takes this request; change the "
            "datapoint, the prompt or the servers)",
            status=error.status,
        ),
        changes=refusal.changes,
        no_such_model=refusal.no_such_model,
    )


class ServerHealth:
    """One server's among those of its group.

    `tell` is told what a user should see: that the server is left, and None once it is not any more; `unlike` of how
    many more calls another server took, and what this one had said to the last.
    """

    def __init__(
        self,
        server: str,
        group: str,
        failures: int,
        waits: TransientPolicy,
        *,
        tell: Callable[[str | None], None] = lambda _: None,
        unlike: Callable[[int, str], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server, self._group, self._failures, self._waits = server, group, failures, waits
        self._tell, self._unlike, self._clock = tell, unlike, clock
        self._jitter = random.Random()
        self._has_answered = False
        self._samples: set[SampleKey] = set()
        """Those that another took since this one answered last."""
        self._untold = 0
        self.is_left = False
        self._trying = False
        self._tries = 0
        self._next = 0.0

    @property
    def is_due(self) -> bool:
        """Whether a call may try the server, which is left."""
        return self.is_left and not self._trying and self._clock() >= self._next

    def trying(self) -> None:
        """A call tries the server, which is left; told by `tried` once it has."""
        self._trying = True

    def tried(self) -> None:
        """The call is back."""
        self._trying = False
        if self.is_left:
            self._tries += 1
            self._wait()

    def answered(self) -> None:
        """The server took a call."""
        self._has_answered = True
        self._samples.clear()
        if self.is_left:
            self.is_left, self._tries = False, 0
            self._tell(None)

    def took_another(self, sample: SampleKey, error: CallError) -> None:
        """Another server took the call to which this one had said so."""
        self._samples.add(sample)
        self._untold += 1
        in_a_row = len(self._samples) >= self._failures
        if not self.is_left and (serves_nobody(error) or (in_a_row and (is_fault(error) or not self._has_answered))):
            self.is_left = True
            self._wait()
            self._tell(
                f"{self._server} does not take the calls of models.{self._group} that its other servers take; trying "
                "one at a time, and its games go to the others meanwhile"
            )
        if self.is_left or is_refusal(error):  # a failure now and then is what retries are for
            told, self._untold = self._untold, 0
            self._unlike(told, str(error))

    def _wait(self) -> None:
        self._next = self._clock() + self._waits.wait(self._tries + 1, self._jitter)
