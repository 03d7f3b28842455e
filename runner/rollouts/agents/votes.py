"""Votes: several answers to one question, combined into the majority's verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from runner.base.async_runner import cancel_all
from runner.game.protocols.protocol import Decision
from runner.game.protocols.rounds import Reply

WaitForReplies = Callable[[Sequence[asyncio.Task[Reply]]], Awaitable[object]]
"""Waits until every task has replied or failed; raises an error that stops more than these replies."""


def majority(decisions: Sequence[int]) -> int:
    """Return the decision of the majority of the votes that decide; in a tie, that of the first vote in the tie.

    Return `Decision.NONE` if no vote decides.
    """
    decided = [decision for decision in decisions if decision != Decision.NONE]
    if not decided:
        return Decision.NONE
    return max(dict.fromkeys(decided), key=decided.count)  # `max` returns the first of several maxima


async def reply_by_vote(
    ask: Callable[[int], Coroutine[Any, Any, Reply]],
    votes: int,
    *,
    must_decide: bool,
    together: WaitForReplies = asyncio.wait,
) -> Reply:
    """Collect the votes, and return the reply of the first vote of the majority with the decision of every vote.

    If the verifier may continue the game and its first answer does, that answer is the reply and there is no vote.
    Otherwise the remaining votes are requested concurrently; one without a decision counts as undecided.
    """
    first = await ask(0)
    if is_final(first, votes, must_decide=must_decide):
        return first
    tasks = [asyncio.create_task(ask(vote)) for vote in range(1, votes)]
    try:
        await together(tasks)
    finally:
        await cancel_all(tasks)
    # If several votes failed, this raises the failure of the first vote, not of the first in time.
    return combine_votes([first, *[task.result() for task in tasks]])


def is_final(first: Reply, votes: int, *, must_decide: bool) -> bool:
    """Return whether the first of several votes is already the reply, without other votes."""
    return votes == 1 or (first.decision == Decision.NONE and not must_decide)


def combine_votes(replies: Sequence[Reply]) -> Reply:
    """Return the reply of the first vote of the majority, with the decision of every vote."""
    decision = majority([reply.decision for reply in replies])
    majority_reply = next(reply for reply in replies if reply.decision == decision)
    return replace(
        majority_reply,
        votes=tuple(int(reply.decision) for reply in replies),
        retry_count=sum(reply.retry_count for reply in replies),
        calls=sum(reply.calls for reply in replies),
    )
