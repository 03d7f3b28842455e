"""Forecasts the duration of a plan's games, from earlier runs and from measurements on this machine.

To measure, some of the games are played with the provider `dummy`, which generates answers without a model.
"""

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
from runner.rollouts.estimate import estimate_costs, sum_by_group
from runner.rollouts.plan import Plan, used_models
from runner.runs.execution.process import available_cores
from runner.runs.planning.calibration import SECONDS, CalibrationRun, MeasuredRun, temporary_results
from runner.runs.planning.duration_model import (
    Bound,
    GroupUsage,
    PlannedGames,
    RunCapacity,
    TimeCosts,
    count_games_within,
    predict,
)
from runner.runs.planning.earlier_runs import (
    EarlierRun,
    expected_games,
    find_similar_run,
    planned_words,
    rates_of,
    read_statistics,
)
from runner.runs.planning.server_overhead import ServerOverhead, measure_server_overhead
from runner.runs.session.execution_check import check_engine
from runner.spec.datasets.shards import MAX_SHARDS
from runner.spec.experiment import MAX_PROCESSES, MAX_WORKERS

Pair = tuple[float, float]
"""A value for the shortest possible games and for the longest ones."""

ReportStep = Callable[[str], None]
"""Called with a sentence about each step of the measurement before the step starts."""

DAY = 86400.0
MAX_MEASURE_SECONDS = 3600.0


@dataclass(frozen=True)
class ForecastOptions:
    """The machines and workers that a forecast assumes."""

    workers: int = 1
    shards: int = 1
    cores: int | None = None
    """The number of cores of each machine that plays a shard; None for the number of this machine."""
    similar_run: str | None = None
    """A finished run with similar games and servers; None to search for one."""
    measure_seconds: float = SECONDS
    """The approximate duration of each measurement in seconds."""
    load_seconds: float = 0.0
    """The seconds for loading the program, the spec and the dataset."""


@dataclass(frozen=True)
class BreakingPoint:
    """A limit that a larger run would reach. `--json` prints the names of the fields."""

    what: str
    """A description of the limit."""
    games: int
    """The number of games that reaches the limit."""
    do: str
    """Advice on how to play more games."""


@dataclass(frozen=True)
class Duration:
    """The forecast of a run's duration, and its limits. Pairs are for the shortest and the longest games."""

    games: int
    workers: int
    shards: int
    cores: int
    calls: Pair
    prompt_tokens: Pair
    completion_tokens: Pair
    seconds: Pair
    """The seconds from the start to the end of the command, including the merge of shards.

    Each shard is assumed to have its own machine.
    """
    calls_per_second: float
    """The rate of calls while games are played."""
    tokens_per_second: float
    bottleneck: str
    bounds: tuple[Bound, ...]
    """The limits, with the calls per second that each limit allows, lowest first."""
    servers_known: bool
    """Whether the servers' latency is known; if not, the forecast is a lower bound."""
    cost_usd: Pair | None
    journal_bytes: float
    table_bytes: float
    """The bytes of tables and fine-tune files."""
    free_bytes: int
    """The free bytes on the disk of the results."""
    memory_bytes: float
    """The bytes of memory of each process, estimated by the peak of this process during the measurement."""
    breaks: tuple[BreakingPoint, ...]
    """The limits that a larger run would reach, the nearest first."""
    measured: tuple[str, ...]
    """Sentences that describe the measurements."""


@dataclass(frozen=True)
class _Measurements:
    """The measurements for a forecast."""

    short_run: MeasuredRun
    """A short run in one process.

    A comparison with `one_process` shows how the time after the last game grows with the number of calls.
    """
    one_process: MeasuredRun
    """A longer run in one process."""
    with_workers: MeasuredRun | None
    """A run with workers; None if the forecast is for one process."""
    worker_count: int
    """The number of workers in `with_workers`."""
    server: ServerOverhead | None
    """The additional cost of a server's answer; None if no server is called."""
    live_share: float
    """The share of the calls that servers answer."""

    def time_costs(self, load_seconds: float, workers: int, cores: int) -> TimeCosts:
        """Return the time that a run takes on this machine; `load_seconds` is the time for loading the spec."""
        run, one_process = self.with_workers or self.one_process, self.one_process
        server = 0.0 if self.server is None else self.server.seconds * self.live_share
        more_calls = one_process.calls - self.short_run.calls
        more_seconds = one_process.seconds_after_games - self.short_run.seconds_after_games
        end_seconds_per_call = max(more_seconds / more_calls, 0.0)
        costs = TimeCosts(
            core_seconds_per_call=one_process.seconds_per_call + server,
            start_seconds=load_seconds + run.seconds_to_first_game,
            end_seconds=max(run.seconds_after_games - end_seconds_per_call * run.calls, 0.0),
            end_seconds_per_call=end_seconds_per_call,
            # A merge rebuilds all games from the journal.
            merge_seconds_per_call=one_process.seconds_per_call + end_seconds_per_call,
        )
        if self.with_workers is None:
            return costs
        used_cores = min(workers, cores)
        scale = min(self.worker_count, available_cores()) / used_cores  # the measurement used another number of cores
        parallel, writer = run.seconds_per_call * scale + server / used_cores, run.cpu_seconds_per_call
        return replace(costs, parallel_seconds_per_call=parallel, writer_seconds_per_call=writer)


