"""How long a plan's games take: what is known of them, what is measured here, and what follows from both."""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from runner.base.errors import Interrupted, UsageError
from runner.base.text import counted
from runner.models.interface import Usage
from runner.models.prices import price_of
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.estimate import estimates, total_cost
from runner.rollouts.plan import Plan
from runner.runs.execution.process import cores_here
from runner.runs.execution.spending import used_models
from runner.runs.planning.breaking_points import DAY, BreakingPoints, Room, breaks_of
from runner.runs.planning.calibration import SECONDS, CalibrationRun, scratch
from runner.runs.planning.duration_model import Bound, MeanGames, Players, Prediction, games_within, predicted
from runner.runs.planning.earlier_runs import EarlierRun, earlier_like, of_run
from runner.runs.planning.known_games import known_games, planned_words, rates_of
from runner.runs.planning.measurements import Measurements, Tell, measurements
from runner.runs.session.execution_check import check_engine
from runner.spec.datasets.shards import MAX_SHARDS
from runner.spec.experiment import MAX_PROCESSES, MAX_WORKERS

Pair = tuple[float, float]
"""From the shortest games to the longest."""

MOST_SECONDS = 3600.0

SLOW = 1.15
"""From so much on it is told that this machine does other things, too."""


@dataclass(frozen=True)
class PlayOptions:
    """What the games are to be played by."""

    workers: int = 1
    shards: int = 1
    cores: int | None = None
    """Of all machines that play a shard; None: those of this one."""
    like: str | None = None
    """The run whose games and servers these are like."""
    measure: float = SECONDS
    """For how many seconds each thing is measured, about."""
    start: float = 0.0
    """Seconds that it takes to load the program, the spec and its dataset."""


@dataclass(frozen=True)
class Duration:
    """How long a run takes, and what bounds it; pairs are from the shortest games to the longest."""

    games: int
    workers: int
    shards: int
    cores: int
    calls: Pair
    prompt_tokens: Pair
    completion_tokens: Pair
    seconds: Pair
    """From the command to its end; of shards, each on a machine like this one, with their merge."""
    calls_per_second: float
    """While games are played."""
    tokens_per_second: float
    bottleneck: str
    bounds: tuple[Bound, ...]
    """What bounds it, and how many calls a second each would allow, the tightest first."""
    servers_known: bool
    """Whether it is known how long servers take; else the run takes at least so long."""
    cost_usd: Pair | None
    journal_bytes: float
    table_bytes: float
    """Tables and fine-tune files."""
    free_bytes: int
    """On the disk where the results are."""
    memory_bytes: float
    """Of each process, the most that this one had while it measured."""
    breaks: tuple[BreakingPoints, ...]
    """What ends a run like this one, were it larger: the first first."""
    measured: tuple[str, ...]
    """What was measured, and where."""


def duration_of(plan: Plan, results: Results, asked: PlayOptions, tell: Tell = lambda _: None) -> Duration:
    """Say how long a plan's games take. Some of them are played by `dummy` for that, in a folder that is gone then.

    Raises:
        UsageError: what is asked is out of bounds, or not known of such a run; the run to be like is no such one; what
            is to play is not installed.
        RunError: nothing can be measured here, or a run's files are damaged.
    """
    _check(plan, asked)
    live = [name for name, settings in used_models(plan).items() if settings.called_live]
    earlier = earlier_like(plan, results, asked.like) if live or asked.like is not None else None
    try:
        found, played = _measured_here(plan, results, asked, tell, earlier)
    except Interrupted:
        raise Interrupted("interrupted while it measured; nothing was kept") from None
    known = known_games(plan, earlier)
    if played is not None:
        known = (played, played)
    cores = asked.cores or cores_here()
    players = Players(
        plan.spec.experiment.rollouts.concurrency, rates_of(plan, earlier), cores, asked.workers, asked.shards,
        is_live=bool(live), are_apart=plan.spec.experiment.execution.engine == "ray",
    )  # fmt: skip
    costs = found.costs(asked.start, asked.workers, cores)
    low, high = (predicted(games, costs, players) for games in known)
    games_a_day = games_within(DAY, known[1], costs, players)
    return _Told(plan, results, players, found, earlier, games_a_day).duration(known, (low, high))


