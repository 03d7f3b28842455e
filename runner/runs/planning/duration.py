"""How long a plan's games take: what is known of them, what is measured here, and what follows from both."""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
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
from runner.runs.planning.calibration import SECONDS, CalibrationRun, MeasuredRun, scratch
from runner.runs.planning.duration_model import (
    Bound,
    Costs,
    GroupUse,
    MeanGames,
    Players,
    Prediction,
    games_within,
    predict,
)
from runner.runs.planning.earlier_runs import EarlierRun, earlier_like, of_run
from runner.runs.planning.known_games import known_games, planned_words, rates_of
from runner.runs.planning.server_overhead import ServerOverhead, server_overhead
from runner.runs.session.execution_check import check_engine
from runner.spec.datasets.shards import MAX_SHARDS
from runner.spec.experiment import MAX_PROCESSES, MAX_WORKERS

Pair = tuple[float, float]
"""From the shortest games to the longest."""

Tell = Callable[[str], None]

DAY = 86400.0
MOST_SECONDS = 3600.0


@dataclass(frozen=True)
class PlayOptions:
    """What the games are to be played by."""

    workers: int = 1
    shards: int = 1
    cores: int | None = None
    """The cores of all machines that play a shard; None: those of this machine."""
    like: str | None = None
    """The run whose games and servers these are like."""
    measure: float = SECONDS
    """About how many seconds each measurement takes."""
    start: float = 0.0
    """Seconds that it takes to load the program, the spec and its dataset."""


@dataclass(frozen=True)
class BreakingPoints:
    """A limit that a larger run would reach."""

    what: str
    games: int
    """The number of games that reaches it."""
    do: str


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
    """From the command to its end. Shards each have a machine like this one, and are merged."""
    calls_per_second: float
    """While games are played."""
    tokens_per_second: float
    bottleneck: str
    bounds: tuple[Bound, ...]
    """All limits, and how many calls a second each would allow, the lowest first."""
    servers_known: bool
    """Whether it is known how long servers take; else the run takes at least so long."""
    cost_usd: Pair | None
    journal_bytes: float
    table_bytes: float
    """Tables and fine-tune files."""
    free_bytes: int
    """On the disk of the results."""
    memory_bytes: float
    """Of each process: the most that this one had while it measured."""
    breaks: tuple[BreakingPoints, ...]
    """The limits that a larger run would reach, the nearest first."""
    measured: tuple[str, ...]
    """What was measured, and where."""


@dataclass(frozen=True)
class _Measurements:
    first: MeasuredRun
    """A short run, to tell what each call takes at the end of a run from what is there once."""
    one: MeasuredRun
    """One process that plays."""
    workers: MeasuredRun | None
    worker_count: int
    server: ServerOverhead | None
    live_share: float
    """The share of calls that go to servers."""

    def costs(self, start: float, workers: int, cores: int) -> Costs:
        """Return what a call costs; `start` is the time that it took to load the spec."""
        played = self.workers or self.one
        server = 0.0 if self.server is None else self.server.seconds * self.live_share
        end_call = max((self.one.end - self.first.end) / (self.one.calls - self.first.calls), 0.0)
        costs = Costs(
            core=self.one.call + server,
            begin=start + played.begin,
            end=max(played.end - end_call * played.calls, 0.0),
            end_call=end_call,
            merge=self.one.call + end_call,  # a merge plays all games again, from the journal
        )
        if self.workers is None:
            return costs
        used = min(workers, cores)
        scale = min(self.worker_count, cores_here()) / used
        return replace(costs, cores=self.workers.call * scale + server / used, writer=self.workers.call_cpu)


def duration_of(plan: Plan, results: Results, asked: PlayOptions, tell: Tell = lambda _: None) -> Duration:
    """Predict how long a plan's games take. Some are played by `dummy` for that, in a folder that is deleted.

    Raises:
        UsageError: An option is out of range, or such a run cannot be predicted; `like` is no run like this one; what
            is to play is not installed.
        RunError: Nothing can be measured here, or the files of a run are damaged.
    """
    _check(plan, asked)
    live = [name for name, settings in used_models(plan).items() if settings.called_live]
    earlier = earlier_like(plan, results, asked.like) if live or asked.like is not None else None
    known = known_games(plan, earlier)
    try:
        with scratch(results) as folder:
            calibration = CalibrationRun(plan, folder, planned_words(plan, earlier), asked.measure)
            measured = _measure(calibration, asked.workers, live, known[1].groups, tell)
            if not live and earlier is None:  # then the games that were played are like those of the run
                played = replace(of_run(measured.one.folder, plan).games, games=plan.size)
                known = (played, played)
    except Interrupted:
        raise Interrupted("interrupted while it measured; nothing was kept") from None
    cores = asked.cores or cores_here()
    players = Players(
        plan.spec.experiment.rollouts.concurrency, rates_of(plan, earlier), cores, asked.workers, asked.shards
    )
    costs = measured.costs(asked.start, asked.workers, cores)
    low, high = (predict(games, costs, players) for games in known)
    journal = measured.one.journal_bytes if measured.server is None else measured.server.journal_bytes
    journal = journal if earlier is None else earlier.journal_bytes or journal
    usd, free, last = _cost(plan, earlier), shutil.disk_usage(results.disk).free, known[1]
    pace = high.bounds[0].calls_per_second
    disk = last.calls * (journal + measured.one.table_bytes)
    breaks = _breaks(plan, last, games_within(DAY, last, costs, players), free / disk, usd)
    return Duration(
        games=plan.size, workers=asked.workers, shards=asked.shards, cores=cores,
        calls=(low.calls, high.calls),
        prompt_tokens=_sums(known, "prompt_tokens"),
        completion_tokens=_sums(known, "completion_tokens"),
        seconds=(low.seconds, high.seconds),
        calls_per_second=pace,
        tokens_per_second=pace * last.tokens / last.calls,
        bottleneck=_bottleneck(high),
        bounds=tuple(high.bounds),
        servers_known=not live or last.waited is not None,
        cost_usd=usd,
        journal_bytes=high.calls * journal,
        table_bytes=high.calls * measured.one.table_bytes,
        free_bytes=free,
        memory_bytes=_peak_memory(),
        breaks=breaks,
        measured=tuple(_describe(measured, earlier, is_live=bool(live))),
    )  # fmt: skip


