"""Several votes become one verdict: that of the majority."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runner.base.async_runner import run_sync
from runner.game.protocols.protocol import Decision
from runner.game.protocols.rounds import Reply
from runner.rollouts.agents.votes import majority, reply_by_vote

REJECT, ACCEPT, NONE = Decision.REJECT, Decision.ACCEPT, Decision.NONE


def collect_votes(decisions: Sequence[int], *, must_decide: bool) -> tuple[Reply, list[int]]:
    """Return the reply to votes with these decisions, and the indexes of the requested votes."""
    requested: list[int] = []

    async def cast_vote(vote: int) -> Reply:
        requested.append(vote)
        return Reply(f"vote {vote}", None, decisions[vote], retry_count=vote, calls=vote + 1)

    return run_sync(lambda: reply_by_vote(cast_vote, len(decisions), must_decide=must_decide)), requested


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
def test_majority_decides_and_the_first_vote_breaks_a_tie(decisions: list[int], expected: int) -> None:
    assert majority(decisions) == expected


def test_reply_is_the_first_vote_of_the_majority() -> None:
    reply, requested = collect_votes([ACCEPT, REJECT, NONE, REJECT], must_decide=False)
    assert (reply.raw, reply.decision, reply.votes) == ("vote 1", REJECT, (1, 0, 2, 0))
    assert (reply.retry_count, reply.calls, requested) == (6, 10, [0, 1, 2, 3])


def test_undecided_first_vote_ends_the_voting_if_no_decision_is_required() -> None:
    reply, requested = collect_votes([NONE, ACCEPT, ACCEPT], must_decide=False)
    assert (reply.decision, reply.votes, requested) == (NONE, (), [0])


def test_every_vote_is_requested_if_a_decision_is_required() -> None:
    reply, requested = collect_votes([NONE, ACCEPT, ACCEPT], must_decide=True)
    assert (reply.decision, reply.votes, requested) == (ACCEPT, (2, 1, 1), [0, 1, 2])
