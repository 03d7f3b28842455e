"""Permits that a worker far from the writer takes ahead, several at once, so that few calls wait for theirs.

For each call that begins another permit is asked for, of one that is still to come; so a worker comes to hold about as
many as it has calls in the time of a way to the writer and back. The writer gives one ahead only where that is in
nobody's way: where no rate counts calls, others do not wait, and the budget is not near its end. So the limits hold as
if each call were asked for. What is not used soon is given back; what a worker had that died counts as used.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from runner.models.costs import CallCosts
from runner.models.interface import Request
from runner.models.usage_totals import UsageTotals
from runner.runs.workers.link import Link
from runner.runs.workers.messages import AskAhead, Unused, Used
from runner.runs.workers.remote_errors import RemoteError
from runner.runs.workers.writer_proxy import RemotePermits

MOST = 16
"""Held at most, of calls to one server of one model group."""

KEPT_SECONDS = 0.25

ROOM = 1.25
"""A permit ahead covers calls that may cost so much more than the dearest so far: prompts grow with the rounds."""

Place = tuple[str, str | None]
"""A model group, and which of its servers."""


class PermitsAhead(RemotePermits):
    """Takes permits before there are calls for them."""

    def __init__(self, link: Link, costs: CallCosts, *, budgeted: bool) -> None:
        super().__init__(link, costs, budgeted=budgeted)
        self._held: dict[Place, deque[int]] = {}
        self._covers: dict[int, UsageTotals] = {}
        """Of each that is held or asked for."""
        self._places: dict[int, Place] = {}
        self._dearest: dict[Place, UsageTotals] = {}
        self._due: dict[Place, int] = {}
        self._has_ended = False

    async def _granted(self, request: Request, server: str | None) -> int:
        if not self._costs.groups[request.group].called_live:
            return await super()._granted(request, server)
        place, most = (request.group, server), self._costs.worst_case(request)
        self._dearest[place] = _larger(self._dearest.get(place, most), most)
        number = self._taken(place, most)
        self._want_another(place)
        if number is None:
            return await super()._granted(request, server)
        self._link.send(Used(number, request.sample))
        return number

    def _taken(self, place: Place, most: UsageTotals) -> int | None:
        """A permit that is held and covers a call; None where there is none."""
        held = self._held.get(place)
        if not held or not _covers(self._covers[held[0]], most):
            return None
        number = held.popleft()
        self._forget(number)
        return number

    def _forget(self, number: int) -> None:
        del self._covers[number], self._places[number]

    def _want_another(self, place: Place) -> None:
        if self._has_ended:
            return
        if not self._due:
            asyncio.get_running_loop().call_soon(self._ask)
        self._due[place] = self._due.get(place, 0) + 1

    def _ask(self) -> None:
        """Ask for all that were wanted in this turn of the loop, together."""
        due, self._due = self._due, {}
        for place, wanted in due.items():
            there = sum(one == place for one in self._places.values())
            numbers = [next(self._numbers) for _ in range(min(wanted, MOST - there))]
            if not numbers or self._has_ended:
                continue
            dearest = self._dearest[place]
            covered = UsageTotals(dearest.usd * ROOM, int(dearest.tokens * ROOM), dearest.completions)
            for number in numbers:
                self._places[number], self._covers[number] = place, covered
            self._link.send(AskAhead(numbers, *place, covered))

    def answered(self, number: int, failure: RemoteError | None) -> None:
        if number not in self._places:
            super().answered(number, failure)
        elif failure is not None:
            self._forget(number)
        elif self._has_ended:
            self._give_back([number])
        else:
            self._held.setdefault(self._places[number], deque()).append(number)
            asyncio.get_running_loop().call_later(KEPT_SECONDS, self._is_old, number)

    def _is_old(self, number: int) -> None:
        place = self._places.get(number)
        if place is not None and number in self._held.get(place, ()):
            self._held[place].remove(number)
            self._give_back([number])

    def give_back(self) -> None:
        """Give all back that are held."""
        held = [number for numbers in self._held.values() for number in numbers]
        self._held.clear()
        self._give_back(held)

    def _give_back(self, numbers: Iterable[int]) -> None:
        unused = list(numbers)
        for number in unused:
            self._forget(number)
        if unused:
            self._link.send(Unused(unused))

    def end(self) -> None:
        """Take no more, and give all back."""
        self._has_ended = True
        self.give_back()


def _covers(permit: UsageTotals, call: UsageTotals) -> bool:
    return call.usd <= permit.usd and call.tokens <= permit.tokens and call.completions <= permit.completions


def _larger(one: UsageTotals, other: UsageTotals) -> UsageTotals:
    return UsageTotals(max(one.usd, other.usd), max(one.tokens, other.tokens), max(one.completions, other.completions))
