"""Permits for the calls of all workers.

Workers call models themselves, but only the writer (the main process) knows the budget and the rate limits. A worker
requests a permit for each call. The writer passes the request to the *layers* that also check its own calls against
the budget and the limits. It grants the permit when they admit the call, and the worker reports how the call ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.base.errors import Stopped, TransientError
from runner.base.value_class import value_class
from runner.models.admission import LocalAdmission
from runner.models.costs import CallCosts
from runner.models.interface import Completion, Request, SampleKey, Usage
from runner.models.layers.budget import Budget
from runner.models.layers.lost_calls import InFlightFile
from runner.models.retry_policy import Retry
from runner.models.server_states import Servers
from runner.models.usage_totals import UsageTotals
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.workers.messages import CallEnded, Denied, Granted, PermitRequested
from runner.runs.workers.remote_errors import RemoteError


class _AbandonedError(Exception):
    """Ends a granted call that the worker no longer waits for. The provider may still bill the call."""


@dataclass(eq=False)
class WorkerCalls:
    """The calls of one worker."""

    send: Callable[[Any], None]
    """Sends a message to the worker."""
    open_calls: dict[int, _Call] = field(default_factory=dict)
    """The calls that have a permit or wait for one."""
    in_flight: dict[SampleKey, UsageTotals] = field(default_factory=dict)
    """The maximum cost of each granted call whose record is not on disk yet, by sample."""


@dataclass(eq=False)
class _Call:
    """A call that a worker has requested or is making."""

    result: asyncio.Future[Completion]
    """The result of the call, with only the values that the budget and the limits need."""
    task: asyncio.Task[None] | None = None
    """The task that passes the call through the budget and the limits."""
    is_granted: bool = False
    charge: UsageTotals = field(default_factory=UsageTotals)
    """The cost of the answer. The budget counts it instead of the maximum cost."""


@value_class(frozen=True, slots=True, kw_only=True)
class _PermitRequest(Request):
    """A worker's call, as passed to the layers: with a maximum cost, without a prompt."""

    max_cost: UsageTotals
    call_number: int
    calls: WorkerCalls


class _ReportedCosts(CallCosts):
    """The costs of calls as reported by workers, which replace computed costs."""

    def worst_case(self, request: Request) -> UsageTotals:
        assert isinstance(request, _PermitRequest)
        return request.max_cost

    def charge(self, request: Request, completion: Completion) -> UsageTotals:
        del completion
        assert isinstance(request, _PermitRequest)
        return request.calls.open_calls[request.call_number].charge


@dataclass(eq=False, kw_only=True)
class PermitIssuer:
    """Applies the budget and the limits to the calls of all workers, and records the calls in flight."""

    costs: CallCosts
    servers: Servers
    retry: Retry
    budget: Budget | None
    in_flight_file: InFlightFile
    stop: StopSwitch
    count_records: Callable[[], int]
    """Returns the number of records in the journal, which `InFlightFile` stores."""

    def __post_init__(self) -> None:
        costs, sleep = _ReportedCosts(self.costs.groups), self.stop.sleep_unless_stopped
        self._admission = LocalAdmission(costs, self.servers, self.retry, self.budget, sleep)
        self._admit_by_server = {
            server: self._admission.wrap(self._grant, server) for server in self._admission.servers
        }

    def apply_rate_limits(self, group: str, server: str | None, headers: Mapping[str, str]) -> None:
        """Apply the rate limits that a server states in its headers."""
        listener = self._admission.rate_listener(group, server)
        if listener is not None:
            listener(headers)

    def request_permit(self, calls: WorkerCalls, message: PermitRequested) -> None:
        """Start a task that grants the call once the budget and the limits allow it, or denies it."""
        call = calls.open_calls[message.call_number] = _Call(asyncio.get_running_loop().create_future())
        request = _PermitRequest(
            group=message.group, messages=(), sample=message.sample, max_cost=message.max_cost,
            call_number=message.call_number, calls=calls,
        )  # fmt: skip
        call.task = asyncio.create_task(self._admit(call, request, message.server))

    async def _admit(self, call: _Call, request: _PermitRequest, server: str | None) -> None:
        try:
            await self._admit_by_server[server](request)
        except Exception as error:  # noqa: BLE001 - any error denies the call
            if not call.is_granted:  # otherwise the worker itself has reported the error
                request.calls.send(Denied(request.call_number, RemoteError.from_exception(error)))
            elif isinstance(error, Stopped):  # the run stopped before the worker sent the call
                self.discard(request.calls, request.sample)
        finally:
            request.calls.open_calls.pop(request.call_number, None)

    async def _grant(self, request: Request) -> Completion:
        """Grant the call and return its result when the worker reports it. The layers treat this as the model call."""
        assert isinstance(request, _PermitRequest)
        self.stop.check()
        calls = request.calls
        if self.costs.groups[request.group].sends_requests:
            self.in_flight_file.add_call(request.sample, request.max_cost, self.count_records())
            calls.in_flight[request.sample] = request.max_cost
        call = calls.open_calls[request.call_number]
        call.is_granted = True
        calls.send(Granted(request.call_number))
        return await call.result

    def finish_call(self, calls: WorkerCalls, message: CallEnded) -> None:
        """Finish a granted call with the result that the worker reports."""
        call = calls.open_calls.get(message.call_number)
        if call is None or call.result.done():  # the call was abandoned
            return
        if message.charge is not None:
            call.charge = message.charge
            usage = Usage(message.charge.prompt_tokens, message.charge.completion_tokens)
            call.result.set_result(Completion((), "", usage))
        elif message.failure is not None:
            call.result.set_exception(message.failure.to_exception())

    def abandon_call(self, calls: WorkerCalls, call_number: int) -> None:
        """End a call that the worker no longer waits for. A granted call counts as billed."""
        call = calls.open_calls.get(call_number)
        if call is not None:
            _cancel_or_fail(call, _AbandonedError())

    def end_calls(self, calls: WorkerCalls, exit_reason: str) -> None:
        """End the calls of a worker that is gone, such as one that "was killed". Calls in flight count as billed."""
        for call in tuple(calls.open_calls.values()):
            _cancel_or_fail(call, TransientError(f"the worker that made the call {exit_reason}"))

    async def wait_until_calls_end(self, calls: WorkerCalls) -> None:
        """Wait until all calls of a worker have ended and the budget has counted them."""
        await asyncio.gather(*(call.task for call in calls.open_calls.values() if call.task), return_exceptions=True)

    def remove_recorded(self, calls: WorkerCalls, sample: SampleKey) -> None:
        """Remove a call from the calls in flight, because its record is on disk."""
        if calls.in_flight.pop(sample, None) is not None:
            self.in_flight_file.settle_call(sample)

    def discard(self, calls: WorkerCalls, sample: SampleKey) -> None:
        """Remove a call from the calls in flight that gets no record, for example because the provider refused it."""
        if calls.in_flight.pop(sample, None) is not None:
            self.in_flight_file.discard_call(sample)

    def remove_all(self, calls: WorkerCalls) -> None:
        """Remove all calls of a worker from the calls in flight, after the journal has recorded their maximum cost."""
        for sample in tuple(calls.in_flight):
            self.discard(calls, sample)


def _cancel_or_fail(call: _Call, error: Exception) -> None:
    """Cancel a call that waits for its permit, or end a granted call with this error."""
    if not call.is_granted and call.task is not None:
        call.task.cancel()
    elif not call.result.done():
        call.result.set_exception(error)
