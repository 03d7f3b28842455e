"""Permits for the calls of all workers: applies the layers of budget and limits to calls that workers make."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.base.errors import TransientError
from runner.models.admission import LocalAdmission
from runner.models.costs import CallCosts
from runner.models.interface import Completion, Request, SampleKey, Usage
from runner.models.layers.budget import Budget
from runner.models.layers.lost_calls import InFlight
from runner.models.retry_policy import Retry
from runner.models.shared_servers import Servers
from runner.models.usage_totals import UsageTotals
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.workers.messages import Ask, Denied, Ended, Granted
from runner.runs.workers.remote_errors import RemoteError


class _GivenUpError(Exception):
    """Raised if the worker no longer waits for a call, which may be billed."""


@dataclass(eq=False)
class WorkerCalls:
    """The calls of one worker that have a permit or wait for one, and the maximum cost of each call in flight."""

    send: Callable[[Any], None]
    calls: dict[int, _Call] = field(default_factory=dict)
    in_flight: dict[SampleKey, UsageTotals] = field(default_factory=dict)


@dataclass(eq=False)
class _Call:
    """A call that a worker has requested or is making."""

    ended: asyncio.Future[Completion]
    task: asyncio.Task[None] | None = None
    is_granted: bool = False
    charge: UsageTotals = field(default_factory=UsageTotals)
    """The cost that the budget counts for the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PermitRequest(Request):
    """A call as passed to the layers: with its maximum cost and without its prompt."""

    most: UsageTotals
    number: int
    calls: WorkerCalls


class _ReportedCosts(CallCosts):
    """The costs of calls as reported by workers."""

    def worst_case(self, request: Request) -> UsageTotals:
        assert isinstance(request, _PermitRequest)
        return request.most

    def charge(self, request: Request, completion: Completion) -> UsageTotals:
        del completion
        assert isinstance(request, _PermitRequest)
        return request.calls.calls[request.number].charge


class Permits:
    """Applies the budget and the limits, and records the calls in flight."""

    def __init__(
        self,
        *,
        costs: CallCosts,
        servers: Servers,
        policy: Retry,
        budget: Budget | None,
        in_flight: InFlight,
        stop: StopSwitch,
        records: Callable[[], int],
    ) -> None:
        """`records` returns the number of records in the journal."""
        self._costs, self._in_flight, self._stop, self._records = costs, in_flight, stop, records
        self._admission = LocalAdmission(_ReportedCosts(costs.groups), servers, policy, budget)
        self._complete = {server: self._admission.wrap(self._grant, server) for server in self._admission.servers}

    def learn(self, group: str, server: str | None, headers: Mapping[str, str]) -> None:
        """Apply the rate limits that a server states in its headers."""
        learn = self._admission.rate_listener(group, server)
        if learn is not None:
            learn(headers)

    def ask(self, calls: WorkerCalls, message: Ask) -> None:
        """Grant a call once budget and limits allow it, or deny it."""
        call = calls.calls[message.number] = _Call(asyncio.get_running_loop().create_future())
        request = _PermitRequest(
            group=message.group, messages=(), sample=message.sample, most=message.most, number=message.number,
            calls=calls,
        )  # fmt: skip
        call.task = asyncio.create_task(self._admit(call, request, message.server))

    async def _admit(self, call: _Call, request: _PermitRequest, server: str | None) -> None:
        try:
            await self._complete[server](request)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the worker caused it, or must be told
            if not call.is_granted:
                request.calls.send(Denied(request.number, RemoteError.of(error)))
        finally:
            request.calls.calls.pop(request.number, None)

    async def _grant(self, request: Request) -> Completion:
        """Grant the call and wait until the worker reports its end; for the layers, this is the call itself."""
        assert isinstance(request, _PermitRequest)
        self._stop.check()
        calls = request.calls
        if self._costs.groups[request.group].is_called_live:
            self._in_flight.sent(request.sample, request.most, self._records())
            calls.in_flight[request.sample] = request.most
        call = calls.calls[request.number]
        call.is_granted = True
        calls.send(Granted(request.number))
        return await call.ended

    def end(self, calls: WorkerCalls, message: Ended) -> None:
        """End a granted call."""
        call = calls.calls.get(message.number)
        if call is None or call.ended.done():
            return
        if message.charge is not None:
            call.charge = message.charge
            used = Usage(message.charge.prompt_tokens, message.charge.completion_tokens)
            call.ended.set_result(Completion((), "", used))
        elif message.failure is not None:
            call.ended.set_exception(message.failure.error())

    def give_up(self, calls: WorkerCalls, number: int) -> None:
        """Forget a call that the worker no longer waits for; if it was granted, it counts as billed."""
        call = calls.calls.get(number)
        if call is not None:
            _end(call, _GivenUpError())

    def release(self, calls: WorkerCalls, reason: str) -> None:
        """End the calls of a worker that is gone; calls in flight may be billed."""
        for call in tuple(calls.calls.values()):
            _end(call, TransientError(f"the worker that made the call {reason}"))

    async def wait(self, calls: WorkerCalls) -> None:
        """Wait until budget and limits have counted each call."""
        await asyncio.gather(*(call.task for call in calls.calls.values() if call.task), return_exceptions=True)

    def settle(self, calls: WorkerCalls, sample: SampleKey) -> None:
        """Remove a call whose record is on disk from the calls in flight."""
        if calls.in_flight.pop(sample, None) is not None:
            self._in_flight.settled(sample)

    def refuse(self, calls: WorkerCalls, sample: SampleKey) -> None:
        """Remove a call that the provider refused, and that has no record, from the calls in flight."""
        if calls.in_flight.pop(sample, None) is not None:
            self._in_flight.refused(sample)

    def clear(self, calls: WorkerCalls) -> None:
        """Remove all calls of a worker after the journal has counted them at their maximum cost."""
        for sample in tuple(calls.in_flight):
            self.refuse(calls, sample)


def _end(call: _Call, error: Exception) -> None:
    """Cancel a call that waits for its permit, or end a granted call with this error."""
    if not call.is_granted and call.task is not None:
        call.task.cancel()
    elif not call.ended.done():
        call.ended.set_exception(error)
