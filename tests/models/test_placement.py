"""Placement of games on servers: games stay on one server, load is even, and a new server moves few games."""

from __future__ import annotations

import pytest

from runner.models.interface import SampleKey, session_id_of
from runner.models.layers.server_pool import MAX_LOAD, Placement

SERVERS = [f"http://gpu{number}/v1" for number in range(4)]


def make_sample(datapoint: int, repeat: int = 0, agent: str = "prover", round_: int = 0) -> SampleKey:
    return SampleKey(f"p{datapoint}", repeat, round_, agent, 0)


def is_up(_: int) -> bool:
    return True


def test_calls_of_an_agent_stay_on_one_server_during_a_game() -> None:
    placement = Placement(SERVERS)
    homes = {number: placement.home_of(make_sample(number), is_up) for number in range(200)}
    for round_ in range(1, 5):
        assert homes == {n: placement.home_of(make_sample(n, round_=round_), is_up) for n in homes}


@pytest.mark.parametrize("agent", ["prover", "verifier"])
def test_no_server_exceeds_its_share_of_each_agents_games(agent: str) -> None:
    placement = Placement(SERVERS)
    counts = [0] * len(SERVERS)
    for number in range(400):
        for player in ("prover", "verifier"):
            home = placement.home_of(make_sample(number // 8, number % 8, player), is_up)
            counts[home] += player == agent
        assert max(counts) < MAX_LOAD * (number + 1) / len(SERVERS) + 1


def test_added_server_takes_over_only_its_share_of_the_games() -> None:
    before, after = Placement(SERVERS), Placement([*SERVERS, "http://new/v1"])
    first_choices = [
        (before.preferred_order(make_sample(n))[0], after.preferred_order(make_sample(n))[0]) for n in range(2000)
    ]
    moved = [new_home for old_home, new_home in first_choices if old_home != new_home]
    assert set(moved) == {len(SERVERS)}
    assert 0.15 < len(moved) / len(first_choices) < 0.25


def test_repeats_of_a_datapoint_prefer_one_server() -> None:
    placement = Placement(SERVERS)
    assert len({tuple(placement.preferred_order(make_sample(7, repeat))) for repeat in range(20)}) == 1
    assert len({tuple(placement.preferred_order(make_sample(number))) for number in range(50)}) > 10


def test_new_game_starts_on_a_server_that_is_up_and_stays_there() -> None:
    placement = Placement(SERVERS)
    down_server = placement.preferred_order(make_sample(1))[0]
    home = placement.home_of(make_sample(1), lambda index: index != down_server)
    assert home == placement.preferred_order(make_sample(1))[1]
    assert placement.home_of(make_sample(1, round_=1), is_up) == home


def test_released_games_let_a_recovered_server_reach_its_share() -> None:
    placement = Placement(SERVERS[:2])
    for number in range(40):
        placement.home_of(make_sample(number), lambda index: index == 0)
    assert placement.home_of(make_sample(40), is_up) == 1
    for number in range(40):
        placement.release((f"p{number}", 0))
    counts = [0, 1]
    for number in range(100, 139):
        counts[placement.home_of(make_sample(number), is_up)] += 1
    assert max(counts) <= 21
    placement.release(("never asked", 0))


def test_session_id_is_unique_per_game_and_agent_and_reveals_neither() -> None:
    session_id = session_id_of(make_sample(1))
    assert session_id == session_id_of(make_sample(1, round_=3))
    assert (
        len(
            {
                session_id,
                session_id_of(make_sample(2)),
                session_id_of(make_sample(1, 1)),
                session_id_of(make_sample(1, agent="verifier")),
            }
        )
        == 4
    )
    assert len(session_id) == 32
    assert session_id_of(SampleKey("\ud800", 0, 0, "a", 0)), "half a pair of UTF-16 is a name, too"
