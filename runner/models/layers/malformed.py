"""Whether a request that is refused as malformed ends its game, or the run.

A server that refuses one prompt (odd characters, an empty message) answers 400 as one does that refuses every request
of a model group. What became of the group's other requests tells which it is:

- the group was answered, in this process or by the journal: the refusal ends its game;
- it never was: the refusal ends its game for now, and another process asks again. After as many refusals as open a
  breaker, and no answer, the run stops; so does one that comes to its end before that.

Of a group at several servers only what all of them refuse comes here (`several`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.base.errors import ProviderRefusal
from runner.models.interface import Complete, Completion, Request, SampleKey


@dataclass
class _Group:
    """What became of the requests of one model group."""

    answered: bool
    refused: set[SampleKey] = field(default_factory=set)
    refusal: str = ""
    """What the run stops with."""


class MalformedRequests(NamedTuple):
    """A way to ask whose refusals of single requests end their games."""

    complete: Complete
    check: Callable[[], None]
    """Raises `ProviderRefusal` where a group was refused and never answered; for when all games are over."""


def judging_refusals(complete: Complete, failures: int, answered: Collection[str] = ()) -> MalformedRequests:
    """`complete`, whose refusals of single requests end their games; `answered` are groups that had an answer.

    It may grow, where others ask, too. So many `failures`, and no answer at all, are a refusal of the group.
    """
    groups: dict[str, _Group] = {}

    async def judged(request: Request) -> Completion:
        group = groups.get(request.group)
        if group is None:
            group = groups[request.group] = _Group(request.group in answered)
        try:
            completion = await complete(request)
        except ProviderRefusal as refusal:
            if refusal.of_one_call is None:
                raise
            if not (group.answered or request.group in answered):
                group.refused.add(request.sample)
                group.refusal = str(refusal)
                if len(group.refused) >= failures:
                    raise
            raise refusal.of_one_call from None
        group.answered = True
        return completion

    def check() -> None:
        for name, group in groups.items():
            if group.refused and not (group.answered or name in answered):
                raise ProviderRefusal(group.refusal)

    return MalformedRequests(judged, check)
