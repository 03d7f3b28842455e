"""Whether a request is refused as malformed while others are taken: then its game ends, and else the run.

A server that refuses one prompt (odd characters, an empty message) answers 400 as one does that refuses every request
of a model group. Other requests tell which it is, so the verdict waits for one of them:

- one of the group is answered: the refusal is of this request only, and ends its game;
- as many of the group were refused in a row as open a breaker: no request of the group is taken, and the run stops;
- no other of the group is in flight: the group's earlier answers tell, of this process or in the journal; where it
  never had one, the run stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from runner.errors import ProviderRefusal
from runner.models.base import Complete, Completion, Request


@dataclass
class _Group:
    """What became of the requests of one model group."""

    answered: bool
    in_flight: int = 0
    refused_in_row: int = 0
    held: list[asyncio.Future[bool]] = field(default_factory=list)
    """Refusals that wait to hear whether other requests are taken."""

    def tell(self, *, takes_others: bool) -> None:
        held, self.held = self.held, []
        for one in held:
            if not one.done():
                one.set_result(takes_others)

    def ended(self) -> None:
        """A request is no more in flight."""
        self.in_flight -= 1
        if self.in_flight == 0:
            self.tell(takes_others=self.answered)

    def was_answered(self) -> None:
        self.answered, self.refused_in_row = True, 0
        self.tell(takes_others=True)


def judging_refusals(complete: Complete, failures: int, answered: Collection[str] = ()) -> Complete:
    """`complete`, whose refusals of single requests end their games only; `answered` are groups that had an answer.

    So many `failures` in a row, and no answer between them, are a refusal of all.
    """
    groups: dict[str, _Group] = {}

    async def judged(request: Request) -> Completion:
        group = groups.setdefault(request.group, _Group(request.group in answered))
        group.in_flight += 1
        try:
            completion = await complete(request)
        except ProviderRefusal as refusal:
            if refusal.of_one_call is None:
                group.ended()
                raise
            if not await _others_are_taken(group, failures):
                raise
            raise refusal.of_one_call from None
        except BaseException:
            group.ended()
            raise
        group.was_answered()
        group.ended()
        return completion

    return judged


async def _others_are_taken(group: _Group, failures: int) -> bool:
    """Whether the group's other requests are taken; the refused one is no more in flight."""
    group.refused_in_row += 1
    verdict: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    group.held.append(verdict)
    if group.refused_in_row >= failures:
        group.tell(takes_others=False)
    group.ended()
    return await verdict
