"""Votes: several answers to the same prompt, combined into the verdict of the majority.

The spec key `votes` sets their number. Only the verifier votes, and only in a round where it can decide.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runner.game.protocols.protocol import Decision
from runner.game.protocols.rounds import Reply

if TYPE_CHECKING:
    import asyncio

WaitForReplies = Callable[[Sequence["asyncio.Task[Reply]"]], Awaitable[object]]
"""Waits until each task has returned a reply or failed. Raises only errors that stop the whole run."""


def majority(decisions: Sequence[int]) -> int:
    """Return the most frequent decision among the votes that decide; `Decision.NONE` if no vote decides.

    If two decisions are equally frequent, return the decision of the earlier vote.
    """
    decided = [decision for decision in decisions if decision != Decision.NONE]
    if not decided:
        return Decision.NONE
    return max(dict.fromkeys(decided), key=decided.count)  # `max` returns the first of several maxima


async def reply_by_vote(
    request_vote: Callable[[int], Coroutine[Any, Any, Reply]],
    votes: int,
    *,
    must_decide: bool,
    wait_for_replies: WaitForReplies | None = None,
) -> Reply:
    """Collect the votes, and return the combined reply; see `combine_votes`.

    `request_vote` requests the vote with an index. If the first vote is final (see `is_final`), it is the reply.
    Otherwise, the other votes are requested concurrently.
    """
    first = await request_vote(0)
    if is_final(first, votes, must_decide=must_decide):
        return first
    other_replies = await gather_replies(map(request_vote, range(1, votes)), wait_for_replies)
    return combine_votes([first, *other_replies])


async def gather_replies(
    requests: Iterable[Coroutine[Any, Any, Reply]], wait_for_replies: WaitForReplies | None
) -> list[Reply]:
    """Make requests concurrently, and return their replies. `wait_for_replies` is `asyncio.wait` by default."""
    import asyncio  # not at the top, since `check` and other commands request no replies

    from runner.base.async_runner import cancel_all

    tasks = [asyncio.create_task(request) for request in requests]
    try:
        await (wait_for_replies or asyncio.wait)(tasks)
    finally:
        await cancel_all(tasks)
    # If several requests failed, this raises the error of the first of them, not the earliest error.
    return [task.result() for task in tasks]


def is_final(first: Reply, votes: int, *, must_decide: bool) -> bool:
    """Return whether the first vote is the reply: it is the only one, or leaves the decision to a later round."""
    return votes == 1 or (first.decision == Decision.NONE and not must_decide)


def combine_votes(replies: Sequence[Reply]) -> Reply:
    """Return the reply of the first vote for the majority's decision, with the decisions and counts of all votes."""
    from statistics import fmean

    decision = majority([reply.decision for reply in replies])
    majority_reply = next(reply for reply in replies if reply.decision == decision)
    probabilities = [reply.p_accept for reply in replies if reply.p_accept is not None]
    return replace(
        majority_reply,
        p_accept=fmean(probabilities) if probabilities else None,
        votes=tuple(int(reply.decision) for reply in replies),
        retry_count=sum(reply.retry_count for reply in replies),
        calls=sum(reply.calls for reply in replies),
    )
