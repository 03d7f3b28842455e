"""How long a run takes, from what was measured, and what bounds it; docs/scale.md says it in words.

A game waits for its server and for a core in turns, and so many games do so at once. That is a closed queueing network:
a delay, and a queue at each core or writer. Its throughput is that of mean value analysis, which is all the limits at
once: where servers are slow it is Little's law, where they are fast it is the core's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log2

from runner.models.layers.limits import BURST, MINUTE, START_SHARE


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
    """What a server allows a model group in a minute; None: nobody said."""

    requests: float | None = None
    tokens: float | None = None


@dataclass(frozen=True)
class MeanGames:
    """The games of a run, by the mean game."""

    games: int
    groups: Mapping[str, GroupUse]
    steps: float
    """Answers of a game that wait for each other."""
    waited: float | None
    """Seconds that a game waits for servers; None: not known."""
    longest: float | None
    """Seconds that the game waits which waits longest."""
    latency: float | None
    """Seconds of one call."""

    @property
    def calls(self) -> float:
        """Of a game."""
        return sum(use.calls for use in self.groups.values())

    @property
    def tokens(self) -> float:
        """Of a game."""
        return sum(use.tokens for use in self.groups.values())


@dataclass(frozen=True)
class Costs:
    """What a call takes of this machine, in seconds."""

    core: float
    """Of a core, where one process does it all."""
    worker: float | None
    """Of a core, in a worker; None where one process plays."""
    writer: float | None
    """Of the one writer's core."""
    together: float | None
    """Of the time of all workers and their writer, where just these played here; None where it follows from theirs."""
    begin: float
    """From the start of the command to the first game, by itself."""
    end: float
    """From the last game to the end, by itself."""
    end_call: float
    """And for each call: tables, metrics, leaderboard."""
    merge_once: float = 0.0
    """Where shards are merged, by itself."""
    merge: float = 0.0
    """And for each call."""
    far: float = 0.0
    """Seconds that each call waits for a writer that is far."""


@dataclass(frozen=True)
class Players:
    """What plays, and how much at once."""

    concurrency: int
    rates: Mapping[str, Rate]
    cores: int
    workers: int = 1
    shards: int = 1
    is_live: bool = True
    """Whether servers are asked, whose limit on calls grows to all that the concurrency allows."""
    are_apart: bool = False
    """Whether workers play for a writer also where there is one of them, as on Ray."""

    @property
    def by_one_process(self) -> bool:
        return self.workers == 1 and not self.are_apart


@dataclass(frozen=True)
class Bound:
    """One thing that bounds a run, and how fast it would be if it were the only one."""

    name: str
    calls_per_second: float
    detail: str = ""


@dataclass(frozen=True)
class Prediction:
    """How long a run takes."""

    calls: float
    tokens: float
    play: float
    """Seconds of play."""
    around: float
    """Seconds before and after."""
    merge: float
    bounds: Sequence[Bound]
    """From the one that bounds the run on."""

    @property
    def seconds(self) -> float:
        return self.play + self.around + self.merge


RATE, SERVERS, CORE, CORES, WRITER, LONGEST = "provider's limit", "servers", "core", "cores", "writer", "longest game"


