"""How long a run takes, from what was measured: each limit allows so many calls a second, and the lowest one counts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.models.layers.limits import BURST, MINUTE

RATE, SERVERS, CORE, CORES, WRITER, LONGEST = "provider's limit", "servers", "core", "cores", "writer", "longest game"
"""The names of limits."""

MOST_GAMES = 10**12


@dataclass(frozen=True)
class GroupUse:
    """What a mean game asks of one model group."""

    calls: float
    prompt_tokens: float
    completion_tokens: float

    @property
    def tokens(self) -> float:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Rate:
    """What a server allows a model group in a minute; None: not known."""

    requests: float | None = None
    tokens: float | None = None


@dataclass(frozen=True)
class MeanGames:
    """The games of a run, by their mean."""

    games: int
    groups: Mapping[str, GroupUse]
    steps: float
    """Answers of a game that wait for each other."""
    waited: float | None
    """Seconds that a game waits for servers; None: not known."""
    longest: float | None
    """Seconds that the slowest game waits for servers."""
    latency: float | None
    """Seconds of one call."""

    @property
    def calls(self) -> float:
        """Calls of a game."""
        return sum(use.calls for use in self.groups.values())

    @property
    def tokens(self) -> float:
        """Tokens of a game."""
        return sum(use.tokens for use in self.groups.values())


@dataclass(frozen=True)
class Costs:
    """What a call takes of this machine, in seconds."""

    core: float
    """Of one process that does everything."""
    begin: float
    """From the start of the command to the first game."""
    end: float
    """From the last game to the end, however many calls there are."""
    end_call: float
    """From the last game to the end, for each call: tables, metrics, leaderboard."""
    cores: float | None = None
    """Of all workers and their writer together, on all their cores; None: one process plays."""
    writer: float | None = None
    """Of the writer's core."""
    merge: float = 0.0
    """Of the merge of shards."""


@dataclass(frozen=True)
class Players:
    """What plays, and how much at once."""

    concurrency: int
    rates: Mapping[str, Rate]
    cores: int
    workers: int = 1
    shards: int = 1


@dataclass(frozen=True)
class Bound:
    """A limit, and how fast the run would be if it were the only one."""

    name: str
    calls_per_second: float
    detail: str = ""


@dataclass(frozen=True)
class Prediction:
    """How long a run takes."""

    calls: float
    play: float
    """Seconds from the first game to the last."""
    around: float
    """Seconds before and after, with the merge of shards."""
    bounds: Sequence[Bound]
    """All limits, the lowest first."""

    @property
    def seconds(self) -> float:
        return self.play + self.around


def predict(games: MeanGames, costs: Costs, players: Players) -> Prediction:
    """Predict how long the games take. Each shard has a machine of its own, and the last one merges them all."""
    part = -(-games.games // players.shards)
    at_once = max(min(players.concurrency // players.shards, part), 1)
    calls, whole = part * games.calls, games.games * games.calls
    bounds = [*_rates(games, players, part), *_servers(games, at_once), *_machine(costs, players)]
    if games.longest:
        bounds.append(Bound(LONGEST, calls / games.longest))
    bounds.sort(key=lambda bound: bound.calls_per_second)
    merge = costs.merge * whole if players.shards > 1 else 0.0
    return Prediction(
        whole,
        calls / bounds[0].calls_per_second,
        costs.begin + costs.end + costs.end_call * calls + merge,
        [replace(bound, calls_per_second=bound.calls_per_second * players.shards) for bound in bounds],
    )


def games_within(seconds: float, games: MeanGames, costs: Costs, players: Players) -> int:
    """Return how many games like these are played within this time."""
    return bisect_right(
        range(1, MOST_GAMES), seconds, key=lambda count: predict(replace(games, games=count), costs, players).seconds
    )


def _rates(games: MeanGames, players: Players, part: int) -> Iterator[Bound]:
    """Yield the rate limits of servers, which allow `BURST` of a minute at once; each shard has its share."""
    for group, rate in players.rates.items():
        use = games.groups.get(group, GroupUse(0, 0, 0))
        for unit, limit, used in (("requests", rate.requests, use.calls), ("tokens", rate.tokens, use.tokens)):
            if limit is None:
                continue
            share = limit / players.shards
            seconds = (part * used - share * BURST) / share * MINUTE
            if seconds > 0:
                yield Bound(RATE, part * games.calls / seconds, f"{group}: {limit:,.0f} {unit} a minute")


def _servers(games: MeanGames, at_once: int) -> Iterator[Bound]:
    """Yield the limit of servers by Little's law: the calls in flight over the seconds of a call."""
    if not games.waited or not games.latency:
        return
    together = games.calls / games.steps  # the calls that a game makes at once
    seconds = max(games.waited / games.steps, games.latency * together)
    yield Bound(SERVERS, at_once * together / seconds, f"{at_once} at once, {games.latency:.2f} s a call")


def _machine(costs: Costs, players: Players) -> Iterator[Bound]:
    if costs.cores is None or costs.writer is None:
        yield Bound(CORE, 1 / costs.core, f"{1e3 * costs.core:.2f} ms a call")
        return
    used = min(players.cores, players.workers)
    yield Bound(CORES, 1 / costs.cores, f"{1e3 * costs.cores * used:.2f} ms a call on each of {used}")
    yield Bound(WRITER, 1 / costs.writer, f"{1e3 * costs.writer:.2f} ms a call")
