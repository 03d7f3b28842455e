"""Compare runs: is one better than another, and by how much?

Examples:
  nip-run compare RUN RUN
  nip-run compare A1,A2,A3 B1,B2,B3 --metric balanced_accuracy
  nip-run compare RUN --baseline solo_verifier
  nip-run compare RUN RUN --margin 0.05
  nip-run compare OLD NEW --assert 'accuracy >= base - 0.02'
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.errors import UsageError
from runner.base.text import (
    counted,
    decimal,
    decimal_places,
    in_one_line,
    interval_ends,
    list_some,
    p_statement,
    p_value,
    with_interval,
)
from runner.cli.arguments import RUN_HELP
from runner.cli.results.compare_players import compare_players, unreadable_runs_as_usage_errors
from runner.cli.terminal.output import note, print_heading, print_json, print_table, say
from runner.results.default_folder import results_arguments

if TYPE_CHECKING:
    from runner.results.comparison.comparison import Comparison, SystemComparison
    from runner.results.comparison.paired_test import Flip, ValueChange
    from runner.results.comparison.shared_samples import JudgeAgreement
    from runner.results.leaderboard.results_folder import Results
    from runner.statistics.gap_recovered import GapRecovered
    from runner.statistics.worst_case import WorstCase


MAX_LISTED_DATAPOINTS = 5
"""Number of unmatched datapoints that are named; --json has all."""
DEFAULT_FLIPS = 10
_DROPPED_IF_NARROW = ("detectable", "differ", "groups", "McNemar", "datapoints")
"""Columns that a narrow terminal leaves out, in this order."""
_ADJUSTED_COLUMNS = {"[95%] (Holm)", "p (Holm)"}
"""Columns with values that are adjusted for the number of pairs."""
_UNADJUSTED_HEADERS = {"difference [95%]": "difference [95%, unadjusted]", "p": "p (unadjusted)"}
"""Headers of the other columns in a table that also has adjusted columns."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        metavar="RUN",
        help=f"{RUN_HELP}; RUN,RUN,... pools runs as repeats of one system, such as one spec with several seeds",
    )
    add(
        "--metric",
        metavar="NAME",
        help="accuracy (the default), accuracy_0, balanced_accuracy, soundness_error, decided, tokens, cost, "
        "AGENT.reward, ...; an unknown name prints all names. analysis:NAME compares the answers of `nip-run analyze`, "
        "analysis:NAME=ANSWER the share of one answer, analysis:NAME@INSTRUMENT those of one instrument (its start is "
        "enough), analysis:NAME@INSTRUMENT=ANSWER both",
    )
    add("--by", metavar="COLUMN", help="also compare within each value of this dataset column, or of `label`")
    add(
        "--baseline",
        metavar="NAME",
        help="compare each run with this one: a run, or a protocol whose run has the same task and verifier",
    )
    add(
        "--assert",
        dest="asserts",
        action="append",
        default=[],
        metavar="EXPR",
        help="METRIC >= NUMBER, or METRIC >= base - NUMBER, where base is the metric of the baseline or, without "
        "--baseline, of the first run; exit code 1: an assertion fails; 5: too little data to decide; 2: a run cannot "
        "be read; repeatable",
    )
    _add_further_questions(parser)
    add(
        "--players",
        nargs=2,
        metavar=("A", "B"),
        help="compare the ratings of two players; RUN is one tournament. --assert then judges differences, such as "
        "'rating >= base + 50' (the rating of A minus B's), also of rating.right and rating.wrong",
    )
    add(
        "--flips",
        type=int,
        metavar="N",
        help=f"number of flips to list (for analyses: datapoints with different values); default: {DEFAULT_FLIPS}",
    )


