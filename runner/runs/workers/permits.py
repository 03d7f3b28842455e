"""Permits for the calls of all workers: the layers of budget and limits around a call that a worker makes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.base.errors import TransientError
from runner.models.admission import OwnAdmission
from runner.models.costs import CallCosts
from runner.models.interface import Completion, Request, SampleKey, Usage
from runner.models.layers.budget import Budget, NotSent
from runner.models.layers.lost_calls import InFlight
from runner.models.retry_policy import Retry
from runner.models.shared_servers import Servers
from runner.models.usage_totals import UsageTotals
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.workers.messages import Ask, AskAhead, Denied, Ended, Granted, Unused, Used
from runner.runs.workers.remote_errors import NoPermitsError, RemoteError

AHEAD = "(a call to come)"
"""Stands for the datapoint of a call that is not known yet."""

SPARE_CALLS = 64
"""Permits are given ahead while the budget has room for so many calls: near its end each is asked for."""


class _GivenUpError(Exception):
    """Nobody waits for the call any more; it may be billed."""


@dataclass(eq=False)
class Asking:
    """The calls of one worker: those that wait for a permit or have one, and what each may cost that has a slot."""

    send: Callable[[Any], None]
    calls: dict[int, _Call] = field(default_factory=dict)
    slots: dict[SampleKey, UsageTotals] = field(default_factory=dict)


@dataclass(eq=False)
class _Call:
    """A call that a worker wants to make, or makes."""

    ended: asyncio.Future[Completion]
    task: asyncio.Task[None] | None = None
    is_granted: bool = False
    charge: UsageTotals = field(default_factory=UsageTotals)
    """What the budget counts for it, once it has ended with an answer."""
    ahead: SampleKey | None = None
    """What stands for it in its slot, as long as it is not known which call it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted(Request):
    """A call as the layers see it: what it may cost, and not what it says."""

    most: UsageTotals
    number: int
    server: str | None
    asking: Asking


class _ToldCosts(CallCosts):
    """Costs of calls as their worker knows them."""

    def worst_case(self, request: Request) -> UsageTotals:
        assert isinstance(request, _Wanted)
        return request.most

    def charge(self, request: Request, completion: Completion) -> UsageTotals:
        del completion
        assert isinstance(request, _Wanted)
        return request.asking.calls[request.number].charge