def duration_of(
    plan: Plan, results: Results, options: ForecastOptions, report_step: ReportStep = lambda _: None
) -> Duration:
    """Play some of a plan's games with `dummy` in a temporary folder, and return a forecast for the whole plan.

    Raises:
        UsageError: an option is out of range, this kind of run cannot be predicted, `similar_run` is not similar, or
            an optional package is missing.
        RunError: the measurement fails, or the files of a run are damaged.
    """
    _check_options(plan, options)
    _check_plan(plan)
    live_groups = [name for name, settings in used_models(plan).items() if settings.sends_requests]
    similar_run = options.similar_run
    earlier = find_similar_run(plan, results, similar_run) if live_groups or similar_run is not None else None
    average_games = expected_games(plan, earlier)
    try:
        with temporary_results(results) as folder:
            calibration = CalibrationRun(plan, folder, planned_words(plan, earlier), options.measure_seconds)
            usage = average_games[1].usage_by_group
            measurements = _measure(calibration, options.workers, live_groups, usage, report_step)
            if not live_groups and earlier is None:  # the spec uses `dummy`, so the measured games are representative
                played = replace(read_statistics(measurements.one_process.folder, plan).games, game_count=plan.size)
                average_games = (played, played)
    except Interrupted:
        raise Interrupted("the measurement was interrupted; nothing was saved") from None
    free_bytes = shutil.disk_usage(results.disk).free
    return _build_forecast(
        plan, options, measurements, average_games, earlier, is_live=bool(live_groups), free_bytes=free_bytes
    )


def _journal_bytes_per_call(measurements: _Measurements, earlier: EarlierRun | None) -> float:
    """Return the bytes that a call adds to the journal: those of an earlier run or, without one, as measured."""
    if earlier is not None and earlier.journal_bytes:
        return earlier.journal_bytes
    server = measurements.server
    return measurements.one_process.journal_bytes_per_call if server is None else server.journal_bytes


def _build_forecast(
    plan: Plan,
    options: ForecastOptions,
    measurements: _Measurements,
    average_games: tuple[PlannedGames, PlannedGames],
    earlier: EarlierRun | None,
    *,
    is_live: bool,
    free_bytes: int,
) -> Duration:
    """Return the forecast. `average_games` are the shortest and the longest games; `is_live`: servers are called."""
    cores, longest = options.cores or available_cores(), average_games[1]
    concurrency = plan.spec.experiment.rollouts.concurrency
    capacity = RunCapacity(concurrency, rates_of(plan, earlier), cores, options.workers, options.shards)
    costs = measurements.time_costs(options.load_seconds, options.workers, cores)
    low, high = (predict(games, costs, capacity) for games in average_games)
    one_process, journal_bytes = measurements.one_process, _journal_bytes_per_call(measurements, earlier)
    cost_usd, calls_per_second = _estimate_cost(plan, earlier), high.bounds[0].calls_per_second
    games_on_disk = free_bytes / (longest.calls_per_game * (journal_bytes + one_process.table_bytes_per_call))
    games_a_day = count_games_within(DAY, longest, costs, capacity)
    return Duration(
        games=plan.size, workers=options.workers, shards=options.shards, cores=cores,
        calls=(low.total_calls, high.total_calls),
        prompt_tokens=_sum_of_groups(average_games, "prompt_tokens"),
        completion_tokens=_sum_of_groups(average_games, "completion_tokens"),
        seconds=(low.seconds, high.seconds),
        calls_per_second=calls_per_second,
        tokens_per_second=calls_per_second * longest.tokens_per_game / longest.calls_per_game,
        bottleneck="start and end" if high.other_seconds > high.game_seconds else high.bounds[0].name,
        bounds=tuple(high.bounds),
        servers_known=not is_live or longest.wait_seconds is not None,
        cost_usd=cost_usd,
        journal_bytes=high.total_calls * journal_bytes,
        table_bytes=high.total_calls * one_process.table_bytes_per_call,
        free_bytes=free_bytes,
        memory_bytes=_peak_memory(),
        breaks=_breaking_points(plan, longest, games_a_day, games_on_disk, cost_usd),
        measured=tuple(_describe_measurements(measurements, earlier, is_live=is_live)),
    )  # fmt: skip