def _add_further_questions(parser: argparse.ArgumentParser) -> None:
    """Add the options for results that `compare` computes only on request."""
    add = parser.add_argument
    add(
        "--worst",
        action="store_true",
        help="also name the run with the worst metric, for example of one verifier with several provers; its interval "
        "takes into account that it is the worst of several",
    )
    add(
        "--margin",
        type=float,
        metavar="M",
        help="also test whether the runs are equivalent, which means that they differ by less than M, such as 0.05 for "
        "5 points (two one-sided tests)",
    )
    add(
        "--ceiling",
        metavar="RUN",
        help="a strong run, such as a run whose judge has the ground truth; also print the share of the gap between "
        "the first run and RUN that each other run closes (performance gap recovered)",
    )


def execute(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from runner.results.comparison.assertions import exit_code
    from runner.results.metric_definitions import RANKING_METRIC

    results: Results = args.results
    if args.players:
        return compare_players(args, results)
    args.flips = DEFAULT_FLIPS if args.flips is None else args.flips
    if args.flips < 0:
        raise UsageError(f"--flips {args.flips}: the number of flips must be 0 or more")
    args.metric = args.metric or RANKING_METRIC
    with unreadable_runs_as_usage_errors(args):
        worst = _find_worst(args, results) if args.worst else None
        comparison = _compare_runs(args, results)
    code = exit_code(assertion.held for assertion in comparison.asserted)
    if args.json:
        worst_json = {} if worst is None else {"worst": asdict(worst)}
        print_json({**comparison.to_json(), **worst_json, "exit_code": int(code)})
        return code
    _show_comparison(comparison, worst, args)
    return code


def _show_comparison(comparison: Comparison, worst: WorstCase | None, args: argparse.Namespace) -> None:
    from runner.results.metric_rows import metric_label

    for pair in comparison.pairs:
        print_heading(f"{metric_label(comparison.metric)}: {pair.verdict}")
    if worst is not None:
        value = with_interval(worst.value, worst.ci_low, worst.ci_high)
        coverage = "simultaneous 95 % interval" if worst.reason is None else f"no interval: {worst.reason}"
        say(f"worst of {worst.systems} by {metric_label(comparison.metric)}: {worst.system}, {value} ({coverage})")
    if comparison.pairs:
        say()
        _print_pairs(comparison.pairs)
    if comparison.slices:
        say()
        _print_slices(comparison)
    if comparison.power_assumption is not None:
        say(comparison.power_assumption)
    for pair in comparison.pairs:
        _print_details(pair, comparison, args)
    for line in comparison.notes:
        note(f"note: {line}")
    _print_assertions(comparison)


def _compare_runs(args: argparse.Namespace, results: Results) -> Comparison:
    """Compare the requested systems.

    Raises:
        UsageError: the runs cannot be compared.
        RunError: a file of a run is missing or damaged.
        OSError: a file cannot be read.
    """
    from runner.analysis.comparison import AnalysisScores
    from runner.results.comparison.comparison import ComparisonOptions, compare_systems

    systems = [_split_system(argument) for argument in args.runs]
    options = ComparisonOptions(
        args.metric, args.by, args.baseline, args.asserts, args.margin, args.ceiling, analyses=AnalysisScores()
    )
    return compare_systems(systems, results, options)


def _split_system(argument: str) -> list[str]:
    """Return the runs of one system, separated by commas. The name of a folder may contain commas."""
    return [argument] if Path(argument).is_dir() else [name for name in argument.split(",") if name] or [argument]


def _find_worst(args: argparse.Namespace, results: Results) -> WorstCase:
    from runner.runs.finished.result import FinishedRun

    pooled = [argument for argument in args.runs if len(_split_system(argument)) > 1]
    if pooled:
        raise UsageError(f"--worst compares single runs; {pooled[0]!r} pools several")
    runs = [FinishedRun.from_folder(results.find(argument)) for argument in args.runs]
    return FinishedRun.worst_of(runs, args.metric)


def _print_pairs(pairs: Sequence[SystemComparison]) -> None:
    hidden = set() if any(pair.mid_p_mcnemar is not None for pair in pairs) else {"McNemar"}
    cells = [_pair_cells(pair) for pair in pairs]
    _print_comparisons(pairs, cells, [name for name in cells[0] if name not in hidden])


def _print_slices(comparison: Comparison) -> None:
    from runner.statistics.significance import ALPHA

    columns = (
        "value", "system", "base", "difference [95%]", "p", "[95%] (Holm)", "p (Holm)", "datapoints", "groups",
        "detectable",
    )  # fmt: skip
    cells = [{**_pair_cells(pair), "value": pair.slice} for pair in comparison.slices]
    _print_comparisons(comparison.slices, cells, columns, f"by {comparison.by}")
    for pair in comparison.slices:
        if pair.p_corrected is not None and pair.p_corrected <= ALPHA:
            say(f"{in_one_line(str(pair.slice))}: {pair.verdict}")
        if pair.equivalence is not None:
            say(
                f"{in_one_line(str(pair.slice))}: {pair.describe_equivalence()} (not adjusted for the number of values)"
            )


def _print_comparisons(
    pairs: Sequence[SystemComparison], cells: Sequence[dict[str, Any]], columns: Sequence[str], title: str | None = None
) -> None:
    """Print pairs as a table. If some values are adjusted for the number of pairs, headers name the unadjusted ones."""
    is_adjusted = any((pair.p, pair.ci_low) != (pair.p_corrected, pair.adjusted_interval[0]) for pair in pairs)
    columns = [name for name in columns if is_adjusted or name not in _ADJUSTED_COLUMNS]
    headers = [_UNADJUSTED_HEADERS.get(name, name) if is_adjusted else name for name in columns]
    print_table(headers, [[row[name] for name in columns] for row in cells], title, drop=_DROPPED_IF_NARROW)


def _pair_cells(pair: SystemComparison) -> dict[str, object]:
    """Return the cells of a pair by column."""
    places = decimal_places(pair.difference or pair.base_value, pair.ci_low, pair.ci_high)
    adjusted_ends = interval_ends(pair.ci_low_corrected, pair.ci_high_corrected, places)
    return {
        "system": pair.other,
        "value": decimal(pair.other_value, places),
        "base": pair.base,
        "of base": decimal(pair.base_value, places),
        "difference [95%]": with_interval(pair.difference, pair.ci_low, pair.ci_high, places),
        "p": p_value(pair.p),
        "[95%] (Holm)": "-" if adjusted_ends is None else f"[{', '.join(adjusted_ends)}]",
        "p (Holm)": p_value(pair.p_corrected),
        "McNemar": p_value(pair.mid_p_mcnemar),
        "datapoints": pair.datapoints,
        "groups": pair.groups,
        "differ": pair.differing,
        "detectable": decimal(pair.detectable, places),
    }


def _print_details(pair: SystemComparison, comparison: Comparison, args: argparse.Namespace) -> None:
    """Print further results of a pair, notes on it, the datapoints that it leaves out, and its flips."""
    title = f"{pair.other} and {pair.base}: " if len(comparison.pairs) > 1 else ""
    unadjusted = " (not adjusted for the number of comparisons)" if len(comparison.pairs) > 1 else ""
    if args.margin is not None:
        say(f"{title}{pair.describe_equivalence()}{unadjusted}")
    if args.ceiling is not None:
        say(
            f"{title}performance gap recovered, from {pair.base} to {args.ceiling}: {_describe_gap(pair.gap_recovered)}"
        )
    if (effect := pair.sensitivity) is not None:
        change = with_interval(effect.difference, effect.ci_low, effect.ci_high)
        values = f"{decimal(effect.first)} in {pair.base}, {decimal(effect.second)} in {pair.other}"
        say(f"{title}d' (sensitivity): {values}; difference {change} (95 % CI), {p_statement(effect.p)}{unadjusted}")
    if pair.analysis is not None:
        say(f"{title}{pair.metric}: {pair.analysis.status}")
        say(f"{title}{pair.analysis.describe_correction()}{unadjusted}")
    if pair.agreement is not None:
        say(f"{title}{_describe_agreement(pair.agreement)}")
    for line in pair.notes:
        note(f"note: {title}{line}")
    for system, ids in ((pair.base, pair.only_base), (pair.other, pair.only_other)):
        if ids:
            listed = list_some([*map(in_one_line, ids)], MAX_LISTED_DATAPOINTS)
            note(f"note: {counted(len(ids), 'datapoint')} of {system} left out, missing in the other run: {listed}")
    _print_datapoints(pair, title, args)


def _print_datapoints(pair: SystemComparison, title: str, args: argparse.Namespace) -> None:
    """Print the flips of a pair or, for a metric of an analysis, the datapoints whose values differ."""
    listed = pair.flips or pair.value_changes
    if not listed or not args.flips:
        return
    say()
    heading = (
        f"{counted(len(pair.flips), 'flip')}: right in one and wrong in the other"
        if pair.flips
        else f"{counted(len(listed), 'datapoint')} with different values, the largest differences first"
    )
    print_heading(f"{title}{heading}")
    for point in listed[: args.flips]:
        arguments = [point.base_run, point.base_rollout, point.other_run, point.other_rollout]
        say(f"  {in_one_line(point.datapoint)} (label {point.label}): {_describe_datapoint(point, pair)}")
        say(f"    {shlex.join(['nip-run', 'show', *arguments, *results_arguments(args.results.path)])}")
    if len(listed) > args.flips:
        say(f"  only the first {args.flips}; list all with --flips {len(listed)}")


def _describe_datapoint(point: Flip | ValueChange, pair: SystemComparison) -> str:
    from runner.results.comparison.paired_test import ValueChange

    if isinstance(point, ValueChange):
        return f"{decimal(point.base_value)} in {pair.base}, {decimal(point.other_value)} in {pair.other}"
    accuracies = "" if {point.base_accuracy, point.other_accuracy} == {0.0, 1.0} else (
        f", {point.base_accuracy:.0%} and {point.other_accuracy:.0%}"
    )  # fmt: skip
    return f"right in {point.right_in}{accuracies}"


def _describe_gap(gap: GapRecovered | None) -> str:
    if gap is None:
        return "unknown, because the runs share no datapoint, share answers, or have a stopping rule"
    reason = "" if gap.reason is None else f" ({gap.reason})"
    value = f"{with_interval(gap.value, gap.low, gap.high)}{_coverage_note(gap.low)}"
    return f"{value} in {counted(gap.groups, 'group')} that all three have{reason}"


def _describe_agreement(agreement: JudgeAgreement) -> str:
    equal = with_interval(agreement.agreement, agreement.agreement_ci_low, agreement.agreement_ci_high)
    kappa = with_interval(agreement.kappa, agreement.kappa_ci_low, agreement.kappa_ci_high)
    reason = "" if agreement.kappa_reason is None else f" ({agreement.kappa_reason})"
    debates = f"{agreement.debates} debates in {counted(agreement.groups, 'group')}"
    return (
        f"agreement of the two judges on {debates}: {equal}{_coverage_note(agreement.agreement_ci_low)}; Cohen's kappa "
        f"{kappa}{_coverage_note(agreement.kappa_ci_low)}{reason}"
    )


def _coverage_note(low: float | None) -> str:
    return "" if low is None else " (95 % CI)"


def _print_assertions(comparison: Comparison) -> None:
    if comparison.asserted and comparison.pairs:
        say()
    for assertion in comparison.asserted:
        compared = assertion.system if assertion.base is None else f"{assertion.system} minus {assertion.base}"
        value = with_interval(assertion.value, assertion.ci_low, assertion.ci_high)
        say(f"{assertion.held}: {assertion.assertion}   ({compared}: {value})")
        if assertion.reason is not None:
            say(f"  {assertion.reason}")
        if assertion.analysis is not None:
            say(f"  {assertion.analysis.describe_correction()}; {assertion.analysis.trust}")
