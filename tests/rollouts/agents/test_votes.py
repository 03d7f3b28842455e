"""Several answers to one question become one verdict: the majority's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runner.base.async_runner import run_sync
from runner.game.protocols.protocol import Decision
from runner.game.protocols.rounds import Reply
from runner.rollouts.agents.votes import majority, reply_by_vote

REJECT, ACCEPT, NONE = Decision.REJECT, Decision.ACCEPT, Decision.NONE


def verdict(decisions: Sequence[int], *, must_decide: bool) -> tuple[Reply, list[int]]:
    """The reply to votes with these decisions, and which of them were asked for."""
    asked: list[int] = []

    async def ask(vote: int) -> Reply:
        asked.append(vote)
        return Reply(f"vote {vote}", None, decisions[vote], retry_count=vote, calls=vote + 1)

    return run_sync(lambda: reply_by_vote(ask, len(decisions), must_decide=must_decide)), asked


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        ([ACCEPT, REJECT, REJECT], REJECT),
        ([ACCEPT, REJECT], ACCEPT),
        ([REJECT, ACCEPT, NONE], REJECT),
        ([NONE, ACCEPT, REJECT, ACCEPT], ACCEPT),
        ([NONE, NONE], NONE),
        ([], NONE),
    ],
)
def test_most_decide_and_of_as_many_the_first(decisions: list[int], expected: int) -> None:
    assert majority(decisions) == expected


def test_the_reply_is_that_of_the_first_vote_of_the_majority() -> None:
    reply, asked = verdict([ACCEPT, REJECT, NONE, REJECT], must_decide=False)
    assert (reply.raw, reply.decision, reply.votes) == ("vote 1", REJECT, (1, 0, 2, 0))
    assert (reply.retry_count, reply.calls, asked) == (6, 10, [0, 1, 2, 3])


def test_where_the_first_goes_on_nothing_is_voted_on() -> None:
    reply, asked = verdict([NONE, ACCEPT, ACCEPT], must_decide=False)
    assert (reply.decision, reply.votes, asked) == (NONE, (), [0])


def test_where_it_must_decide_every_vote_is_asked_for() -> None:
    reply, asked = verdict([NONE, ACCEPT, ACCEPT], must_decide=True)
    assert (reply.decision, reply.votes, asked) == (ACCEPT, (2, 1, 1), [0, 1, 2])
