"""Excludes a server from a pool if it refuses or fails calls that other servers of the model group accept.

If another server accepts a call, a refusal of this call (too long, malformed, unknown model, API key) or a 500 is the
fault of the server, not of the call. An excluded server gets only one call at a time, as a probe. A server is excluded
by these rules:

- If it would refuse every call (API key, unknown model), it is excluded at the first such call.
- If it fails (such as with a 500), it is excluded after `failures` different samples in a row.
- If it refuses prompts and has never answered, it is excluded after as many samples. A server that has answered is not
  excluded, because it may only have a shorter context.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

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
from runner.models.layers.breaker import ALIVE_STATUSES, GATEWAY_STATUSES
from runner.models.retry_policy import TransientPolicy


class ServerRefusal(CallError):
    """Raised if one server of a pool refuses a call. Its `refusal` is raised only if all servers refuse the call."""

    def __init__(self, refusal: ProviderRefusal) -> None:
        call_error = refusal.of_one_call
        # The error needs a status, because calls with an error status are not billed.
        super().__init__(server_message(refusal), status=(call_error.status if call_error is not None else None) or 400)
        self.refusal = refusal


def server_message(refusal: ProviderRefusal) -> str:
    """Return the first line of a refusal. The other lines are advice for groups with a single server."""
    return str(refusal).partition("\n")[0]


def raise_server_refusals(complete: Complete) -> Complete:
    """Return a function like `complete` that raises `ServerRefusal` instead of `ProviderRefusal`."""

    async def call(request: Request) -> Completion:
        try:
            return await complete(request)
        except ProviderRefusal as refusal:
            raise ServerRefusal(refusal) from None

    return call


def refuses_all(error: CallError) -> bool:
    """Return whether a server that answers with this error would refuse every call."""
    return isinstance(error, ServerRefusal) and error.refusal.of_one_call is None


def is_refusal(error: CallError) -> bool:
    """Return whether a server would refuse this call every time."""
    return isinstance(error, (ServerRefusal, ContextExceededError, RefusedError))


def is_fault(error: CallError) -> bool:
    """Return whether a server answered a call with a failure of its own, such as a 500."""
    other_statuses = (None, *ALIVE_STATUSES, *GATEWAY_STATUSES)
    return isinstance(error, TransientError) and error.status not in other_statuses


def judge_refusals(group: str, refusals: Sequence[CallError], unreachable: Sequence[str] = ()) -> NipRunError:
    """Return the error of a call that all reachable servers refuse.

    `unreachable` has the address and the error of each server that cannot be reached.
    """
    prompt_errors = [error for error in refusals if not refuses_all(error)]
    # Prefer an error about the prompt itself, such as its length, because it is more informative.
    error = min(prompt_errors or refusals, key=lambda error: isinstance(error, ServerRefusal))
    if not isinstance(error, ServerRefusal):
        if not unreachable:
            return error
        reasons = "; ".join(unreachable)
        return TransientError(f"{error} (the other servers could not be tried: {reasons})", status=error.status)
    messages = [str(error), *(str(other_error) for other_error in refusals if other_error is not error)]
    refusal, advice = error.refusal, str(error.refusal).partition("\n")[2]
    one_call_error = MalformedError(
        f"{error} (no reachable server of models.{group} accepts this request; change the datapoint, the prompt or the "
        "servers)",
        status=error.status,
    )
    return ProviderRefusal(
        "\n".join((*messages, *(f"cannot reach {reason}" for reason in unreachable), advice)),
        of_one_call=None if refusal.of_one_call is None else one_call_error,
        changes=refusal.changes,
        no_such_model=refusal.no_such_model,
    )


@dataclass(eq=False)
class ServerHealth:
    """The health of one server of a group."""

    server: str
    group: str
    failures: int
    waits: TransientPolicy
    on_change: Callable[[str | None], None] = lambda _: None
    """Called with a message when the server is excluded, and with None when it answers again."""
    on_difference: Callable[[int, str], None] = lambda *_: None
    """Called after other servers accepted calls that this server refused, with the number of these calls since its
    last call and the error message of the last one."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._jitter = random.Random()
        self._has_answered = False
        self._samples: set[SampleKey] = set()
        """Samples that another server accepted since this server last answered."""
        self._unreported = 0
        """Number of calls that were not reported to `on_difference` yet."""
        self.is_excluded = False
        self._is_probing = False
        self._failed_probes = 0
        self._next_probe_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the server is excluded and may get a probe now."""
        return self.is_excluded and not self._is_probing and self.clock() >= self._next_probe_at

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Mark the call in this block as the probe of the excluded server."""
        self._is_probing = True
        try:
            yield
        finally:
            self._is_probing = False
            if self.is_excluded:
                self._failed_probes += 1
                self._schedule_probe()

    def record_answer(self) -> None:
        """Record that the server answered a call."""
        self._has_answered = True
        self._samples.clear()
        if self.is_excluded:
            self.is_excluded, self._failed_probes = False, 0
            self.on_change(None)

    def record_accepted_elsewhere(self, sample: SampleKey, error: CallError) -> None:
        """Record that another server accepted a call that this server answered with an error."""
        self._samples.add(sample)
        self._unreported += 1
        is_repeated = len(self._samples) >= self.failures
        if not self.is_excluded and (
            refuses_all(error) or (is_repeated and (is_fault(error) or not self._has_answered))
        ):
            self.is_excluded = True
            self._schedule_probe()
            self.on_change(
                f"{self.server} does not accept calls of models.{self.group} that other servers accept; its games "
                "continue at the other servers, and one call at a time tests this server"
            )
        if self.is_excluded or is_refusal(error):  # retries handle occasional failures, which need no report
            calls, self._unreported = self._unreported, 0
            self.on_difference(calls, str(error))

    def _schedule_probe(self) -> None:
        self._next_probe_at = self.clock() + self.waits.wait(self._failed_probes + 1, self._jitter)
