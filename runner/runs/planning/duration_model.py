"""Models the duration of a run: each limit allows some number of calls per second, and the lowest one is decisive.

`duration` fills in the measurements and uses the predictions.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.models.layers.limits import BURST, MINUTE

RATE, SERVERS, CORE, CORES, WRITER, LONGEST = "provider's limit", "servers", "core", "cores", "writer", "longest game"
"""The names of the limits."""

MAX_GAMES = 10**12
"""The largest number of games that `games_within` returns."""


@dataclass(frozen=True)
class GroupUse:
    """The average use of one model group by a game."""

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
class MeanGames:
    """The average game of a run."""

    games: int
    """The number of games in the run."""
    groups: Mapping[str, GroupUse]
    """The use of each model group by a game."""
    steps: float
    """The number of calls of a game that must wait for each other."""
    waited: float | None
    """The seconds that a game waits for servers; None if unknown."""
    longest: float | None
    """The seconds that the slowest game waits for servers; None if unknown."""
    latency: float | None
    """The average seconds of one call; None if unknown."""

    @property
    def calls(self) -> float:
        """The number of calls of a game."""
        return sum(use.calls for use in self.groups.values())

    @property
    def tokens(self) -> float:
        """The number of tokens of a game."""
        return sum(use.tokens for use in self.groups.values())


@dataclass(frozen=True)
class Costs:
    """The time that a run takes on this machine, in seconds per call unless stated otherwise."""

    core: float
    """The time of one core if one process plays everything."""
    begin: float
    """The total time from the start of the command to the first game."""
    end: float
    """The part of the time after the last game that does not depend on the number of calls, in total."""
    end_call: float
    """The part of the time after the last game that grows with the calls: tables, metrics, leaderboard."""
    cores: float | None = None
    """The time if all workers and their writer use all cores; None if one process plays everything."""
    writer: float | None = None
    """The time of the writer's core; None if one process plays everything."""
    merge: float = 0.0
    """The time of the merge of shards."""


@dataclass(frozen=True)
class Players:
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
    play: float
    """The seconds from the first game to the last."""
    around: float
    """The seconds before and after the games, including the merge of shards."""
    bounds: Sequence[Bound]
    """The limits, lowest first."""

    @property
    def seconds(self) -> float:
        return self.play + self.around


def predict(games: MeanGames, costs: Costs, players: Players) -> Prediction:
    """Predict the duration of the games. Each shard has its own machine, and one machine merges all shards."""
    shard_games = math.ceil(games.games / players.shards)
    concurrent_games = max(min(players.concurrency // players.shards, shard_games), 1)
    calls, total_calls = shard_games * games.calls, games.games * games.calls
    bounds = [*_rates(games, players, shard_games), *_servers(games, concurrent_games), *_machine(costs, players)]
    if games.longest:
        bounds.append(Bound(LONGEST, calls / games.longest))
    bounds.sort(key=lambda bound: bound.calls_per_second)
    merge = costs.merge * total_calls if players.shards > 1 else 0.0
    return Prediction(
        total_calls,
        calls / bounds[0].calls_per_second,
        costs.begin + costs.end + costs.end_call * calls + merge,
        [replace(bound, calls_per_second=bound.calls_per_second * players.shards) for bound in bounds],
    )


def games_within(seconds: float, games: MeanGames, costs: Costs, players: Players) -> int:
    """Return the number of such games that can be played within this time."""
    return bisect_right(
        range(1, MAX_GAMES), seconds, key=lambda count: predict(replace(games, games=count), costs, players).seconds
    )


def _rates(games: MeanGames, players: Players, shard_games: int) -> Iterator[Bound]:
    """Yield the bounds by rate limits. Limits allow a burst of `BURST` minutes, and each shard has an equal share."""
    for group, rate in players.rates.items():
        use = games.groups.get(group, GroupUse(0, 0, 0))
        for unit, limit, used in (("requests", rate.requests, use.calls), ("tokens", rate.tokens, use.tokens)):
            if limit is None:
                continue
            share = limit / players.shards
            seconds = (shard_games * used - share * BURST) / share * MINUTE
            if seconds > 0:
                yield Bound(RATE, shard_games * games.calls / seconds, f"{group}: {limit:,.0f} {unit} a minute")


def _servers(games: MeanGames, concurrent_games: int) -> Iterator[Bound]:
    """Yield the bound by the servers' latency: by Little's law, calls in flight divided by the seconds of a call."""
    if not games.waited or not games.latency:
        return
    concurrent_calls = games.calls / games.steps  # in one game
    seconds = max(games.waited / games.steps, games.latency * concurrent_calls)
    detail = f"{concurrent_games} games at once, {games.latency:.2f} s a call"
    yield Bound(SERVERS, concurrent_games * concurrent_calls / seconds, detail)


def _machine(costs: Costs, players: Players) -> Iterator[Bound]:
    """Yield the bounds by the machine's cores."""
    if costs.cores is None or costs.writer is None:
        yield Bound(CORE, 1 / costs.core, f"{1e3 * costs.core:.2f} ms a call")
        return
    used_cores = min(players.cores, players.workers)
    yield Bound(CORES, 1 / costs.cores, f"{1e3 * costs.cores * used_cores:.2f} ms a call on each of {used_cores}")
    yield Bound(WRITER, 1 / costs.writer, f"{1e3 * costs.writer:.2f} ms a call")