def _measure(
    calibration: CalibrationRun, workers: int, groups: list[str], usage: Mapping[str, GroupUsage], report: ReportStep
) -> _Measurements:
    """Return the measurements for a forecast.

    `groups` are the model groups that call servers. `usage` is the expected usage of each group in a game.
    """
    report("measuring the time of a call on this machine, in games with the provider dummy")
    one_process = calibration.play_one_process()
    worker_count, with_workers = min(workers, max(available_cores(), 2)), None
    is_on_ray = calibration.plan.spec.experiment.execution.engine == "ray"
    if workers > 1 or is_on_ray:
        report(f"measuring workers {'on Ray ' if is_on_ray else ''}and their writer")
        with_workers = calibration.play_workers(worker_count, one_process.seconds_per_call)
    server, live_share = None, 0.0
    live_calls = {name: usage[name].calls for name in groups if name in usage and usage[name].calls > 0}
    if live_calls:
        report("measuring the additional time of an answer from a server")
        group = max(live_calls, key=lambda name: live_calls[name])
        live_share = sum(live_calls.values()) / sum(group_usage.calls for group_usage in usage.values())
        server = measure_server_overhead(
            calibration.plan, calibration.results, group, words=calibration.words[group],
            prompt_tokens=usage[group].prompt_tokens / usage[group].calls,
        )  # fmt: skip
    return _Measurements(calibration.short_run, one_process, with_workers, worker_count, server, live_share)


def _check_options(plan: Plan, options: ForecastOptions) -> None:
    """Check that the options are in range and possible for a plan.

    Raises:
        UsageError: an option is out of range, or the plan has fewer groups of datapoints than shards.
    """
    for name in ("workers", "shards", "cores"):
        count = getattr(options, name)
        if count is not None and count < 1:
            raise UsageError(f"--{name} must be at least 1, not {count}")
    is_on_ray = plan.spec.experiment.execution.engine == "ray"
    key, maximum = ("workers", MAX_WORKERS) if is_on_ray else ("processes", MAX_PROCESSES)
    if options.workers > maximum:
        alternative = "" if is_on_ray else f", and of execution.workers {MAX_WORKERS:,} on Ray (execution.engine=ray)"
        raise UsageError(
            f"--workers {options.workers}: the maximum of execution.{key} is {maximum:,}{alternative}; use fewer "
            "workers, or split the run with --shards N"
        )
    if options.shards > MAX_SHARDS:
        raise UsageError(f"--shards {options.shards}: the maximum is {MAX_SHARDS:,}; use fewer shards")
    if not 0 < options.measure_seconds <= MAX_MEASURE_SECONDS:
        seconds = f"{options.measure_seconds:g}"
        raise UsageError(
            f"--measure must be a number of seconds above 0 and up to {MAX_MEASURE_SECONDS:g}, not {seconds}"
        )
    groups = len({point.group for point in plan.spec.dataset.datapoints})
    if options.shards > groups:
        raise UsageError(
            f"--shards {options.shards}: the dataset has only {counted(groups, 'group')}, and a shard needs at least "
            f"one; use at most --shards {groups}"
        )


def _check_plan(plan: Plan) -> None:
    """Check that the duration of a plan can be predicted.

    Raises:
        UsageError: the plan has trees, debates to judge or batches, or the package of its engine is missing.
    """
    if plan.tree_shape is not None:
        raise UsageError(
            "cannot predict the duration of trees; plan without them: rollouts.num_responses_per_timestep=null"
        )
    if plan.debates is not None:
        raise UsageError(
            "cannot predict the duration of judging another run's debates; plan a spec that plays games (without "
            "rejudge)"
        )
    batched = [name for name, settings in used_models(plan).items() if settings.is_batched]
    if batched:
        raise UsageError(
            f"models.{batched[0]}.batch: the duration of a batch depends on the provider and cannot be predicted; plan "
            f"with models.{batched[0]}.batch=false"
        )
    check_engine(plan.spec.experiment.execution)


