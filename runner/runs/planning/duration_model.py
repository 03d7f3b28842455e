"""Predicts the duration of a run. Several limits bound the calls per second, and the lowest of them decides.

The limits are the provider's rate limits, the servers' latency, the CPU time on this machine, and the longest game. If
a run has workers, they play its games in parallel, and the main process, called the writer, writes its files.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.models.layers.limits import BURST, MINUTE

RATE, SERVERS, LONGEST = "provider's limit", "servers", "longest game"
ONE_PROCESS, WORKER_CORES, WRITER = "core", "cores", "writer"
"""The names of the limits, as users see them. `ONE_PROCESS` is the limit if one process plays all games. A run with
workers has the limits `WORKER_CORES` (the cores that the workers use) and `WRITER` (the core that the writer uses)."""

MAX_GAMES = 10**12
"""The largest number of games that `count_games_within` returns."""


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
    """The limits of requests and tokens per minute, for all servers of a model group together; None if unknown."""

    requests: float | None = None
    tokens: float | None = None


@dataclass(frozen=True)
class PlannedGames:
    """The games of a run: their number, and averages per game."""

    game_count: int
    """The number of games in the run."""
    usage_by_group: Mapping[str, GroupUsage]
    """The average calls and tokens per game, by model group."""
    steps: float
    """The number of steps of a game. A step is a group of concurrent calls, which start when the previous step ends."""
    wait_seconds: float | None
    """The seconds that a game waits for servers; None if unknown."""
    longest_wait_seconds: float | None
    """The seconds that the slowest game waits for servers; None if unknown."""
    seconds_per_call: float | None
    """The average seconds of one call; None if unknown."""

    @property
    def calls_per_game(self) -> float:
        return sum(use.calls for use in self.usage_by_group.values())

    @property
    def tokens_per_game(self) -> float:
        return sum(use.tokens for use in self.usage_by_group.values())


@dataclass(frozen=True)
class TimeCosts:
    """The seconds that the parts of a run take on this machine, without the time of servers."""

    core_seconds_per_call: float
    """The seconds that one core works per call, if one process plays everything."""
    start_seconds: float
    """The seconds from the start of the command to the first game."""
    end_seconds: float
    """The seconds after the last game that do not depend on the number of calls."""
    end_seconds_per_call: float
    """The further seconds after the last game, per call: for tables, metrics and the leaderboard."""
    parallel_seconds_per_call: float | None = None
    """The duration of the run per call, if workers use all cores at once; None if one process plays everything."""
    writer_seconds_per_call: float | None = None
    """The seconds that the writer's core works per call; None if one process plays everything."""
    merge_seconds_per_call: float = 0.0
    """The seconds per call to merge the shards of the run."""


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
    """The number of shards: parts of the run that are played on different machines and merged afterwards."""


@dataclass(frozen=True)
class Bound:
    """A limit, and the speed of the run if it were the only limit."""

    name: str
    calls_per_second: float
    detail: str = ""


@dataclass(frozen=True)
class Prediction:
    """The predicted duration of a run."""

    total_calls: float
    game_seconds: float
    """The seconds from the first game to the last."""
    other_seconds: float
    """The seconds before and after the games, including the merge of shards."""
    bounds: Sequence[Bound]
    """The limits, lowest first."""

    @property
    def seconds(self) -> float:
        return self.game_seconds + self.other_seconds


def predict(games: PlannedGames, costs: TimeCosts, capacity: RunCapacity) -> Prediction:
    """Predict the duration of a run. Each shard has its own machine, and one machine merges all shards."""
    shard_games = math.ceil(games.game_count / capacity.shards)
    concurrent_games = max(min(capacity.concurrency // capacity.shards, shard_games), 1)
    shard_calls, total_calls = shard_games * games.calls_per_game, games.game_count * games.calls_per_game
    bounds = [
        *_rate_bounds(games, capacity, shard_games),
        *_server_bound(games, concurrent_games),
        *_machine_bounds(costs, capacity),
    ]
    if games.longest_wait_seconds:
        bounds.append(Bound(LONGEST, shard_calls / games.longest_wait_seconds))
    bounds.sort(key=lambda bound: bound.calls_per_second)
    merge = costs.merge_seconds_per_call * total_calls if capacity.shards > 1 else 0.0
    return Prediction(
        total_calls,
        shard_calls / bounds[0].calls_per_second,
        costs.start_seconds + costs.end_seconds + costs.end_seconds_per_call * shard_calls + merge,
        [replace(bound, calls_per_second=bound.calls_per_second * capacity.shards) for bound in bounds],
    )


def count_games_within(seconds: float, games: PlannedGames, costs: TimeCosts, capacity: RunCapacity) -> int:
    """Return the number of such games that can be played within this time."""
    return bisect_right(
        range(1, MAX_GAMES),
        seconds,
        key=lambda count: predict(replace(games, game_count=count), costs, capacity).seconds,
    )


def _rate_bounds(games: PlannedGames, capacity: RunCapacity, shard_games: int) -> Iterator[Bound]:
    """Yield the bounds by rate limits. Each shard has an equal share of a limit.

    `BURST` is the share of a minute's limit that may be sent at once, in addition to the steady rate.
    """
    for group, rate in capacity.rates.items():
        usage = games.usage_by_group.get(group, GroupUsage(0, 0, 0))
        for unit, limit, amount in (("requests", rate.requests, usage.calls), ("tokens", rate.tokens, usage.tokens)):
            if limit is None:
                continue
            share, detail = limit / capacity.shards, f"{group}: {limit:,.0f} {unit} a minute"
            seconds = (shard_games * amount - share * BURST) / share * MINUTE
            if seconds > 0:
                yield Bound(RATE, shard_games * games.calls_per_game / seconds, detail)


def _server_bound(games: PlannedGames, concurrent_games: int) -> Iterator[Bound]:
    """Yield the bound by the servers' latency: by Little's law, calls in flight divided by the seconds of a call."""
    if not games.wait_seconds or not games.seconds_per_call:
        return
    concurrent_calls = games.calls_per_game / games.steps  # in one game
    seconds = max(games.wait_seconds / games.steps, games.seconds_per_call * concurrent_calls)
    detail = f"{concurrent_games} games at once, {games.seconds_per_call:.2f} s a call"
    yield Bound(SERVERS, concurrent_games * concurrent_calls / seconds, detail)


def _machine_bounds(costs: TimeCosts, capacity: RunCapacity) -> Iterator[Bound]:
    """Yield the bounds by the machine's cores."""
    if costs.parallel_seconds_per_call is None or costs.writer_seconds_per_call is None:
        yield Bound(ONE_PROCESS, 1 / costs.core_seconds_per_call, f"{1e3 * costs.core_seconds_per_call:.2f} ms a call")
        return
    used_cores = min(capacity.cores, capacity.workers)
    detail = f"{1e3 * costs.parallel_seconds_per_call * used_cores:.2f} ms a call on each of {used_cores}"
    yield Bound(WORKER_CORES, 1 / costs.parallel_seconds_per_call, detail)
    yield Bound(WRITER, 1 / costs.writer_seconds_per_call, f"{1e3 * costs.writer_seconds_per_call:.2f} ms a call")
