"""Several answers to one question into one verdict: the majority's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from runner.base.async_runner import cancel_all
from runner.game.protocols.protocol import Decision
from runner.game.protocols.rounds import Reply

Together = Callable[[Sequence[asyncio.Task[Reply]]], Awaitable[object]]
"""Waits for replies that are asked for at once, each answered or failed; raises what stops more than they."""


def majority(decisions: Sequence[int]) -> int:
    """The decision of most votes that decide; where as many are for the other, that of the first of them.

    Without such a vote there is none.
    """
    decided = [decision for decision in decisions if decision != Decision.NONE]
    if not decided:
        return Decision.NONE
    return max(dict.fromkeys(decided), key=decided.count)  # of equals the first


async def voted(
    ask: Callable[[int], Coroutine[Any, Any, Reply]],
    votes: int,
    *,
    must_decide: bool,
    together: Together = asyncio.wait,
) -> Reply:
    """Ask so often, and reply as the first vote of the majority does, with every vote's decision.

    Where the verifier may go on, a first answer that does is no verdict, and there is nothing to vote on. A later one
    without a decision is an undecided vote. The others are asked at once.
    """
    first = await ask(0)
    if is_final(first, votes, must_decide=must_decide):
        return first
    others = [asyncio.create_task(ask(vote)) for vote in range(1, votes)]
    try:
        await together(others)
    finally:
        await cancel_all(others)
    # Of several failures the first by vote is raised, whichever came first.
    return combine_votes([first, *[task.result() for task in others]])


def is_final(first: Reply, votes: int, *, must_decide: bool) -> bool:
    """Whether the first of several votes is the reply, so that no other is asked for."""
    return votes == 1 or (first.decision == Decision.NONE and not must_decide)


def combine_votes(replies: Sequence[Reply]) -> Reply:
    """Return the reply of the first vote of the majority, with every vote's decision."""
    decision = majority([reply.decision for reply in replies])
    taken = next(reply for reply in replies if reply.decision == decision)
    return replace(
        taken,
        votes=tuple(int(reply.decision) for reply in replies),
        retry_count=sum(reply.retry_count for reply in replies),
        calls=sum(reply.calls for reply in replies),
    )