def predicted(games: MeanGames, costs: Costs, players: Players) -> Prediction:
    """How long the games take; of shards, the largest, each on a machine of its own, and then their merge."""
    part = -(-games.games // players.shards)
    at_once = max(min(players.concurrency // players.shards, part), 1)
    calls = part * games.calls
    bounds = [
        *_rates(games, players, part),
        *_servers(games, at_once),
        *_machine(costs, players),
    ]
    limited = min((bound.calls_per_second for bound in bounds if bound.name == RATE), default=None)
    queued = _queued(games, costs, players, at_once)
    play = max(_played(games, part, at_once, queued, players), 0.0 if limited is None else calls / limited)
    if games.longest is not None and games.longest > 0:
        play = max(play, games.longest)
        bounds.append(Bound(LONGEST, calls / games.longest))
    whole = games.games * games.calls
    shards = [
        Bound(one.name, one.calls_per_second * players.shards, one.detail)
        for one in sorted(bounds, key=lambda one: one.calls_per_second)
    ]
    around = costs.begin + costs.end + costs.end_call * calls
    # The last shard merges before it ends: nothing is started for that, nor loaded again.
    merge = 0.0 if players.shards == 1 else costs.merge_once + costs.merge * whole
    return Prediction(whole, games.games * games.tokens, play, around, merge, shards)


def games_within(seconds: float, games: MeanGames, costs: Costs, players: Players) -> int:
    """How many games like these are played within this time, to three digits; 0 where not one is."""

    def fits(many: int) -> bool:
        return predicted(replace(games, games=many), costs, players).seconds <= seconds

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(low // 1000, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _rates(games: MeanGames, players: Players, part: int) -> list[Bound]:
    """What servers allow in a minute, of which `BURST` may be used at once; shards have a share of it."""
    bounds = []
    for group, rate in players.rates.items():
        use = games.groups.get(group)
        if use is None or use.calls <= 0:
            continue
        for what, most, used in (("requests", rate.requests, use.calls), ("tokens", rate.tokens, use.tokens)):
            if most is None or used <= 0:
                continue
            share = most / players.shards
            needed = part * used
            seconds = max(needed - share * BURST, 0.0) / share * MINUTE
            if seconds > 0:
                bounds.append(Bound(RATE, part * games.calls / seconds, f"{group}: {most:,.0f} {what} a minute"))
    return bounds


def _servers(games: MeanGames, at_once: int) -> list[Bound]:
    """Little's law: so many calls at once, each so long."""
    if not games.waited or not games.latency:
        return []
    delay = _delay(games)
    return [Bound(SERVERS, at_once * _together(games) / delay, f"{at_once} at once, {games.latency:.2f} s a call")]


def _together(games: MeanGames) -> float:
    """How many calls a game makes at once."""
    return games.calls / games.steps


def _delay(games: MeanGames) -> float:
    """Seconds that a step waits for servers, where no more calls are made at once than games are played."""
    assert games.waited is not None
    assert games.latency is not None
    return max(games.waited / games.steps, games.latency * _together(games))


def _machine(costs: Costs, players: Players) -> list[Bound]:
    if players.by_one_process:
        return [Bound(CORE, 1 / costs.core, f"{1e3 * costs.core:.2f} ms a call")]
    assert costs.worker is not None
    assert costs.writer is not None
    told = f"{1e3 * costs.worker:.2f} ms a call in a worker, {1e3 * costs.writer:.2f} ms in the writer"
    return [
        Bound(CORES, 1 / _spread(costs, players), f"{min(players.cores, players.workers + 1)} cores; {told}"),
        Bound(WRITER, 1 / costs.writer, f"{1e3 * costs.writer:.2f} ms a call"),
    ]


def _spread(costs: Costs, players: Players) -> float:
    """Seconds that a call takes of all cores together, the writer's beside those of the workers."""
    if costs.together is not None:
        return costs.together
    assert costs.worker is not None
    assert costs.writer is not None
    return max(costs.worker / players.workers, (costs.worker + costs.writer) / players.cores)


def _queued(games: MeanGames, costs: Costs, players: Players, at_once: int) -> float:
    """Calls a second, by mean value analysis, without rates."""
    together = _together(games)
    delay = _delay(games) + costs.far * max(1.0, together) if games.waited and games.latency else 0.0
    if players.by_one_process:
        demands = [costs.core * together]
    else:
        assert costs.writer is not None
        # Where there are fewer cores than processes, the writer's work is in that of the cores.
        own = [costs.writer * together] if players.workers < players.cores else []
        demands = [_spread(costs, players) * together, *own]
    return _throughput(at_once, delay, tuple(demands)) * together


@lru_cache(maxsize=8)
def _throughput(most: int, delay: float, demands: tuple[float, ...]) -> float:
    """Of a closed network with so many customers, which `games_within` asks for again and again."""
    waiting = [0.0] * len(demands)
    rate = 0.0
    for customers in range(1, most + 1):
        times = [demand * (1 + queue) for demand, queue in zip(demands, waiting, strict=True)]
        rate = customers / (delay + sum(times))
        waiting = [rate * one for one in times]
    return rate


def _played(games: MeanGames, part: int, at_once: int, queued: float, players: Players) -> float:
    """Seconds of play without rates: all calls at this rate, the limit's growth, and the end, when places are empty."""
    play = part * games.calls / queued
    if not games.waited or not games.latency or games.longest is None:
        return play
    if part <= at_once:
        return max(play, play * games.longest / games.waited)
    first = max(at_once // START_SHARE, min(at_once, 8)) if players.is_live else at_once
    grown = sum(games.latency * (1 - (first << step) / at_once) for step in range(int(log2(at_once / first))))
    return play + grown + games.waited / 2
