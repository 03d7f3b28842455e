"""Decides whether a request that a server refuses as malformed ends only its game, or the run.

A server answers 400 both if it refuses one prompt (odd characters, an empty message) and if it refuses every request of
a model group. The group's other requests show which is the case:

- If the group has ever had an answer, in this process or according to the journal, the refusal ends the game.
- Otherwise, the refusal ends the game for now, and a later process tries again. If the group never gets an answer, the
  run stops when all games are over, or earlier after `retry.breaker.failures` refusals.

For a group at several servers, only calls that all servers refuse reach this layer (see
`runner.models.layers.server_pool`).
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

    has_answered: bool
    """Whether the group has ever had an answer."""
    refused: set[SampleKey] = field(default_factory=set)
    """The samples whose requests were refused while the group had no answer."""
    message: str = ""
    """The message of the last refusal, for the error that stops the run."""


class MalformedRequests(NamedTuple):
    """The result of `judge_malformed`: a completion function, and a final check."""

    complete: Complete
    check: Callable[[], None]
    """Raises `ProviderRefusal` if a group had refusals and never an answer. Call this when all games are over."""


def judge_malformed(complete: Complete, failures: int, answered: Collection[str] = ()) -> MalformedRequests:
    """Wrap `complete` so that the refusal of a single request ends only its game.

    If a group has `failures` refusals and no answer, `ProviderRefusal` is raised instead. `answered` are the groups
    that have ever had an answer. Other processes may add groups to it.
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
            if not (group.has_answered or request.group in answered):
                group.refused.add(request.sample)
                group.message = str(refusal)
                if len(group.refused) >= failures:
                    raise
            raise refusal.of_one_call from None
        group.has_answered = True
        return completion

    def check() -> None:
        for name, group in groups.items():
            if group.refused and not (group.has_answered or name in answered):
                raise ProviderRefusal(group.message)

    return MalformedRequests(complete_or_end_game, check)
