"""Compute how many datapoints show a difference, or how long a run takes.

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
from typing import TYPE_CHECKING, Any

from runner.base.exit_codes import ExitCode
from runner.base.text import counted, dollar_range
from runner.cli.arguments import add_specs
from runner.cli.experiments.plan_time import show_time
from runner.cli.terminal.output import note, print_json, print_table, say
from runner.results.sweep_points import shown_point

if TYPE_CHECKING:
    from runner.cli.specs import SpecPoint
    from runner.results.leaderboard.results_folder import Results
    from runner.runs.planning.duration import Duration
    from runner.runs.planning.sample_size import Needed, SampleSize


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_specs(parser)
    add("--detect", type=float, metavar="D", help="the difference in accuracy to detect, such as 0.05 for five points")
    known = parser.add_mutually_exclusive_group()
    known.add_argument(
        "--from",
        nargs="+",
        default=[],
        dest="from_runs",
        metavar="RUN",
        help="take the variance from a run of a similar system, or from two runs similar to those to be compared",
    )
    known.add_argument("--against", metavar="RUN", help="compare with this finished run and use its variance")
    add(
        "--workers",
        type=int,
        metavar="N",
        help="estimate the duration and the bottleneck with N workers (execution.processes)",
    )
    add("--shards", type=int, metavar="N", help="the same for N shards, each on its own machine")
    add("--cores", type=int, metavar="N", help="number of cores for all workers; default: this machine's")
    add("--like", metavar="RUN", help="take game lengths and server speed from this run; default: the newest that fits")
    add("--measure", type=float, metavar="S", help="seconds to spend on each measurement; default: 2")


def execute(args: argparse.Namespace) -> int:
    from runner.base.errors import UsageError
    from runner.cli.specs import load_points, points_as_begun
    from runner.results.leaderboard.results_folder import Results
    from runner.training.plan import TrainingPlan

    is_timed = args.workers is not None or args.shards is not None
    if not is_timed and any(one is not None for one in (args.cores, args.like, args.measure)):
        raise UsageError("--cores, --like and --measure need --workers N or --shards N")
    if args.detect is None and not is_timed:
        raise UsageError(
            "nothing to plan: add --detect D, the difference in accuracy to detect, such as 0.05; or --workers N, to "
            "estimate how long the run takes"
        )
    results = Results(args.results)
    points = points_as_begun(load_points(args.words, results.path_of, quiet=args.quiet), results)
    for point in points:
        if isinstance(point.plan, TrainingPlan):
            raise UsageError(f"{point.path} trains models; plan a benchmark of them (kind: benchmark)")
    sizes = [None if args.detect is None else _sample_size(point, args, results) for point in points]
    times = _times(points, args, results) if is_timed else [None] * len(points)
    if args.json:
        print_json([_as_json(*row) for row in zip(points, sizes, times, strict=True)])
        return ExitCode.DONE
    for number, (point, size, time) in enumerate(zip(points, sizes, times, strict=True)):
        if number:
            say()
        if time is not None:
            show_time(point, time)
        if size is not None:
            _show(point, size, against=args.against)
    return ExitCode.DONE


def _times(points: Sequence[SpecPoint], args: argparse.Namespace, results: Results) -> list[Duration]:
    """How long each takes; those of a sweep one after the other, since each is measured."""
    from dataclasses import replace

    from runner.runs.planning.duration import (  # loads all that plays, which a sample's size needs not
        PlayOptions,
        duration_of,
    )

    def given(value: int | None) -> int:
        return 1 if value is None else value

    start = process_time()  # so long it took to load the program, the spec and its dataset
    asked = PlayOptions(given(args.workers), given(args.shards), args.cores, args.like, start=start)
    asked = asked if args.measure is None else replace(asked, measure=args.measure)
    tell = (lambda _: None) if args.quiet else note
    return [duration_of(point.plan.games, results, asked, tell) for point in points]


def _sample_size(point: SpecPoint, args: argparse.Namespace, results: Results) -> SampleSize:
    from runner.runs.planning.sample_size import sample_size_of
    from runner.training.plan import TrainingPlan

    assert not isinstance(point.plan, TrainingPlan)
    return sample_size_of(point.plan, args.detect, results, from_runs=args.from_runs, against=args.against)


def _show(point: SpecPoint, size: SampleSize, *, against: str | None) -> None:
    swept = f" with {shown_point(point.spec.point)}" if point.spec.point else ""
    say(f"{point.path}{swept}: to see {_points(size.detect)} between two runs on the same datapoints")
    say("(at 80 % power, tested at 5 %)")
    say(f"variance: {size.variance.source}.")
    if (doubt := _doubt(size)) is not None:
        say(doubt)
    columns = ("repeats", "datapoints", "games", "calls", "cost", "the dataset could show")
    whose = "of this spec's run" if against is not None else "of each of the two runs"
    print_table(columns, [_row(row) for row in size.rows], title=f"{whose}: from the shortest games to the longest")
    say(_advice(size))
    if point.spec.experiment.until is not None:
        say(
            "This is for runs that play all of it. With `until` a run plays at most its dataset, and stops sooner "
            "where it is decided; what looks so often is wider, and may need more than is planned here."
        )


def _doubt(size: SampleSize) -> str | None:
    """What the numbers rest on, or how far they may be off."""
    variance = size.variance
    if variance.uncertainty is not None:
        low, high = variance.uncertainty
        return (
            f"It was seen in {counted(variance.groups or 0, 'group')}, so the true one may be {low:.2g} to {high:.2g} "
            "times as large (95 %, roughly), and what is needed with it."
        )
    if size.groups == size.datapoints:
        return None
    return (
        "Assumed: all datapoints of a group are right or wrong together, so that it counts as one game; were they "
        f"independent, about 1/{size.datapoints / size.groups:.2g} of the groups would do."
    )


def _row(row: Needed) -> tuple[str, ...]:
    low, high = row.calls
    many = f"{row.datapoints:,}" if row.groups == row.datapoints else f"{row.datapoints:,} in {row.groups:,} groups"
    return (
        str(row.repeats),
        many,
        f"{row.games:,}",
        f"{low:,} to {high:,}",
        dollar_range(row.cost_usd),
        _points(row.smallest_difference),
    )


def _advice(size: SampleSize) -> str:
    """Whether the dataset is large enough, and for what."""
    there = counted(size.datapoints, "datapoint")
    if size.groups != size.datapoints:
        there += f" in {counted(size.groups, 'group')}"
    if (best := size.cheapest) is not None:
        games = counted(best.games, "game")
        return (
            f"The dataset is large enough: it has {there}. Fewest games on no more than these: "
            f"{counted(best.repeats, 'repeat')}, {games}."
        )
    most = size.rows[-1]
    also = "" if size.variance.split else " Repeats may help: a run with two or more of each datapoint tells (--from)."
    could = f"With {counted(most.repeats, 'repeat')} you could see {_points(most.smallest_difference)}.{also}"
    return f"The dataset is too small: it has {there}. {could}"


def _points(share: float | None) -> str:
    """A difference; None: none can be shown."""
    from runner.statistics.sign_flip import FEWEST_GROUPS

    if share is None:
        return f"nothing: the test needs {FEWEST_GROUPS} groups that differ"
    return f"{100 * share:.3g} points"


def _as_json(point: SpecPoint, size: SampleSize | None, time: Duration | None) -> Mapping[str, Any]:
    from dataclasses import asdict

    found: dict[str, Any] = {"spec": point.path, "point": dict(point.spec.point)}
    if size is not None:
        best = size.cheapest
        found |= {
            **asdict(size),
            "fits": best is not None,
            "fewest_games": None if best is None else asdict(best),
        }
    if time is not None:
        found["time"] = asdict(time)
    return found
