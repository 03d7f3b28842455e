"""The original's shares and ours beside them, counted row by row from random games, and where attempts run out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from statistics import fmean

import pytest

from runner.game.protocols.loader import load_protocol
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import FinishedGame, Reply, play
from runner.models.interface import Choice, Completion, Request
from runner.results.metric_computation import Metrics
from runner.rollouts.agents.arrays import timesteps
from runner.rollouts.job import Job
from runner.rollouts.rollout import Outcome, Rollout
from runner.spec.datasets.loader import Datapoint
from tests.support.games import ONE_VERIFIER, make_agent

GAMES = 30


def random_game(protocol: Protocol, chance: random.Random) -> tuple[FinishedGame, list[tuple[str, Reply]]]:
    """A game of random replies, and those replies; of some speakers the attempts ran out."""
    said: list[tuple[str, Reply]] = []

    def reply(agent: str, channels: tuple[str, ...]) -> Reply:
        bad, cut = chance.randrange(3), chance.random() < 0.3
        if chance.random() < 0.2:
            return Reply("?", dict.fromkeys(channels, ""), 2, 3, False, calls=3, cut=cut)
        if agent == protocol.verifier_name and chance.random() < 0.3:
            return Reply("Decision", None, chance.randrange(2), bad, cut, bad + 1, cut)
        return Reply("text", dict.fromkeys(channels, "text"), 2, bad, cut, bad + 1, cut)

    game = play(protocol, seed=chance.randrange(10), label=chance.randrange(2), prover_stance=1)
    try:
        turn = next(game)
        while True:
            replies = {agent: reply(agent, channels) for agent, channels in turn.speakers.items()}
            said.extend(replies.items())
            turn = game.send(replies)
    except StopIteration as end:
        return end.value, said


def rollout(index: int, played: FinishedGame) -> Rollout:
    outcome = Outcome.DECIDED if played.decided else Outcome.NO_DECISION
    job = Job(index, str(index), Datapoint(f"p{index % 7}", index % 2, {}), 0, 0)
    return Rollout(job, played.rounds, played.decision, outcome, None, {})


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "nip": {"max_message_rounds": 5, "min_message_rounds": 3},
    "debate": {"sequential": True, "max_message_rounds": 7},
    "mnip": {"max_message_rounds": 4},
}


@pytest.mark.parametrize("name", ONE_VERIFIER)
def test_shares_are_those_counted_row_by_row(name: str) -> None:
    protocol, chance = load_protocol(name, VARIANTS.get(name)), random.Random(name)
    games = [random_game(protocol, chance) for _ in range(GAMES)]
    metrics = Metrics(protocol)
    for index, (played, _) in enumerate(games):
        metrics.add(rollout(index, played))
    assert {played.decided for played, _ in games} == {True, False}
    ours = {(row.agent, row.metric): row.value for row in metrics.estimates()}
    originals = metrics.original_statistics()
    for column, agent in enumerate(protocol.agent_names):

        def rows(key: str, column: int = column) -> Iterator[float]:
            for played, _ in games:
                steps = timesteps(protocol, played.rounds)
                yield from steps["agents", key][~steps["done"], column].tolist()

        assert originals[f"{agent}.retry_proportion"] == pytest.approx(fmean(rows("retry_count")))
        assert originals[f"{agent}.token_limit_proportion"] == pytest.approx(fmean(rows("token_limit")))
        assert ours[agent, "retries_per_round"] == originals[f"{agent}.retry_proportion"]
        replies = [reply for _, said in games for speaker, reply in said if speaker == agent]
        assert ours[agent, "calls_per_message"] == pytest.approx(fmean(reply.calls for reply in replies))
        assert ours[agent, "token_limit_proportion"] == pytest.approx(fmean(reply.cut for reply in replies))


@pytest.mark.parametrize(("name", "rounds"), [("solo_verifier", 2), ("nip", 8)])
def test_attempts_that_run_out_count_as_the_calls_that_they_were(name: str, rounds: int) -> None:
    protocol = load_protocol(name)
    calls: list[str] = []

    async def cut_off(request: Request) -> Completion:
        calls.append(request.sample.agent)
        return Completion((Choice("Decision: I am not", "length"),), "scripted")

    agent = make_agent(protocol, "verifier", attempts=3)
    game = play(protocol, seed=0, label=1, prover_stance=1)
    metrics = Metrics(protocol)
    try:
        turn = next(game)
        while True:
            asked = Job(0, "0", Datapoint("p", 1, {}), 0, 0).observation(turn.round, turn.rounds)
            others = {speaker: Reply("!", {"main": "!"}) for speaker in turn.speakers if speaker != "verifier"}
            own = {"verifier": asyncio.run(agent.respond(asked, cut_off))} if "verifier" in turn.speakers else {}
            turn = game.send({**own, **others})
    except StopIteration as end:
        metrics.add(rollout(0, end.value))
    found = {row.metric: row for row in metrics.estimates() if row.agent == "verifier"}
    turns = protocol.max_verifier_questions
    assert len(calls) == 3 * turns
    assert found["calls_per_message"].value == 3.0
    assert found["token_limit_proportion"].value == 1.0
    assert found["retries_per_round"].value == 3 * turns / rounds > 1
    assert all((row.value or 0) <= 1 for row in metrics.estimates() if row.metric.endswith("proportion"))
    originals = metrics.original_statistics()
    assert originals["verifier.retry_proportion"] == 3 * turns / rounds
    assert originals["verifier.token_limit_proportion"] == 0.0
