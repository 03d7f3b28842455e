"""Shares of the original implementation next to ours, recounted row by row from random games."""

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


def play_random_game(protocol: Protocol, rng: random.Random) -> tuple[FinishedGame, list[tuple[str, Reply]]]:
    """Return a game of random replies and the replies; some speakers run out of attempts."""
    sent_replies: list[tuple[str, Reply]] = []

    def reply(agent: str, channels: tuple[str, ...]) -> Reply:
        bad, cut = rng.randrange(3), rng.random() < 0.3
        if rng.random() < 0.2:
            return Reply("?", dict.fromkeys(channels, ""), 2, 3, False, calls=3, cut=cut)
        if agent == protocol.verifier_name and rng.random() < 0.3:
            return Reply("Decision", None, rng.randrange(2), bad, cut, bad + 1, cut)
        return Reply("text", dict.fromkeys(channels, "text"), 2, bad, cut, bad + 1, cut)

    game = play(protocol, seed=rng.randrange(10), label=rng.randrange(2), prover_stance=1)
    try:
        turn = next(game)
        while True:
            replies = {agent: reply(agent, channels) for agent, channels in turn.speakers.items()}
            sent_replies.extend(replies.items())
            turn = game.send(replies)
    except StopIteration as end:
        return end.value, sent_replies


def make_rollout(index: int, game: FinishedGame) -> Rollout:
    outcome = Outcome.DECIDED if game.decided else Outcome.NO_DECISION
    job = Job(index, str(index), Datapoint(f"p{index % 7}", index % 2, {}), 0, 0)
    return Rollout(job, game.rounds, game.decision, outcome, None, {})


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "nip": {"max_message_rounds": 5, "min_message_rounds": 3},
    "debate": {"sequential": True, "max_message_rounds": 7},
    "mnip": {"max_message_rounds": 4},
}


@pytest.mark.parametrize("name", ONE_VERIFIER)
def test_shares_equal_those_counted_row_by_row(name: str) -> None:
    protocol, rng = load_protocol(name, VARIANTS.get(name)), random.Random(name)
    games = [play_random_game(protocol, rng) for _ in range(GAMES)]
    metrics = Metrics(protocol)
    for index, (game, _) in enumerate(games):
        metrics.add(make_rollout(index, game))
    assert {game.decided for game, _ in games} == {True, False}
    estimates = {(row.agent, row.metric): row.value for row in metrics.estimates()}
    originals = metrics.original_statistics()
    for column, agent in enumerate(protocol.agent_names):

        def rows(key: str, column: int = column) -> Iterator[float]:
            for game, _ in games:
                steps = timesteps(protocol, game.rounds)
                yield from steps["agents", key][~steps["done"], column].tolist()

        assert originals[f"{agent}.retry_proportion"] == pytest.approx(fmean(rows("retry_count")))
        assert originals[f"{agent}.token_limit_proportion"] == pytest.approx(fmean(rows("token_limit")))
        assert estimates[agent, "retries_per_round"] == originals[f"{agent}.retry_proportion"]
        replies = [reply for _, sent_replies in games for speaker, reply in sent_replies if speaker == agent]
        assert estimates[agent, "calls_per_message"] == pytest.approx(fmean(reply.calls for reply in replies))
        assert estimates[agent, "token_limit_proportion"] == pytest.approx(fmean(reply.cut for reply in replies))


@pytest.mark.parametrize(("name", "rounds"), [("solo_verifier", 2), ("nip", 8)])
def test_exhausted_attempts_count_as_calls(name: str, rounds: int) -> None:
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
            observation = Job(0, "0", Datapoint("p", 1, {}), 0, 0).observation(turn.round, turn.rounds)
            other_replies = {speaker: Reply("!", {"main": "!"}) for speaker in turn.speakers if speaker != "verifier"}
            verifier_replies = (
                {"verifier": asyncio.run(agent.respond(observation, cut_off))} if "verifier" in turn.speakers else {}
            )
            turn = game.send({**verifier_replies, **other_replies})
    except StopIteration as end:
        metrics.add(make_rollout(0, end.value))
    estimates = {row.metric: row for row in metrics.estimates() if row.agent == "verifier"}
    turns = protocol.max_verifier_questions
    assert len(calls) == 3 * turns
    assert estimates["calls_per_message"].value == 3.0
    assert estimates["token_limit_proportion"].value == 1.0
    assert estimates["retries_per_round"].value == 3 * turns / rounds > 1
    assert all((row.value or 0) <= 1 for row in metrics.estimates() if row.metric.endswith("proportion"))
    originals = metrics.original_statistics()
    assert originals["verifier.retry_proportion"] == 3 * turns / rounds
    assert originals["verifier.token_limit_proportion"] == 0.0
