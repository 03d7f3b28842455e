"""Predicts the duration of a run. Each limit allows a number of calls per second, and the lowest number counts.

The writer is the main process of a run with workers. It writes the run's files.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.models.layers.limits import BURST, MINUTE

RATE, SERVERS, CORE, CORES, WRITER, LONGEST = "provider's limit", "servers", "core", "cores", "writer", "longest game"
"""The names of the limits, as users see them."""

MAX_GAMES = 10**12
"""The largest number of games that `games_within` returns."""


@dataclass(frozen=True)
class GroupUsage:
    """The average calls and tokens of one model group in a game."""

    calls: float
    prompt_tokens: float
    completion_tokens: float

    @property
    def tokens(self) -> float:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Rate:
    """The rate limits of a model group's servers per minute; None if unknown."""

    requests: float | None = None
    tokens: float | None = None


@dataclass(frozen=True)
class AverageGame:
    """The average game of a run."""

    game_count: int
    """The number of games in the run."""
    usage_by_group: Mapping[str, GroupUsage]
    """The calls and tokens of each model group in a game."""
    steps: float
    """The number of steps of a game. A step is a group of concurrent calls, which start when the previous step ends."""
    wait_seconds: float | None
    """The seconds that a game waits for servers; None if unknown."""
    longest_wait_seconds: float | None
    """The seconds that the slowest game waits for servers; None if unknown."""
    seconds_per_call: float | None
    """The average seconds of one call; None if unknown."""

    @property
    def calls(self) -> float:
        """The number of calls of a game."""
        return sum(use.calls for use in self.usage_by_group.values())

    @property
    def tokens(self) -> float:
        """The number of tokens of a game."""
        return sum(use.tokens for use in self.usage_by_group.values())


@dataclass(frozen=True)
class TimeCosts:
    """The seconds that the parts of a run take on this machine, without the time of servers."""

    core_per_call: float
    """The seconds of one core per call, if one process plays everything."""
    start: float
    """The seconds from the start of the command to the first game."""
    end: float
    """The seconds after the last game that do not depend on the number of calls."""
    end_per_call: float
    """The further seconds after the last game, per call: for tables, metrics and the leaderboard."""
    cores_per_call: float | None = None
    """The seconds per call if workers and their writer use all cores; None if one process plays everything."""
    writer_per_call: float | None = None
    """The seconds of the writer's core per call; None if one process plays everything."""
    merge_per_call: float = 0.0
    """The seconds of the merge of shards per call."""


@dataclass(frozen=True)
class RunCapacity:
    """The machines and limits of a run."""

    concurrency: int
    """The number of concurrent games."""
    rates: Mapping[str, Rate]
    """The rate limits by model group."""
    cores: int
    """The number of cores of each machine."""
    workers: int = 1
    shards: int = 1


@dataclass(frozen=True)
class Bound:
    """A limit, and the speed of the run if it were the only limit."""

    name: str
    calls_per_second: float
    detail: str = ""


@dataclass(frozen=True)
class Prediction:
    """The predicted duration of a run."""

    calls: float
    game_seconds: float
    """The seconds from the first game to the last."""
    other_seconds: float
    """The seconds before and after the games, including the merge of shards."""
    bounds: Sequence[Bound]
    """The limits, lowest first."""

    @property
    def seconds(self) -> float:
        return self.game_seconds + self.other_seconds


def predict(games: AverageGame, costs: TimeCosts, capacity: RunCapacity) -> Prediction:
    """Predict the duration of the games. Each shard has its own machine, and one machine merges all shards."""
    shard_games = math.ceil(games.game_count / capacity.shards)
    concurrent_games = max(min(capacity.concurrency // capacity.shards, shard_games), 1)
    calls, total_calls = shard_games * games.calls, games.game_count * games.calls
    bounds = [
        *_rate_bounds(games, capacity, shard_games),
        *_server_bound(games, concurrent_games),
        *_machine_bounds(costs, capacity),
    ]
    if games.longest_wait_seconds:
        bounds.append(Bound(LONGEST, calls / games.longest_wait_seconds))
    bounds.sort(key=lambda bound: bound.calls_per_second)
    merge = costs.merge_per_call * total_calls if capacity.shards > 1 else 0.0
    return Prediction(
        total_calls,
        calls / bounds[0].calls_per_second,
        costs.start + costs.end + costs.end_per_call * calls + merge,
        [replace(bound, calls_per_second=bound.calls_per_second * capacity.shards) for bound in bounds],
    )


def games_within(seconds: float, games: AverageGame, costs: TimeCosts, capacity: RunCapacity) -> int:
    """Return the number of average games that can be played within this time."""
    return bisect_right(
        range(1, MAX_GAMES),
        seconds,
        key=lambda count: predict(replace(games, game_count=count), costs, capacity).seconds,
    )


def _rate_bounds(games: AverageGame, capacity: RunCapacity, shard_games: int) -> Iterator[Bound]:
    """Yield the bounds by rate limits. Limits allow a burst of `BURST` minutes, and each shard has an equal share."""
    for group, rate in capacity.rates.items():
        use = games.usage_by_group.get(group, GroupUsage(0, 0, 0))
        for unit, limit, used in (("requests", rate.requests, use.calls), ("tokens", rate.tokens, use.tokens)):
            if limit is None:
                continue
            share = limit / capacity.shards
            seconds = (shard_games * used - share * BURST) / share * MINUTE
            if seconds > 0:
                yield Bound(RATE, shard_games * games.calls / seconds, f"{group}: {limit:,.0f} {unit} a minute")


def _server_bound(games: AverageGame, concurrent_games: int) -> Iterator[Bound]:
    """Yield the bound by the servers' latency: by Little's law, calls in flight divided by the seconds of a call."""
    if not games.wait_seconds or not games.seconds_per_call:
        return
    concurrent_calls = games.calls / games.steps  # in one game
    seconds = max(games.wait_seconds / games.steps, games.seconds_per_call * concurrent_calls)
    detail = f"{concurrent_games} games at once, {games.seconds_per_call:.2f} s a call"
    yield Bound(SERVERS, concurrent_games * concurrent_calls / seconds, detail)


def _machine_bounds(costs: TimeCosts, capacity: RunCapacity) -> Iterator[Bound]:
    """Yield the bounds by the machine's cores."""
    if costs.cores_per_call is None or costs.writer_per_call is None:
        yield Bound(CORE, 1 / costs.core_per_call, f"{1e3 * costs.core_per_call:.2f} ms a call")
        return
    used_cores = min(capacity.cores, capacity.workers)
    milliseconds = 1e3 * costs.cores_per_call * used_cores
    yield Bound(CORES, 1 / costs.cores_per_call, f"{milliseconds:.2f} ms a call on each of {used_cores}")
    yield Bound(WRITER, 1 / costs.writer_per_call, f"{1e3 * costs.writer_per_call:.2f} ms a call")