def _measure(
    calibration: CalibrationRun, workers: int, live: list[str], use: Mapping[str, GroupUse], tell: Tell
) -> _Measurements:
    """Measure what the prediction needs; `live` are the groups that servers answer."""
    tell("measuring what a call costs here, with games of the provider dummy")
    one = calibration.play_one_process()
    worker_count, many = min(workers, max(cores_here(), 2)), None
    is_on_ray = calibration.plan.spec.experiment.execution.engine == "ray"
    if workers > 1 or is_on_ray:
        tell(f"measuring workers {'on Ray ' if is_on_ray else ''}and their writer")
        many = calibration.play_workers(worker_count, one.call)
    server, share = None, 0.0
    asked = {name: use[name] for name in live if name in use and use[name].calls > 0}
    if asked:
        tell("measuring what a server's answer costs on top")
        group = max(asked, key=lambda name: asked[name].calls)
        share = sum(one.calls for one in asked.values()) / sum(one.calls for one in use.values())
        server = server_overhead(
            calibration.plan, calibration.results, group, words=calibration.words[group],
            prompt_tokens=use[group].prompt_tokens / use[group].calls,
        )  # fmt: skip
    return _Measurements(calibration.first, one, many, worker_count, server, share)


def _check(plan: Plan, asked: PlayOptions) -> None:
    for name in ("workers", "shards", "cores"):
        count = getattr(asked, name)
        if count is not None and count < 1:
            raise UsageError(f"--{name} is a number from 1 on, and not {count}")
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


def _sums(known: tuple[MeanGames, MeanGames], name: str) -> Pair:
    low, high = (games.games * sum(getattr(use, name) for use in games.groups.values()) for games in known)
    return low, high


def _cost(plan: Plan, earlier: EarlierRun | None) -> Pair | None:
    """Return the cost of the run, by the calls of an earlier run if there is one; None if a price is not known."""
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


def _breaks(
    plan: Plan, games: MeanGames, games_a_day: int, games_on_disk: float, usd: Pair | None
) -> tuple[BreakingPoints, ...]:
    breaks = [
        BreakingPoints(
            "it takes more than a day", games_a_day,
            "more of what bounds it (above); shards on more machines, where that is cores or the writer",
        ),
        BreakingPoints(
            "the disk is full of journal, tables and fine-tune files", int(games_on_disk),
            "--results on a larger disk; shards, each on its own; fine_tune=null, and `nip-run export` afterwards",
        ),
    ]  # fmt: skip
    budget = plan.spec.experiment.budget
    for key, limit, each in (
        ("budget.usd", budget.usd, None if usd is None else usd[1] / plan.size),
        ("budget.completions", budget.completions, games.calls),
        ("budget.tokens", budget.tokens, games.tokens),
    ):
        if limit is not None and each:
            breaks.append(BreakingPoints(f"{key} is used up", int(limit / each), f"raise {key}, or play fewer games"))
    return tuple(sorted(breaks, key=lambda point: point.games))


def _bottleneck(prediction: Prediction) -> str:
    if prediction.around > prediction.play:
        return "start and end"
    return prediction.bounds[0].name


def _describe(measured: _Measurements, earlier: EarlierRun | None, *, is_live: bool) -> Iterator[str]:
    """Yield what was measured, and where, in sentences."""
    if earlier is not None:
        in_flight = "" if earlier.in_flight is None else f", {earlier.in_flight:.0f} calls in flight on average"
        latency = earlier.games.latency or 0.0
        yield (
            f"games as in run {earlier.run_id}: {earlier.games.calls:.1f} calls each, {latency:.2f} s a call{in_flight}"
            "; servers with more calls in flight may take longer"
        )
    elif is_live:
        yield (
            "how long servers take is not known: no run of this protocol by these models is here. Play a few games "
            "(dataset.limit=20 --run-id pilot), and plan again with --like pilot"
        )
    yield f"on this machine, {counted(measured.one.games, 'game')} by dummy: {1e3 * measured.one.call:.2f} ms a call"
    if measured.server is not None:
        yield f"{1e3 * measured.server.seconds:.2f} ms more for a server's answer, from a server on this machine"
    if measured.workers is not None:
        yield (
            f"{counted(measured.worker_count, 'worker')} and their writer, {counted(measured.workers.games, 'game')}: "
            f"first game after {measured.workers.begin:.1f} s, {1e3 * measured.workers.call:.2f} ms a call, of which "
            f"the writer used {1e3 * measured.workers.call_cpu:.2f} ms"
        )


def _peak_memory() -> float:
    """Return bytes. The system counts in kilobytes, except for macOS."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak << 10)