class Permits:
    """Holds the budget, the limits and the slots of calls in flight."""

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
        """`records` says how many the journal has."""
        self._costs, self._in_flight, self._stop, self._records = costs, in_flight, stop, records
        self._ahead = itertools.count()
        self._admission = OwnAdmission(_ToldCosts(costs.groups), servers, policy, budget)
        self._complete = {one: self._admission.around(self._grant, one) for one in self._admission.servers}

    def learn(self, group: str, server: str | None, headers: Mapping[str, str]) -> None:
        """Take the rates that a server says it allows."""
        learn = self._admission.learns(group, server)
        if learn is not None:
            learn(headers)

    def ask(self, asking: Asking, message: Ask) -> None:
        """Grant a call once budget and limits allow it, or deny it."""
        call = asking.calls[message.number] = _Call(asyncio.get_running_loop().create_future())
        wanted = _Wanted(
            group=message.group, messages=(), sample=message.sample, most=message.most, number=message.number,
            server=message.server, asking=asking,
        )  # fmt: skip
        call.task = asyncio.create_task(self._allowed(call, wanted))

    def ask_ahead(self, asking: Asking, message: AskAhead) -> None:
        """Grant calls that are not known yet, as far as that keeps nobody waiting."""
        for number in message.numbers:
            sample = SampleKey(AHEAD, next(self._ahead), 0, "", 0)
            call = asking.calls[number] = _Call(asyncio.get_running_loop().create_future(), ahead=sample)
            wanted = _Wanted(
                group=message.group, messages=(), sample=sample, most=message.most, number=number,
                server=message.server, asking=asking,
            )  # fmt: skip
            call.task = asyncio.create_task(self._allowed(call, wanted))

    async def _allowed(self, call: _Call, wanted: _Wanted) -> None:
        try:
            # From here to where it is granted nothing is waited for, if there is room.
            if call.ahead is not None and not self._has_room(wanted):
                raise NoPermitsError
            await self._complete[wanted.server](wanted)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker has it or must hear of it
            if not call.is_granted:
                wanted.asking.send(Denied(wanted.number, RemoteError.of(error)))
        finally:
            wanted.asking.calls.pop(wanted.number, None)

    async def _grant(self, request: Request) -> Completion:
        """The call itself, as far as the layers see it: granted here, made by the worker."""
        assert isinstance(request, _Wanted)
        self._stop.check()
        asking = request.asking
        if self._costs.groups[request.group].called_live:
            self._in_flight.sent(request.sample, request.most, self._records())
            asking.slots[request.sample] = request.most
        call = asking.calls[request.number]
        call.is_granted = True
        asking.send(Granted(request.number))
        return await call.ended

    def _has_room(self, wanted: _Wanted) -> bool:
        return not self._stop.stopping and self._admission.has_room(
            wanted.group, wanted.server, wanted.most, SPARE_CALLS
        )

    def used(self, asking: Asking, message: Used) -> None:
        """A permit that was granted ahead is used for a call: the slot is that call's."""
        call = asking.calls.get(message.number)
        if call is None or call.ahead is None or call.ahead not in asking.slots:
            return
        most = asking.slots[message.sample] = asking.slots[call.ahead]
        self._in_flight.sent(message.sample, most, self._records())
        self.refused(asking, call.ahead)

    def unused(self, asking: Asking, message: Unused) -> None:
        """Permits that were granted ahead are given back."""
        for number in message.numbers:
            call = asking.calls.get(number)
            if call is not None and call.ahead is not None and not call.ended.done():
                self.refused(asking, call.ahead)
                call.ended.set_exception(NotSent())

    def ended(self, asking: Asking, message: Ended) -> None:
        """A call that was granted has ended."""
        call = asking.calls.get(message.number)
        if call is None or call.ended.done():
            return
        if message.charge is not None:
            call.charge = message.charge
            used = Usage(message.charge.prompt_tokens, message.charge.completion_tokens)
            call.ended.set_result(Completion((), "", used))
        elif message.failure is not None:
            call.ended.set_exception(message.failure.error())

    def gave_up(self, asking: Asking, number: int) -> None:
        """A call is waited for no more: it counts as billed, if it was granted."""
        call = asking.calls.get(number)
        if call is None or call.task is None:
            return
        if not call.is_granted:
            call.task.cancel()
        elif not call.ended.done():
            call.ended.set_exception(_GivenUpError())

    def died(self, asking: Asking, how: str) -> None:
        """The worker is gone: its calls in flight may be billed, and what it waited for it wants no more."""
        for call in tuple(asking.calls.values()):
            if not call.is_granted and call.task is not None:
                call.task.cancel()
            elif not call.ended.done():
                call.ended.set_exception(TransientError(f"the worker that made the call {how}"))

    async def all_over(self, asking: Asking) -> None:
        """Wait until budget and limits have been told of each call."""
        await asyncio.gather(*(call.task for call in asking.calls.values() if call.task), return_exceptions=True)

    def settled(self, asking: Asking, sample: SampleKey) -> None:
        """A call's record is on disk."""
        if asking.slots.pop(sample, None) is not None:
            self._in_flight.settled(sample)

    def refused(self, asking: Asking, sample: SampleKey) -> None:
        """The provider has refused a call, of which there is no record."""
        if asking.slots.pop(sample, None) is not None:
            self._in_flight.refused(sample)

    def counted(self, asking: Asking) -> None:
        """The journal has the worst case of what a worker left in flight."""
        slots, asking.slots = asking.slots, {}
        for sample in slots:
            self._in_flight.refused(sample)
