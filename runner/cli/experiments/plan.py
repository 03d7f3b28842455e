"""Compute how many datapoints detect a difference, or how long a run takes.

Examples:
  nip-run plan spec.yaml --detect 0.05
  nip-run plan spec.yaml --detect 0.05 --from RUN
  nip-run plan spec.yaml --detect 0.1 --against RUN --json
  nip-run plan spec.yaml --workers 4 --like pilot
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from time import process_time
from typing import TYPE_CHECKING

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import counted, dollar_range, dollars
from runner.cli.arguments import add_spec_arguments
from runner.cli.experiments.question_page import describe_people
from runner.cli.terminal.output import note, print_json, print_table, say
from runner.results.sweep_points import format_point

if TYPE_CHECKING:
    from runner.cli.specs import SpecPoint
    from runner.results.leaderboard.results_folder import Results
    from runner.runs.planning.duration import Duration, Pair
    from runner.runs.planning.duration_model import Bound
    from runner.runs.planning.sample_size import Needed, SampleSize


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_spec_arguments(parser)
    add("--detect", type=float, metavar="D", help="the difference in accuracy to detect, such as 0.05 for five points")
    variance_source = parser.add_mutually_exclusive_group()
    variance_source.add_argument(
        "--from",
        nargs="+",
        default=[],
        dest="from_runs",
        metavar="RUN",
        help="take the variance from a run of a similar system, or from two runs similar to those to be compared",
    )
    variance_source.add_argument("--against", metavar="RUN", help="compare with this finished run and use its variance")
    add(
        "--workers",
        type=int,
        metavar="N",
        help="estimate the duration and the bottleneck with N workers (execution.processes)",
    )
    add("--shards", type=int, metavar="N", help="estimate them for N shards, each on its own machine")
    add("--cores", type=int, metavar="N", help="number of cores for all workers; default: this machine's")
    add(
        "--like",
        metavar="RUN",
        help="take game lengths and server speed from this run; default: a run of the spec or a similar one",
    )
    add("--measure", type=float, metavar="S", help="seconds to spend on each measurement; default: 2")


def execute(args: argparse.Namespace) -> int:
    from runner.cli.specs import keep_chat_formats, load_points
    from runner.rollouts.plan import Plan

    estimates_time = args.workers is not None or args.shards is not None
    if not estimates_time and any(value is not None for value in (args.cores, args.like, args.measure)):
        raise UsageError("--cores, --like and --measure estimate a duration; add --workers N or --shards N")
    if args.detect is None and not estimates_time:
        raise UsageError(
            "nothing to plan: add --detect D, the difference in accuracy to detect, such as 0.05; or --workers N, to "
            "estimate how long the run takes"
        )
    results: Results = args.results
    points = keep_chat_formats(load_points(args.spec_arguments, results.path_of, quiet=args.quiet), results)
    for point in points:
        if not isinstance(point.plan, Plan):
            kind = point.spec.experiment.kind
            raise UsageError(
                f"{point.path} is a {kind}, but only benchmarks can be planned; add `kind=benchmark {kind}=null` to "
                "plan a benchmark with its games"
            )
    sizes = [None if args.detect is None else _sample_size(point, args, results) for point in points]
    durations = _estimate_durations(points, args, results) if estimates_time else [None] * len(points)
    if args.json:
        print_json([_as_json(*row) for row in zip(points, sizes, durations, strict=True)])
        return ExitCode.DONE
    for number, (point, size, duration) in enumerate(zip(points, sizes, durations, strict=True)):
        if number:
            say()
        if duration is not None:
            show_duration(point, duration)
        if size is not None:
            _show_sample_size(point, size, against=args.against)
        if (people := describe_people(point.plan.list_game_plans())) is not None:
            say(f"With the spec's own datapoints and repeats, {people}. No estimate includes their time.")
    return ExitCode.DONE


def _estimate_durations(points: Sequence[SpecPoint], args: argparse.Namespace, results: Results) -> list[Duration]:
    """Return an estimate of the duration of each point, measuring one point after the other."""
    from runner.runs.planning.duration import ForecastOptions, duration_of

    load_seconds = process_time()  # CPU seconds spent so far: on loading the program, the spec and its dataset
    given_options = {"workers": args.workers, "shards": args.shards, "measure_seconds": args.measure}
    options = ForecastOptions(
        cores=args.cores,
        similar_run=args.like,
        load_seconds=load_seconds,
        **{name: value for name, value in given_options.items() if value is not None},
    )
    print_progress = (lambda _: None) if args.quiet else note
    return [duration_of(point.plan.games, results, options, print_progress) for point in points]


def _sample_size(point: SpecPoint, args: argparse.Namespace, results: Results) -> SampleSize:
    from runner.runs.planning.sample_size import sample_size_of

    return sample_size_of(point.plan.games, args.detect, results, from_runs=args.from_runs, against=args.against)


def _show_sample_size(point: SpecPoint, size: SampleSize, *, against: str | None) -> None:
    settings = f" with {format_point(point.spec.point)}" if point.spec.point else ""
    say(f"{point.path}{settings}: to detect {_format_difference(size.detect)} between two runs on the same datapoints")
    say("(at 80 % power, tested at 5 %)")
    say(f"variance: {size.variance.source}.")
    if (uncertainty := _describe_uncertainty(size)) is not None:
        say(uncertainty)
    columns = ("repeats", "datapoints", "games", "calls", "cost", "detectable")
    runs = "of this spec's run" if against is not None else "of each of the two runs"
    print_table(columns, [_size_row(row) for row in size.rows], title=f"{runs}: from the shortest games to the longest")
    say(_advise_on_size(size))
    if point.spec.experiment.until is not None:
        say(
            "This assumes that the run plays its full dataset. With `until` a run may stop sooner. Its repeated looks "
            "make intervals wider, so it may need more datapoints than planned here."
        )


def _describe_uncertainty(size: SampleSize) -> str | None:
    """Return a sentence about the uncertainty of the variance, or about an assumption; None if neither is needed."""
    variance = size.variance
    if variance.uncertainty is not None:
        low, high = variance.uncertainty
        return (
            f"It is estimated from {counted(variance.groups or 0, 'group')}. The true variance, and the sample size "
            f"with it, may be {low:.2g} to {high:.2g} times as large (roughly 95 %)."
        )
    if size.groups == size.datapoints:
        return None
    return (
        "Assumption: all datapoints of a group are right or wrong together, so a group counts as one game. If they are "
        f"independent, about 1/{size.datapoints / size.groups:.2g} of the groups is enough."
    )


def _size_row(row: Needed) -> tuple[str, ...]:
    low, high = row.calls
    count = f"{row.datapoints:,}" if row.groups == row.datapoints else f"{row.datapoints:,} in {row.groups:,} groups"
    return (
        str(row.repeats),
        count,
        f"{row.games:,}",
        f"{low:,} to {high:,}",
        dollar_range(row.cost_usd),
        _format_difference(row.smallest_difference),
    )


def _advise_on_size(size: SampleSize) -> str:
    """Return a sentence that says whether the dataset is large enough, and which difference it can detect."""
    available = counted(size.datapoints, "datapoint")
    if size.groups != size.datapoints:
        available += f" in {counted(size.groups, 'group')}"
    if (best := size.cheapest) is not None:
        games = counted(best.games, "game")
        return (
            f"The dataset is large enough: it has {available}. Fewest games: "
            f"{counted(best.repeats, 'repeat')}, {games}."
        )
    largest = size.rows[-1]
    hint = (
        ""
        if size.variance.split
        else " Add datapoints; or play a run with repeats and pass --from RUN, to see whether more repeats would help."
    )
    smallest = _format_difference(largest.smallest_difference)
    limit = f"With {counted(largest.repeats, 'repeat')} you could detect {smallest}."
    return f"The dataset is too small: it has {available}. {limit}{hint}"


def _format_difference(difference: float | None) -> str:
    """Format a difference in points; None means that no difference can be detected."""
    from runner.statistics.sign_flip import FEWEST_GROUPS

    if difference is None:
        return f"nothing: the test needs {FEWEST_GROUPS} groups that differ"
    return f"{100 * difference:.3g} points"


def _as_json(point: SpecPoint, size: SampleSize | None, duration: Duration | None) -> Mapping[str, object]:
    from dataclasses import asdict

    facts: dict[str, object] = {"spec": point.path, "point": dict(point.spec.point)}
    if size is not None:
        best = size.cheapest
        facts |= {
            **asdict(size),
            "fits": best is not None,
            "fewest_games": None if best is None else asdict(best),
        }
    if duration is not None:
        facts["time"] = asdict(duration)
    return facts


MINUTE, HOUR = 60.0, 3600.0


def show_duration(point: SpecPoint, forecast: Duration) -> None:
    """Print the estimated duration of a point, its bottleneck, cost, disk and memory."""
    settings = f" with {format_point(point.spec.point)}" if point.spec.point else ""
    games = f"{'' if point.spec.experiment.until is None else 'at most '}{forecast.games:,} games"
    duration = f"{'' if forecast.servers_known else 'at least '}{_format_duration_range(forecast.seconds)}"
    say(f"{point.path}{settings}: {games}, {_format_range(forecast.calls)} calls: {duration}")
    rates = f"{forecast.calls_per_second:,.1f} calls/s, {forecast.tokens_per_second:,.0f} tokens/s"
    say(f"{_describe_workers(forecast)}: {rates}")
    say(f"bottleneck: {forecast.bottleneck}{'' if forecast.servers_known else ' (speed of the servers unknown)'}")
    columns = ("bottleneck", "calls/s", "duration at this rate", "")
    print_table(columns, [_bound_row(bound, forecast) for bound in forecast.bounds])
    prompts, answers = _format_range(forecast.prompt_tokens), _format_range(forecast.completion_tokens)
    say(f"tokens: {prompts} of prompts, {answers} of answers; cost {_format_cost(forecast.cost_usd)}")
    say(
        f"disk: journal {_format_bytes(forecast.journal_bytes)}, tables and fine-tune files "
        f"{_format_bytes(forecast.table_bytes)}; {_format_bytes(forecast.free_bytes)} free"
    )
    say(f"memory: about {_format_bytes(forecast.memory_bytes)} per process")
    for line in forecast.measured:
        say(f"measured: {line}" if forecast.servers_known or "not known" not in line else line)
    for threshold in forecast.breaks[:2]:
        say(f"from {threshold.games:,} games on {threshold.what}: {threshold.do}")


def _describe_workers(forecast: Duration) -> str:
    workers = "one process" if forecast.workers == 1 else f"{counted(forecast.workers, 'worker')} and their writer"
    if forecast.shards > 1:
        per_shard = "" if forecast.workers == 1 else f" of {workers}"
        return (
            f"by {counted(forecast.shards, 'shard')}{per_shard}, each on a machine of {counted(forecast.cores, 'core')}"
        )
    return f"by {workers}, on {counted(forecast.cores, 'core')}"


def _bound_row(bound: Bound, forecast: Duration) -> tuple[str, str, str, str]:
    seconds = forecast.calls[1] / bound.calls_per_second
    return bound.name, f"{bound.calls_per_second:,.1f}", _format_duration_range((seconds, seconds)), bound.detail


def _format_range(pair: Pair) -> str:
    low, high = (f"{value:,.0f}" for value in pair)
    return low if low == high else f"{low} to {high}"


def _format_duration_range(pair: Pair) -> str:
    """Format a range of seconds in hours, or in minutes or seconds if short."""
    low, high = map(_format_duration, pair)
    return low if low == high else f"{low} to {high}"


def _format_duration(seconds: float) -> str:
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < 2 * HOUR else f"{seconds / HOUR:,.1f} h"


def _format_cost(usd: Pair | None) -> str:
    if usd is None:
        return "unknown (no price)"
    return dollars(usd[0]) if usd[0] == usd[1] else dollar_range(usd)


def _format_bytes(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
