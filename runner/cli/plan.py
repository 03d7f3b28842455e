"""`nip-run plan`: how many datapoints and repeats show a difference, and what they would cost. Writes nothing."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from runner.cli.output import print_json, print_table, say
from runner.cli.specs import Point, load_points, points_as_begun
from runner.errors import UsageError
from runner.exit_codes import ExitCode
from runner.results.points import shown_point
from runner.results.results import Results
from runner.runs.sample_size import Needed, SampleSize, sample_size_of
from runner.statistics.paired import FEWEST_GROUPS
from runner.text import counted
from runner.training.plan import TrainingPlan


def execute(args: argparse.Namespace) -> int:
    if args.detect is None:
        raise UsageError("say what to plan for: --detect D, the difference of accuracy to see, such as 0.05")
    results = Results(args.results)
    points = points_as_begun(load_points(args.words, results.path_of, quiet=args.quiet), results)
    found = [(point, _sample_size(point, args, results)) for point in points]
    if args.json:
        print_json([_as_json(point, size) for point, size in found])
        return ExitCode.DONE
    for number, (point, size) in enumerate(found):
        if number:
            say()
        _show(point, size, against=args.against)
    return ExitCode.DONE


def _sample_size(point: Point, args: argparse.Namespace, results: Results) -> SampleSize:
    if isinstance(point.plan, TrainingPlan):
        raise UsageError(f"{point.path} trains models; plan a benchmark of them (kind: benchmark)")
    return sample_size_of(point.plan, args.detect, results, from_runs=args.from_runs, against=args.against)


def _show(point: Point, size: SampleSize, *, against: str | None) -> None:
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
    cost = "unknown (no price)" if row.cost_usd is None else "${:.2f} to ${:.2f}".format(*row.cost_usd)
    many = f"{row.datapoints:,}" if row.groups == row.datapoints else f"{row.datapoints:,} in {row.groups:,} groups"
    return (str(row.repeats), many, f"{row.games:,}", f"{low:,} to {high:,}", cost, _points(row.smallest_difference))


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
    if share is None:
        return f"nothing: the test needs {FEWEST_GROUPS} groups that differ"
    return f"{100 * share:.3g} points"


def _as_json(point: Point, size: SampleSize) -> Mapping[str, Any]:
    best = size.cheapest
    return {
        "spec": point.path,
        "point": dict(point.spec.point),
        **asdict(size),
        "fits": best is not None,
        "fewest_games": None if best is None else asdict(best),
    }
