"""Decides whether a request that is refused as malformed ends its game, or the run.

A server answers 400 both if it refuses one prompt (odd characters, an empty message) and if it refuses every request of
a model group. The group's other requests tell the two apart:

- The group has been answered, in this process or according to the journal: the refusal ends its game. - It has not: the
refusal ends its game for now, and a later process tries again. The run stops after as many refusals as
  open a breaker, or when all games are over, if there was no answer at all.

For a group at several servers, only refusals by all of them reach this layer (see `server_pool`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.base.errors import ProviderRefusal
from runner.models.interface import Complete, Completion, Request, SampleKey


@dataclass
class _Group:
    """The results of the requests of one model group."""

    answered: bool
    refused: set[SampleKey] = field(default_factory=set)
    refusal: str = ""
    """The message that the run stops with."""


class MalformedRequests(NamedTuple):
    """A completion function whose refusals of single requests end their games, and a final check."""

    complete: Complete
    check: Callable[[], None]
    """Raises `ProviderRefusal` if a group was refused and never answered. Call it when all games are over."""


def judge_malformed(complete: Complete, failures: int, answered: Collection[str] = ()) -> MalformedRequests:
    """Wrap `complete` so that refusals of single requests end their games.

    If a group has `failures` refusals and no answer, `ProviderRefusal` is raised instead. `answered` are the groups
    that have been answered. The collection may grow if other processes call them too.
    """
    groups: dict[str, _Group] = {}

    async def complete_or_end_game(request: Request) -> Completion:
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

    return MalformedRequests(complete_or_end_game, check)