def _sum_of_groups(average_games: tuple[PlannedGames, PlannedGames], name: str) -> Pair:
    low, high = (
        games.game_count * sum(getattr(use, name) for use in games.usage_by_group.values()) for games in average_games
    )
    return low, high


def _estimate_cost(plan: Plan, earlier: EarlierRun | None) -> Pair | None:
    """Return the cost of the plan's run, estimated from the calls of an earlier run if given; None without prices."""
    if earlier is not None:
        groups, total = used_models(plan), 0.0
        for name, use in earlier.games.usage_by_group.items():
            price = price_of(groups[name]) if name in groups else None
            if price is None:
                return None
            calls, tier = use.calls or 1.0, groups[name].requested_tier
            call = Usage(round(use.prompt_tokens / calls), round(use.completion_tokens / calls), service_tier=tier)
            total += price.cost_of(call) * calls
        return total * plan.size, total * plan.size
    rows = sum_by_group(estimate_costs(plan))
    priced = [row.cost_usd for row in rows if row.cost_usd is not None]
    return None if len(priced) < len(rows) else (sum(low for low, _ in priced), sum(high for _, high in priced))


def _breaking_points(
    plan: Plan, games: PlannedGames, games_a_day: int, games_on_disk: float, cost_usd: Pair | None
) -> tuple[BreakingPoint, ...]:
    """Return the numbers of games that reach a limit, smallest first."""
    breaks = [
        BreakingPoint(
            "the run takes more than a day", games_a_day,
            "raise the lowest limit (the first one above); if this is the cores or the writer, use shards on more "
            "machines",
        ),
        BreakingPoint(
            "journal, tables and fine-tune files fill the disk", int(games_on_disk),
            "use --results DIR on a larger disk, shards on other machines, or fine_tune=null and nip-run export later",
        ),
    ]  # fmt: skip
    budget = plan.spec.experiment.budget
    for key, limit, amount_per_game in (
        ("budget.usd", budget.usd, None if cost_usd is None else cost_usd[1] / plan.size),
        ("budget.completions", budget.completions, games.calls_per_game),
        ("budget.tokens", budget.tokens, games.tokens_per_game),
    ):
        if limit is not None and amount_per_game:
            games_within_limit = int(limit / amount_per_game)
            breaks.append(BreakingPoint(f"{key} is used up", games_within_limit, f"raise {key}, or play fewer games"))
    return tuple(sorted(breaks, key=lambda point: point.games))


def _describe_measurements(measurements: _Measurements, earlier: EarlierRun | None, *, is_live: bool) -> Iterator[str]:
    """Yield sentences that describe the measurements."""
    if earlier is not None:
        in_flight = (
            "" if earlier.in_flight is None else f", {counted(round(earlier.in_flight), 'call')} in flight on average"
        )
        latency = earlier.games.seconds_per_call or 0.0
        yield (
            f"games as in run {earlier.run_id}: {earlier.games.calls_per_game:.1f} calls each, {latency:.2f} s a "
            f"call{in_flight}; with more calls in flight, a call may take longer"
        )
    elif is_live:
        yield (
            "the latency of the servers is not known, because the results have no run of this protocol with these "
            "models. Play a few games (dataset.limit=20 --run-id pilot), and plan again with --like pilot"
        )
    single = measurements.one_process
    yield f"{counted(single.games, 'game')} with dummy on this machine: {1e3 * single.seconds_per_call:.2f} ms a call"
    if measurements.server is not None:
        milliseconds = 1e3 * measurements.server.seconds
        yield f"{milliseconds:.2f} ms of additional CPU time a call over HTTP, with a test server on this machine"
    run = measurements.with_workers
    if run is not None:
        yield (
            f"{counted(measurements.worker_count, 'worker')} and their writer, {counted(run.games, 'game')}: first "
            f"game after {run.seconds_to_first_game:.1f} s, {1e3 * run.seconds_per_call:.2f} ms a call, including "
            f"{1e3 * run.cpu_seconds_per_call:.2f} ms for the writer"
        )


def _peak_memory() -> float:
    """Return the peak memory of this process in bytes. (The system reports kibibytes, except on macOS.)"""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak << 10)
