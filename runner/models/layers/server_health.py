"""Health of one server of a group compared with the others: the calls it refused that another server accepted.

If another server accepts a call, a refusal of it (too long, malformed, no such model, a key) or a 500 is the fault of
the server, not of the call. A server that answers all calls like this is excluded, except for one call at a time that
tries it:

- A server that refuses all calls (its key, no such model) is excluded at the first such call.
- A server that fails is excluded after as many different samples in a row as open a breaker.
- A server that refuses prompts: also then, if it has never answered. Otherwise it may only have a shorter context.
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
    """A server of a pool refuses a call. Its `refusal` counts only if the other servers refuse the call too."""

    def __init__(self, refusal: ProviderRefusal) -> None:
        call_error = refusal.of_one_call
        # The call needs some error status, because calls with one are not billed.
        super().__init__(server_message(refusal), status=(call_error.status if call_error is not None else None) or 400)
        self.refusal = refusal


def server_message(refusal: ProviderRefusal) -> str:
    """Return the server's message without the advice, which is for groups with one server."""
    return str(refusal).partition("\n")[0]


def raise_server_refusals(complete: Complete) -> Complete:
    """Wrap `complete` for one server of a pool, so that it raises `ServerRefusal` instead of `ProviderRefusal`."""

    async def ask(request: Request) -> Completion:
        try:
            return await complete(request)
        except ProviderRefusal as refusal:
            raise ServerRefusal(refusal) from None

    return ask


def refuses_all(error: CallError) -> bool:
    """Return whether a server would refuse every call with this error."""
    return isinstance(error, ServerRefusal) and error.refusal.of_one_call is None


def is_refusal(error: CallError) -> bool:
    """Return whether a server refuses this call permanently."""
    return isinstance(error, (ServerRefusal, ContextExceededError, RefusedError))


def is_fault(error: CallError) -> bool:
    """Return whether a server that is up failed in a call."""
    return isinstance(error, TransientError) and error.status is not None and error.status not in (*ALIVE, *GATEWAY)


def judge_refusals(group: str, refusals: Sequence[CallError], unreachable: Sequence[str] = ()) -> NipRunError:
    """Return the error of a call that all servers refuse, except the unreachable ones, whose reasons are given."""
    prompt_errors = [error for error in refusals if not refuses_all(error)]
    # An error about the prompt is more informative than one about its form.
    error = min(prompt_errors or refusals, key=lambda error: isinstance(error, ServerRefusal))
    if not isinstance(error, ServerRefusal):
        if not unreachable:
            return error
        reasons = "; ".join(unreachable)
        return TransientError(f"{error} (the other servers could not be tried: {reasons})", status=error.status)
    messages = [str(error), *(str(refusal_error) for refusal_error in refusals if refusal_error is not error)]
    advice = str(error.refusal).partition("\n")[2]
    refusal = error.refusal
    return ProviderRefusal(
        "\n".join((*messages, *(f"cannot reach {reason}" for reason in unreachable), advice)),
        of_one_call=None
        if refusal.of_one_call is None
        else MalformedError(
            f"{error} (no reachable server of models.{group} accepts this request; change the datapoint, the prompt or "
            "the servers)",
            status=error.status,
        ),
        changes=refusal.changes,
        no_such_model=refusal.no_such_model,
    )


class ServerHealth:
    """The health of one server of a group.

    `tell` is called with a message when the server is excluded, and with None when it is accepted again. `unlike` is
    called with the number of further calls that another server accepted, and this server's last error message.
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
        """Samples that another server accepted since this one last answered."""
        self._unreported = 0
        self.is_excluded = False
        self._is_trying = False
        self._tries = 0
        self._next_try = 0.0

    @property
    def is_due(self) -> bool:
        """True if the server is excluded and may be tried now."""
        return self.is_excluded and not self._is_trying and self._clock() >= self._next_try

    @contextmanager
    def probe(self) -> Iterator[None]:
        """Let one call try the excluded server."""
        self._is_trying = True
        try:
            yield
        finally:
            self._is_trying = False
            if self.is_excluded:
                self._tries += 1
                self._wait()

    def record_answer(self) -> None:
        """Record that the server answered a call."""
        self._has_answered = True
        self._samples.clear()
        if self.is_excluded:
            self.is_excluded, self._tries = False, 0
            self._tell(None)

    def record_accepted_elsewhere(self, sample: SampleKey, error: CallError) -> None:
        """Record that another server accepted the call that this one answered with an error."""
        self._samples.add(sample)
        self._unreported += 1
        is_repeated = len(self._samples) >= self._failures
        if not self.is_excluded and (
            refuses_all(error) or (is_repeated and (is_fault(error) or not self._has_answered))
        ):
            self.is_excluded = True
            self._wait()
            self._tell(
                f"{self._server} does not accept calls of models.{self._group} that other servers accept; trying it "
                "with one call at a time; its games continue at the other servers"
            )
        if self.is_excluded or is_refusal(error):  # occasional failures are handled by retries
            calls, self._unreported = self._unreported, 0
            self._unlike(calls, str(error))

    def _wait(self) -> None:
        self._next_try = self._clock() + self._waits.wait(self._tries + 1, self._jitter)
