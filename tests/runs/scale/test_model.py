"""The model of durations: each limit by itself is the law that it is named for, and the lowest limit counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.runs.planning.duration_model import (
    LONGEST,
    ONE_PROCESS,
    RATE,
    SERVERS,
    WORKER_CORES,
    WRITER,
    GroupUsage,
    PlannedGames,
    Rate,
    RunCapacity,
    TimeCosts,
    count_games_within,
    predict,
)

GAMES = PlannedGames(
    10_000, {"m": GroupUsage(5, 1000, 200)}, steps=5, wait_seconds=1.0, longest_wait_seconds=1.0, seconds_per_call=0.2
)
DRAWN = replace(GAMES, wait_seconds=0.0, longest_wait_seconds=0.0, seconds_per_call=0.0)
COSTS = TimeCosts(core_seconds_per_call=1e-3, start_seconds=1.0, end_seconds=2.0, end_seconds_per_call=1e-5)
PLAYERS = RunCapacity(100, {}, cores=8)


def test_slow_servers_are_bound_by_how_many_calls_wait_at_once() -> None:
    found = predict(GAMES, replace(COSTS, core_seconds_per_call=1e-7), PLAYERS)
    assert found.bounds[0].name == SERVERS
    assert found.bounds[0].calls_per_second == pytest.approx(100 / 0.2)
    assert found.game_seconds == pytest.approx(50_000 / 500)
    assert found.other_seconds == pytest.approx(3.0 + 50_000 * 1e-5)


def test_a_core_is_the_bound_of_what_is_answered_at_once() -> None:
    found = predict(DRAWN, COSTS, PLAYERS)
    assert found.bounds[0].name == ONE_PROCESS
    assert found.game_seconds == pytest.approx(50.0)


def test_speakers_of_a_round_are_asked_at_once_and_no_more_calls_than_games_wait() -> None:
    """Two provers in each of five rounds: a game waits five times, and its calls are ten."""
    both = replace(GAMES, usage_by_group={"m": GroupUsage(10, 1000, 200)})
    free = replace(COSTS, core_seconds_per_call=1e-7)
    one, two = predict(GAMES, free, PLAYERS), predict(both, free, PLAYERS)
    assert two.bounds[0].calls_per_second == pytest.approx(one.bounds[0].calls_per_second)


@pytest.mark.parametrize(
    ("rate", "seconds"),
    [(Rate(requests=600.0), (50_000 - 55) / 10), (Rate(tokens=600_000.0), (12_000_000 - 55_000) / 10_000)],
)
def test_a_rate_is_the_bound_but_for_what_may_be_used_at_once(rate: Rate, seconds: float) -> None:
    found = predict(GAMES, COSTS, replace(PLAYERS, rates={"m": rate}))
    assert found.bounds[0].name == RATE
    assert found.game_seconds == pytest.approx(seconds)


def test_what_fits_in_the_burst_is_no_bound_and_a_group_that_is_not_asked_has_none() -> None:
    few = replace(GAMES, game_count=10)
    rates = {"m": Rate(requests=600.0), "other": Rate(requests=1.0)}
    assert RATE not in {one.name for one in predict(few, COSTS, replace(PLAYERS, rates=rates)).bounds}


def test_workers_are_bound_by_all_cores_and_at_last_by_their_writer() -> None:
    costs = replace(COSTS, parallel_seconds_per_call=5e-4, writer_seconds_per_call=2e-4)
    few = predict(DRAWN, costs, replace(PLAYERS, workers=2))
    many = predict(DRAWN, replace(costs, parallel_seconds_per_call=1e-4), replace(PLAYERS, workers=64, cores=64))
    speeds = [[(bound.name, round(bound.calls_per_second)) for bound in found.bounds] for found in (few, many)]
    assert speeds[0] == [(WORKER_CORES, 2000), (WRITER, 5000)]
    assert speeds[1] == [(WRITER, 5000), (WORKER_CORES, 10_000)]
    assert many.game_seconds == pytest.approx(10.0)


def test_shards_have_a_part_of_games_places_and_rates_and_are_merged() -> None:
    limited = replace(PLAYERS, rates={"m": Rate(requests=6000.0)}, shards=4)
    costs = replace(COSTS, merge_seconds_per_call=1e-4)
    found, whole = predict(GAMES, costs, limited), predict(GAMES, costs, replace(limited, shards=1))
    assert found.game_seconds == pytest.approx(
        whole.game_seconds, rel=0.01
    )  # four times as fast, by a quarter of the rate
    assert found.other_seconds == pytest.approx(3.0 + 12_500 * 1e-5 + 50_000 * 1e-4)  # the last shard merges all calls
    assert whole.other_seconds == pytest.approx(3.0 + 50_000 * 1e-5)
    shared = predict(DRAWN, costs, replace(PLAYERS, shards=4))
    assert shared.game_seconds == pytest.approx(12.5)
    assert shared.bounds[0].calls_per_second == pytest.approx(4000)
    assert shared.total_calls == 50_000


def test_few_games_take_as_long_as_the_longest() -> None:
    found = predict(replace(GAMES, game_count=50, longest_wait_seconds=9.0), COSTS, PLAYERS)
    assert found.game_seconds == pytest.approx(9.0)
    assert found.bounds[0].name == LONGEST


def test_what_is_not_known_of_servers_bounds_nothing() -> None:
    unknown = replace(GAMES, wait_seconds=None, longest_wait_seconds=None, seconds_per_call=None)
    assert [one.name for one in predict(unknown, COSTS, PLAYERS).bounds] == [ONE_PROCESS]


DAY = 86_400.0


@pytest.mark.parametrize("games", [12, 1_000, 50_000_000])
@pytest.mark.parametrize("players", [PLAYERS, replace(PLAYERS, rates={"m": Rate(requests=60_000.0)}, shards=3)])
@pytest.mark.parametrize(
    "what", [GAMES, replace(GAMES, longest_wait_seconds=None, wait_seconds=None, seconds_per_call=None)]
)
def test_what_fits_into_a_day_does_not_depend_on_how_many_games_are_planned(
    games: int, players: RunCapacity, what: PlannedGames
) -> None:
    """Start, end and the merge's are there once, and not with each game."""
    costs = replace(COSTS, start_seconds=600.0, merge_seconds_per_call=1e-4)
    most = count_games_within(DAY, replace(what, game_count=games), costs, players)
    assert predict(replace(what, game_count=most), costs, players).seconds == pytest.approx(DAY, rel=2e-3)


def test_what_takes_longer_than_a_day_by_itself_leaves_room_for_no_game() -> None:
    assert count_games_within(DAY, GAMES, replace(COSTS, start_seconds=2 * DAY), PLAYERS) == 0
    assert count_games_within(DAY, GAMES, replace(COSTS, core_seconds_per_call=2 * DAY / 3 / 5), PLAYERS) == 1
