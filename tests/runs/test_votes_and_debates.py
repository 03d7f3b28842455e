"""Votes in games, and debates that another judge reads."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import GenerationError, RunDirectoryError
from runner.game.protocols.rounds import Message, Reply, Round
from runner.rollouts.agents.votes import reply_by_vote
from runner.rollouts.estimate import estimate_costs
from runner.rollouts.plan import Plan
from runner.rollouts.recorded_debates import Debate, Debates
from runner.rollouts.rollout import Outcome, Rollout
from runner.spec.loader import load_spec
from tests.support.event_loop import run_loop_turns
from tests.support.paths import ROOT
from tests.support.runs import run_spec, table
from tests.support.specs import spec_file


def test_votes_are_requested_if_the_first_answer_decides(tmp_path: Path) -> None:
    run = run_spec(spec_file(tmp_path, size=8), tmp_path / "results", "votes=3").folder.path
    rows, calls = table(run, "rollouts"), table(run, "completions")
    for row in rows:
        votes = json.loads(row["votes"])
        decided_votes = [vote for vote in votes if vote != 2]
        assert len(votes) == 3
        assert votes[0] != 2  # further votes exist only if the first one decides
        assert row["decision"] == max(dict.fromkeys(decided_votes), key=decided_votes.count)
        last = [call for call in calls if (call["rollout_id"], call["round"]) == (row["rollout_id"], row["rounds"] - 1)]
        assert [call["vote"] for call in last] == [None, 1, 2]
    assert len({json.loads(row["votes"])[1] for row in rows}) > 1


def test_further_votes_are_requested_concurrently_and_the_lowest_failed_vote_is_raised() -> None:
    in_flight_counts: list[int] = []
    in_flight = 0

    async def ask(vote: int) -> Reply:
        nonlocal in_flight
        in_flight += 1
        in_flight_counts.append(in_flight)
        await run_loop_turns(40 - 8 * vote)  # later votes return sooner
        in_flight -= 1
        if vote in failing:
            raise GenerationError(f"vote {vote}")
        return Reply(f"vote {vote}", None, vote % 2)

    failing: tuple[int, ...] = ()
    reply = asyncio.run(reply_by_vote(ask, 4, must_decide=False))
    assert (reply.raw, reply.votes, in_flight_counts) == ("vote 0", (0, 1, 0, 1), [1, 1, 2, 3])
    failing = (2, 3)
    with pytest.raises(GenerationError, match="vote 2"):
        asyncio.run(reply_by_vote(ask, 4, must_decide=False))


def test_several_votes_change_the_run_identity_but_one_vote_does_not(tmp_path: Path) -> None:
    path = spec_file(tmp_path)
    default_plan, one_vote, three_votes = (
        Plan(load_spec(path, overrides)) for overrides in ((), ["votes=1"], ["votes=3"])
    )
    assert default_plan.identity == one_vote.identity
    assert default_plan.game_hash != three_votes.game_hash


def test_an_estimate_counts_the_votes_of_each_verdict(tmp_path: Path) -> None:
    path = spec_file(tmp_path)
    (single_vote,), (five_votes,) = (estimate_costs(Plan(load_spec(path, [f"votes={votes}"]))) for votes in (1, 5))
    assert [b - a for a, b in zip(single_vote.calls, five_votes.calls, strict=True)] == [4 * 12, 4 * 12]


def test_an_estimate_counts_the_prompts_of_votes_with_each_stance() -> None:
    overrides = ["dataset.limit=4", "votes=5"]
    plans = (Plan(load_spec(ROOT / "specs" / "adp.yaml", [*overrides, *extra])) for extra in ([], ["stances=both"]))
    (one_stance,), (both_stances,) = map(estimate_costs, plans)
    assert both_stances.calls == tuple(2 * calls for calls in one_stance.calls)
    assert both_stances.prompt_tokens == tuple(2 * tokens for tokens in one_stance.prompt_tokens)


def test_votes_on_the_answers_of_a_tree_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="cannot be combined with trees of responses"):
        load_spec(spec_file(tmp_path), ["votes=3", "rollouts.num_responses_per_timestep=2"])


def make_rollout(plan: Plan, rounds: int, outcome: Outcome) -> Rollout:
    names = ["prover" if i % 2 else "verifier" for i in range(rounds)]
    played_rounds = [
        Round({name: f"said {i}"}, [Message("main", name, f"said {i}")], calls={name: 1}, rewards={name: 0.5})
        for i, name in enumerate(names)
    ]
    return Rollout(next(plan.jobs()), played_rounds, 2, outcome, None, {})


@pytest.mark.parametrize(
    ("rounds", "outcome", "heard_rounds"),
    [
        (3, Outcome.DECIDED, 2),
        (6, Outcome.NO_DECISION, 4),  # the prover speaks after the judge's last turn
        (4, Outcome.INVALID_RESPONSE, 4),  # the judge's own answer could not be used
        (3, Outcome.REFUSED, 2),  # the prover's answer could not be used: ends at the judge's last turn
    ],
)
def test_a_debate_ends_at_a_turn_of_the_judge(tmp_path: Path, rounds: int, outcome: Outcome, heard_rounds: int) -> None:
    plan = Plan(load_spec(spec_file(tmp_path)))
    debate = Debate.from_rollout(make_rollout(plan, rounds, outcome), plan.spec.protocol)
    assert isinstance(debate, Debate)
    assert [list(debate_round.raw.values()) for debate_round in debate.rounds] == [
        [f"said {i}"] for i in range(heard_rounds)
    ]


@pytest.mark.parametrize(("rounds", "outcome"), [(1, Outcome.REFUSED), (4, Outcome.TRANSPORT_FAILED)])
def test_a_game_without_a_debate_is_left_out_with_a_reason(tmp_path: Path, rounds: int, outcome: Outcome) -> None:
    plan = Plan(load_spec(spec_file(tmp_path)))
    assert isinstance(Debate.from_rollout(make_rollout(plan, rounds, outcome), plan.spec.protocol), str)


def test_debates_are_unchanged_after_writing_and_reading(tmp_path: Path) -> None:
    plan = Plan(load_spec(spec_file(tmp_path)))
    debate = Debate.from_rollout(make_rollout(plan, 3, Outcome.DECIDED), plan.spec.protocol)
    assert isinstance(debate, Debate)
    debate = replace(debate, other_replies={"prover": Reply("heard by nobody", {"main": "heard by nobody"}, calls=0)})
    context: dict[str, Any] = {"seed": 7, "protocol.use": "x"}
    written = Debates("run", "id", "abc", context, 1, {"lost in transport": 1}, {("p0", 0): debate})
    lines = written.lines().splitlines(keepends=True)
    assert Debates.from_lines(lines) == written
    longer = replace(written, by_job={**written.by_job, ("p1", 0): debate})
    longer.check_judged(written, "run judged")
    with pytest.raises(
        RunDirectoryError,
        match=r"judged 1 debate of run that have changed since or are missing, such as that of datapoint p0",
    ):
        replace(written, by_job={("p0", 0): replace(debate, other_replies={})}).check_judged(written, "run judged")
    with pytest.raises(ValueError, match="the debates differ"):
        Debates.from_lines([lines[0], lines[1].replace(b"said 1", b"said 2")])


def test_both_ends_of_an_estimate_respect_the_token_limit_of_answers(tmp_path: Path) -> None:
    model = {"price": {"input": 1.0, "output": 4.0}, "max_completion_tokens": 16}
    path = spec_file(tmp_path, models={"tiny": {"provider": "openai", "model": "m", **model}})
    (row,) = estimate_costs(Plan(load_spec(path)))
    assert row.completion_tokens[0] <= row.completion_tokens[1]
    assert row.cost_usd is not None
    assert row.cost_usd[0] <= row.cost_usd[1]