def _measured_here(
    plan: Plan, results: Results, asked: PlayOptions, tell: Tell, earlier: EarlierRun | None
) -> tuple[Measurements, MeanGames | None]:
    """What is measured, and the games that were played for that where what they are like depends on nobody else."""
    live = [name for name, settings in used_models(plan).items() if settings.called_live]
    use = known_games(plan, earlier)[1].groups
    with scratch(results) as folder:
        calibration = CalibrationRun(plan, folder, planned_words(plan, earlier), asked.measure)
        found = measurements(
            calibration, folder, tell, workers=asked.workers, shards=asked.shards, live=live, use=use,
            latency=None if earlier is None else earlier.games.latency,
        )  # fmt: skip
        if live or earlier is not None:
            return found, None
        return found, replace(of_run(found.one.folder, plan).games, games=plan.size)


def _check(plan: Plan, asked: PlayOptions) -> None:
    for name in ("workers", "shards", "cores"):
        many = getattr(asked, name)
        if many is not None and many < 1:
            raise UsageError(f"--{name} is a number from 1 on, and not {many}")
    is_on_ray = plan.spec.experiment.execution.engine == "ray"
    key, most = ("workers", MAX_WORKERS) if is_on_ray else ("processes", MAX_PROCESSES)
    if asked.workers > most:
        other = "" if is_on_ray else f", and execution.workers {MAX_WORKERS:,} on Ray (execution.engine=ray)"
        raise UsageError(
            f"--workers {asked.workers}: execution.{key} takes {most:,} at most{other}; or plan --shards N"
        )
    if asked.shards > MAX_SHARDS:
        raise UsageError(f"--shards {asked.shards}: a run is played in {MAX_SHARDS:,} shards at most")
    if not 0 < asked.measure <= MOST_SECONDS:
        raise UsageError(f"--measure is a number of seconds up to {MOST_SECONDS:g}, and not {asked.measure:g}")
    if plan.shape is not None:
        raise UsageError("how long trees take is not known; leave out rollouts.num_responses_per_timestep")
    if plan.debates is not None:
        raise UsageError("how long it takes to judge another run's debates is not known; plan a run that plays")
    batched = [name for name, settings in used_models(plan).items() if settings.batched]
    if batched:
        raise UsageError(f"models.{batched[0]}.batch: how long a batch takes is the provider's choice; plan without")
    check_engine(plan.spec.experiment.execution, asks=True)
    groups = len({point.group for point in plan.spec.dataset.datapoints})
    if asked.shards > groups:
        raise UsageError(f"--shards {asked.shards}: the dataset has {counted(groups, 'group')} to be dealt")


@dataclass(frozen=True)
class _Told:
    """What is told of a prediction."""

    plan: Plan
    results: Results
    players: Players
    seen: Measurements
    earlier: EarlierRun | None
    games_a_day: int

    def duration(self, known: tuple[MeanGames, MeanGames], found: tuple[Prediction, Prediction]) -> Duration:
        low, high = found
        plan, seen, last = self.plan, self.seen, known[1]
        usd = _cost(plan, self.earlier)
        journal = seen.journal_bytes if self.earlier is None else self.earlier.journal_bytes or seen.journal_bytes
        free = shutil.disk_usage(self.results.disk).free
        budget = plan.spec.experiment.budget
        room = Room(
            games_a_day=self.games_a_day,
            disk_bytes=last.calls * (journal + seen.one.table_bytes),
            free_bytes=free, usd=None if usd is None else usd[1] / plan.size, budget_usd=budget.usd, calls=last.calls,
            budget_calls=budget.completions, tokens=last.tokens, budget_tokens=budget.tokens,
        )  # fmt: skip
        pace = high.calls / high.play
        return Duration(
            games=plan.size, workers=self.players.workers, shards=self.players.shards, cores=self.players.cores,
            calls=(low.calls, high.calls),
            prompt_tokens=_sums(known, "prompt_tokens"),
            completion_tokens=_sums(known, "completion_tokens"),
            seconds=(low.seconds, high.seconds),
            calls_per_second=pace,
            tokens_per_second=pace * last.tokens / last.calls,
            bottleneck=_bottleneck(high),
            bounds=tuple(high.bounds),
            servers_known=not self.players.is_live or last.waited is not None,
            cost_usd=usd,
            journal_bytes=high.calls * journal,
            table_bytes=high.calls * seen.one.table_bytes,
            free_bytes=free,
            memory_bytes=_most_memory(),
            breaks=breaks_of(room),
            measured=tuple(_measured(seen, self.earlier, self.players)),
        )  # fmt: skip


