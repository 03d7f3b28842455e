"""The health of one server of a group compared with the others: which calls it refused that another one took.

A refusal (too long, malformed, no such model, a key) or a 500 to such a call says something about the server, not about
the call. A server that answers all calls like this is left, except for one call at a time that tries it:

- one that serves nobody (its key, no such model): at the first such call;
- one that fails: after as many different samples in a row as open a breaker;
- one that refuses prompts: likewise, if it has never answered. One that has answered may only have a shorter context.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from runner.base.errors import (
    CallError,
    ContextExceededError,
    MalformedError,
    NipRunError,
    ProviderRefusal,
    RefusedError,
    TransientError,
)
from runner.models.interface import Complete, Completion, Request, SampleKey
from runner.models.layers.breaker import ALIVE, GATEWAY
from runner.models.retry_policy import TransientPolicy


class ServerRefusal(CallError):
    """One of several servers refuses a call; the others are asked before its `refusal` counts."""

    def __init__(self, refusal: ProviderRefusal) -> None:
        of_one = refusal.of_one_call
        # Some status of an error: nobody bills what was answered with one.
        super().__init__(message_of(refusal), status=(of_one.status if of_one is not None else None) or 400)
        self.refusal = refusal


def message_of(refusal: ProviderRefusal) -> str:
    """Return what the server said, without the advice, which is for groups with one server."""
    return str(refusal).partition("\n")[0]


def raising_refusals(complete: Complete) -> Complete:
    """Return `complete` for one of several servers: it raises `ServerRefusal` instead of `ProviderRefusal`."""

    async def ask(request: Request) -> Completion:
        try:
            return await complete(request)
        except ProviderRefusal as refusal:
            raise ServerRefusal(refusal) from None

    return ask


def serves_nobody(error: CallError) -> bool:
    """Return whether a server would refuse every call like this."""
    return isinstance(error, ServerRefusal) and error.refusal.of_one_call is None


def is_refusal(error: CallError) -> bool:
    """Return whether a server refuses this call for good."""
    return isinstance(error, (ServerRefusal, ContextExceededError, RefusedError))


def is_fault(error: CallError) -> bool:
    """Return whether a server that is up failed in a call."""
    return isinstance(error, TransientError) and error.status is not None and error.status not in (*ALIVE, *GATEWAY)


def judge_refusals(group: str, refusals: Sequence[CallError], unreachable: Sequence[str] = ()) -> NipRunError:
    """Return the failure of a call that all servers refuse, except those that are unreachable for the given reasons."""
    of_it = [error for error in refusals if not serves_nobody(error)]
    # What one says of the prompt is more than that another cannot read it.
    error = min(of_it or refusals, key=lambda error: isinstance(error, ServerRefusal))
    if not isinstance(error, ServerRefusal):
        if not unreachable:
            return error
        away = "; ".join(unreachable)
        return TransientError(f"{error} (whether its other servers take it is not known: {away})", status=error.status)
    said = [str(error), *(str(other) for other in refusals if other is not error)]
    advice = str(error.refusal).partition("\n")[2]
    refusal = error.refusal
    return ProviderRefusal(
        "\n".join((*said, *(f"cannot reach {why}" for why in unreachable), advice)),
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
    """The health of one server of a group.

    `tell` gets the message that the server is left, and None once it is not any more. `unlike` gets how many more calls
    another server took, and this one's message to the last of them.
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
        """Samples that another server took since this one answered last."""
        self._untold = 0
        self.is_left = False
        self._trying = False
        self._tries = 0
        self._next = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the server is left and may be tried."""
        return self.is_left and not self._trying and self._clock() >= self._next

    @contextmanager
    def probe(self) -> Iterator[None]:
        """Let one call try the server, which is left."""
        self._trying = True
        try:
            yield
        finally:
            self._trying = False
            if self.is_left:
                self._tries += 1
                self._wait()

    def answered(self) -> None:
        """Note that the server took a call."""
        self._has_answered = True
        self._samples.clear()
        if self.is_left:
            self.is_left, self._tries = False, 0
            self._tell(None)

    def took_another(self, sample: SampleKey, error: CallError) -> None:
        """Note that another server took the call that this one answered with an error."""
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
