"""The duration model: each limit follows its own law, and the lowest limit counts."""

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
INSTANT_GAMES = replace(GAMES, wait_seconds=0.0, longest_wait_seconds=0.0, seconds_per_call=0.0)
COSTS = TimeCosts(core_seconds_per_call=1e-3, start_seconds=1.0, end_seconds=2.0, end_seconds_per_call=1e-5)
CAPACITY = RunCapacity(100, {}, cores=8)


def test_slow_servers_are_limited_by_concurrent_calls() -> None:
    prediction = predict(GAMES, replace(COSTS, core_seconds_per_call=1e-7), CAPACITY)
    assert prediction.bounds[0].name == SERVERS
    assert prediction.bounds[0].calls_per_second == pytest.approx(100 / 0.2)
    assert prediction.game_seconds == pytest.approx(50_000 / 500)
    assert prediction.other_seconds == pytest.approx(3.0 + 50_000 * 1e-5)


def test_instant_answers_are_limited_by_one_core() -> None:
    prediction = predict(INSTANT_GAMES, COSTS, CAPACITY)
    assert prediction.bounds[0].name == ONE_PROCESS
    assert prediction.game_seconds == pytest.approx(50.0)


def test_concurrent_speakers_of_a_round_do_not_raise_the_call_rate() -> None:
    """A game with two provers and five rounds waits five times but makes ten calls."""
    both = replace(GAMES, usage_by_group={"m": GroupUsage(10, 1000, 200)})
    free = replace(COSTS, core_seconds_per_call=1e-7)
    single, double = predict(GAMES, free, CAPACITY), predict(both, free, CAPACITY)
    assert double.bounds[0].calls_per_second == pytest.approx(single.bounds[0].calls_per_second)


@pytest.mark.parametrize(
    ("rate", "seconds"),
    [(Rate(requests=600.0), (50_000 - 55) / 10), (Rate(tokens=600_000.0), (12_000_000 - 55_000) / 10_000)],
)
def test_a_rate_limits_all_calls_after_the_burst(rate: Rate, seconds: float) -> None:
    prediction = predict(GAMES, COSTS, replace(CAPACITY, rates={"m": rate}))
    assert prediction.bounds[0].name == RATE
    assert prediction.game_seconds == pytest.approx(seconds)


def test_calls_within_the_burst_and_unused_groups_have_no_rate_limit() -> None:
    few = replace(GAMES, game_count=10)
    rates = {"m": Rate(requests=600.0), "other": Rate(requests=1.0)}
    assert RATE not in {bound.name for bound in predict(few, COSTS, replace(CAPACITY, rates=rates)).bounds}


def test_workers_are_limited_by_cores_and_finally_by_the_writer() -> None:
    costs = replace(COSTS, parallel_seconds_per_call=5e-4, writer_seconds_per_call=2e-4)
    few = predict(INSTANT_GAMES, costs, replace(CAPACITY, workers=2))
    many = predict(
        INSTANT_GAMES, replace(costs, parallel_seconds_per_call=1e-4), replace(CAPACITY, workers=64, cores=64)
    )
    speeds = [
        [(bound.name, round(bound.calls_per_second)) for bound in prediction.bounds] for prediction in (few, many)
    ]
    assert speeds[0] == [(WORKER_CORES, 2000), (WRITER, 5000)]
    assert speeds[1] == [(WRITER, 5000), (WORKER_CORES, 10_000)]
    assert many.game_seconds == pytest.approx(10.0)


def test_shards_divide_games_slots_and_rates_and_add_a_merge() -> None:
    limited = replace(CAPACITY, rates={"m": Rate(requests=6000.0)}, shards=4)
    costs = replace(COSTS, merge_seconds_per_call=1e-4)
    sharded, unsharded = predict(GAMES, costs, limited), predict(GAMES, costs, replace(limited, shards=1))
    assert sharded.game_seconds == pytest.approx(
        unsharded.game_seconds, rel=0.01
    )  # each of four shards has a quarter of the rate
    assert sharded.other_seconds == pytest.approx(
        3.0 + 12_500 * 1e-5 + 50_000 * 1e-4
    )  # the last shard merges all calls
    assert unsharded.other_seconds == pytest.approx(3.0 + 50_000 * 1e-5)
    shared = predict(INSTANT_GAMES, costs, replace(CAPACITY, shards=4))
    assert shared.game_seconds == pytest.approx(12.5)
    assert shared.bounds[0].calls_per_second == pytest.approx(4000)
    assert shared.total_calls == 50_000


def test_few_games_take_as_long_as_the_longest_game() -> None:
    prediction = predict(replace(GAMES, game_count=50, longest_wait_seconds=9.0), COSTS, CAPACITY)
    assert prediction.game_seconds == pytest.approx(9.0)
    assert prediction.bounds[0].name == LONGEST


def test_unknown_server_times_limit_nothing() -> None:
    unknown = replace(GAMES, wait_seconds=None, longest_wait_seconds=None, seconds_per_call=None)
    assert [bound.name for bound in predict(unknown, COSTS, CAPACITY).bounds] == [ONE_PROCESS]


DAY = 86_400.0


@pytest.mark.parametrize("games", [12, 1_000, 50_000_000])
@pytest.mark.parametrize("capacity", [CAPACITY, replace(CAPACITY, rates={"m": Rate(requests=60_000.0)}, shards=3)])
@pytest.mark.parametrize(
    "planned_games", [GAMES, replace(GAMES, longest_wait_seconds=None, wait_seconds=None, seconds_per_call=None)]
)
def test_the_games_within_a_day_do_not_depend_on_the_planned_number_of_games(
    games: int, capacity: RunCapacity, planned_games: PlannedGames
) -> None:
    """Start, end and merge take time once, not for each game."""
    costs = replace(COSTS, start_seconds=600.0, merge_seconds_per_call=1e-4)
    max_games = count_games_within(DAY, replace(planned_games, game_count=games), costs, capacity)
    assert predict(replace(planned_games, game_count=max_games), costs, capacity).seconds == pytest.approx(
        DAY, rel=2e-3
    )


def test_a_run_whose_start_takes_longer_than_a_day_has_time_for_no_game() -> None:
    assert count_games_within(DAY, GAMES, replace(COSTS, start_seconds=2 * DAY), CAPACITY) == 0
    assert count_games_within(DAY, GAMES, replace(COSTS, core_seconds_per_call=2 * DAY / 3 / 5), CAPACITY) == 1
