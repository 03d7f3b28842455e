"""How long a run takes by the model: each bound by itself is the law that it is named for, and the tightest holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.runs.planning.breaking_points import Room, breaks_of
from runner.runs.planning.duration_model import (
    CORE,
    CORES,
    LONGEST,
    RATE,
    SERVERS,
    WRITER,
    Costs,
    GroupUse,
    MeanGames,
    Players,
    Rate,
    games_within,
    predicted,
)

GAMES = MeanGames(10_000, {"m": GroupUse(5, 1000, 200)}, steps=5, waited=1.0, longest=1.0, latency=0.2)
DRAWN = replace(GAMES, waited=0.0, longest=0.0, latency=0.0)
COSTS = Costs(core=1e-3, worker=1e-3, writer=2e-4, together=None, begin=1.0, end=2.0, end_call=1e-5)
PLAYERS = Players(100, {}, cores=8)


def test_slow_servers_are_bound_by_how_many_calls_wait_at_once() -> None:
    found = predicted(GAMES, replace(COSTS, core=1e-7), PLAYERS)
    assert found.bounds[0].name == SERVERS
    assert found.bounds[0].calls_per_second == pytest.approx(100 / 0.2)
    assert found.play == pytest.approx(50_000 / 500 + 1.25 * 0.2 + 0.5, rel=1e-3)  # the limit's growth, and the end
    assert found.around == pytest.approx(3.0 + 50_000 * 1e-5)


def test_a_core_is_the_bound_of_what_is_answered_at_once() -> None:
    found = predicted(DRAWN, COSTS, PLAYERS)
    assert found.bounds[0].name == CORE
    assert found.play == pytest.approx(50.0)


def test_servers_and_a_core_that_are_as_fast_are_slower_together_than_either() -> None:
    even = replace(COSTS, core=0.2 / 100)
    assert 100.0 < predicted(GAMES, even, PLAYERS).play < 125.0


def test_speakers_of_a_round_are_asked_at_once_and_no_more_calls_than_games_wait() -> None:
    """Two provers in each of five rounds: a game waits five times, and its calls are ten."""
    both = replace(GAMES, groups={"m": GroupUse(10, 1000, 200)})
    free = replace(COSTS, core=1e-7)
    one, two = predicted(GAMES, free, PLAYERS), predicted(both, free, PLAYERS)
    assert two.bounds[0].calls_per_second == pytest.approx(one.bounds[0].calls_per_second)


@pytest.mark.parametrize(
    ("rate", "seconds"),
    [(Rate(requests=600.0), (50_000 - 55) / 10), (Rate(tokens=600_000.0), (12_000_000 - 55_000) / 10_000)],
)
def test_a_rate_is_the_bound_but_for_what_may_be_used_at_once(rate: Rate, seconds: float) -> None:
    found = predicted(GAMES, COSTS, replace(PLAYERS, rates={"m": rate}))
    assert found.bounds[0].name == RATE
    assert found.play == pytest.approx(seconds)


def test_what_fits_in_the_burst_is_no_bound_and_a_group_that_is_not_asked_has_none() -> None:
    few = replace(GAMES, games=10)
    rates = {"m": Rate(requests=600.0), "other": Rate(requests=1.0)}
    assert RATE not in {one.name for one in predicted(few, COSTS, replace(PLAYERS, rates=rates)).bounds}


def test_workers_are_bound_by_themselves_then_by_all_cores_and_at_last_by_their_writer() -> None:
    def by(workers: int, cores: int) -> tuple[str, int]:
        found = predicted(DRAWN, COSTS, replace(PLAYERS, workers=workers, cores=cores)).bounds[0]
        return found.name, round(found.calls_per_second)

    assert by(2, 8) == (CORES, 2000)
    assert by(2, 2) == (CORES, 1667)
    assert by(64, 64) == (WRITER, 5000)


def test_workers_that_were_measured_as_they_are_to_play_are_as_fast_as_that() -> None:
    players = replace(PLAYERS, workers=2, cores=2)
    assert predicted(DRAWN, replace(COSTS, together=8e-4), players).play == pytest.approx(40.0)


def test_a_writer_that_is_far_is_waited_for_with_each_call_and_one_worker_has_one_too() -> None:
    apart = replace(PLAYERS, are_apart=True)
    free = replace(COSTS, worker=1e-7, writer=1e-7)
    near, far = predicted(GAMES, free, apart), predicted(GAMES, replace(free, far=0.05), apart)
    assert near.play == pytest.approx(50_000 / (100 / 0.2), rel=0.01)
    assert far.play == pytest.approx(50_000 / (100 / 0.25), rel=0.01)
    assert {one.name for one in predicted(DRAWN, COSTS, apart).bounds} == {WRITER, CORES}


def test_shards_have_a_part_of_games_places_and_rates_and_are_merged() -> None:
    limited = replace(PLAYERS, rates={"m": Rate(requests=6000.0)}, shards=4)
    costs = replace(COSTS, merge_once=0.5, merge=1e-4)
    found, whole = predicted(GAMES, costs, limited), predicted(GAMES, costs, replace(limited, shards=1))
    assert found.play == pytest.approx(whole.play, rel=0.01)  # four times as fast, by a quarter of the rate
    assert found.merge == pytest.approx(0.5 + 50_000 * 1e-4)  # by a shard's process, which is there already
    assert whole.merge == 0
    shared = predicted(DRAWN, costs, replace(PLAYERS, shards=4))
    assert shared.play == pytest.approx(12.5)
    assert shared.bounds[0].calls_per_second == pytest.approx(4000)
    assert shared.calls == 50_000


def test_few_games_take_as_long_as_the_longest() -> None:
    found = predicted(replace(GAMES, games=50, longest=9.0), COSTS, PLAYERS)
    assert found.play == pytest.approx(9.0, rel=0.05)
    assert found.bounds[0].name == LONGEST


def test_what_is_not_known_of_servers_bounds_nothing() -> None:
    unknown = replace(GAMES, waited=None, longest=None, latency=None)
    assert [one.name for one in predicted(unknown, COSTS, PLAYERS).bounds] == [CORE]


def test_what_a_larger_run_comes_to_the_end_of_is_told_first_things_first() -> None:
    room = Room(
        games_a_day=864_000, disk_bytes=1e4, free_bytes=10**9, usd=0.01, budget_usd=20.0, calls=5, budget_calls=None,
        tokens=1200, budget_tokens=6_000_000,
    )  # fmt: skip
    found = {one.what: one.games for one in breaks_of(room)}
    assert [*found.values()] == [2000, 5000, 100_000, 864_000]
    assert [*found][:2] == ["budget.usd is used up", "budget.tokens is used up"]


DAY = 86_400.0


@pytest.mark.parametrize("games", [12, 1_000, 50_000_000])
@pytest.mark.parametrize("players", [PLAYERS, replace(PLAYERS, rates={"m": Rate(requests=60_000.0)}, shards=3)])
@pytest.mark.parametrize("what", [GAMES, replace(GAMES, longest=None, waited=None, latency=None)])
def test_what_fits_into_a_day_does_not_depend_on_how_many_games_are_planned(
    games: int, players: Players, what: MeanGames
) -> None:
    """Start, end and the merge's are there once, and not with each game."""
    costs = replace(COSTS, merge_once=600.0, merge=1e-4)
    most = games_within(DAY, replace(what, games=games), costs, players)
    assert predicted(replace(what, games=most), costs, players).seconds == pytest.approx(DAY, rel=2e-3)


def test_what_takes_longer_than_a_day_by_itself_leaves_room_for_no_game() -> None:
    assert games_within(DAY, GAMES, replace(COSTS, begin=2 * DAY), PLAYERS) == 0
    assert games_within(DAY, GAMES, replace(COSTS, core=2 * DAY / 3 / 5), PLAYERS) == 1