def _sums(known: tuple[MeanGames, MeanGames], name: str) -> Pair:
    low, high = (games.games * sum(getattr(use, name) for use in games.groups.values()) for games in known)
    return low, high


def _cost(plan: Plan, earlier: EarlierRun | None) -> Pair | None:
    """By the prices of models; where it is known what games ask, of just that."""
    if earlier is not None:
        prices = {name: price_of(settings) for name, settings in used_models(plan).items()}
        total = 0.0
        for name, use in earlier.games.groups.items():
            price = prices.get(name)
            if price is None:
                return None
            calls = use.calls or 1.0
            call = Usage(round(use.prompt_tokens / calls), round(use.completion_tokens / calls))
            total += price.cost_of(call) * calls
        return total * plan.size, total * plan.size
    rows = total_cost(estimates(plan))
    priced = [row.cost_usd for row in rows if row.cost_usd is not None]
    return None if len(priced) < len(rows) else (sum(low for low, _ in priced), sum(high for _, high in priced))


def _bottleneck(found: Prediction) -> str:
    if found.around > found.play:
        return "start and end"
    return found.bounds[0].name


def _measured(seen: Measurements, earlier: EarlierRun | None, players: Players) -> Iterator[str]:
    """What was measured, and where, in sentences."""
    if earlier is not None:
        flying = "" if earlier.in_flight is None else f", {earlier.in_flight:.0f} calls in flight on average"
        latency = earlier.games.latency or 0.0
        yield (
            f"games as in run {earlier.run_id}: {earlier.games.calls:.1f} calls each, {latency:.2f} s a call{flying}; "
            "servers that are asked more at once may take longer"
        )
    elif players.is_live:
        yield (
            "how long servers take is not known: no run of this protocol by these models is here. Play a few games "
            "(dataset.limit=20 --run-id pilot), and plan again with --like pilot"
        )
    busy = f"; it does other things, too, and each takes {seen.slowed:.1f} times its work" if seen.slowed > SLOW else ""
    yield f"on this machine, {counted(seen.one.games, 'game')} by dummy: {1e3 * seen.one.call:.2f} ms a call{busy}"
    if seen.live is not None:
        yield f"a server's answer on top, of {1e3 * seen.live.seconds:.2f} ms, at a server of this machine"
    if seen.far:
        yield f"a call by workers on Ray waits {1e3 * seen.far:.0f} ms on top for permits and the writer"
    if seen.workers is not None:
        on_ray = f" on Ray, which took {seen.workers.begin:.0f} s to begin" if players.are_apart else ""
        yield (
            f"{counted(seen.worked, 'worker')}{on_ray} and their writer, {counted(seen.workers.games, 'game')}: "
            f"{1e3 * seen.workers.call:.2f} ms a call, of which the writer worked {1e3 * seen.workers.call_cpu:.2f} ms"
        )


def _most_memory() -> float:
    """Bytes; the system counts in kilobytes, but for one."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most if sys.platform == "darwin" else most << 10)
