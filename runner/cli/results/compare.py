"""Tell whether one run is better than another, and by how much.

Examples:
  nip-run compare RUN RUN
  nip-run compare A1,A2,A3 B1,B2,B3 --metric balanced_accuracy
  nip-run compare RUN --baseline solo_verifier
  nip-run compare OLD NEW --assert 'accuracy >= base - 0.02'
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, counted, decimal, in_one_line, p_value, with_interval
from runner.cli.arguments import RUN, results_option
from runner.cli.terminal.output import heading, note, print_json, print_table, say

if TYPE_CHECKING:
    from runner.results.comparison.comparison import Comparison, SystemComparison
    from runner.results.leaderboard.results_folder import Results
    from runner.statistics.worst_case import WorstCase


_NAMED = 5
"""Datapoints that are named where some are left out; --json has all."""
_DROPPED = ("detectable", "differ", "groups", "McNemar", "datapoints")
"""What a narrow terminal does without, the first of it first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        metavar="RUN",
        help=f"{RUN}; RUN,RUN,... pools runs as repeats of one system, such as one spec with several seeds",
    )
    add(
        "--metric",
        metavar="NAME",
        help="accuracy (the default), accuracy_0, balanced_accuracy, soundness_error, decided, tokens, cost, "
        "AGENT.reward, ...; a wrong name lists them",
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
        help="METRIC >= NUMBER, or METRIC >= base - NUMBER, with base the baseline or else the first run; without "
        "base one RUN is enough; exit code 1 if it fails, 5 if the data cannot decide, 2 if a run cannot be read; "
        "repeatable",
    )
    add(
        "--worst",
        action="store_true",
        help="also name the run that is worst by the metric, such as one verifier with several provers, with an "
        "interval that covers all runs at once",
    )
    add("--flips", type=int, default=10, metavar="N", help="number of flips to list; default: 10")


def execute(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from runner.base.errors import UsageError
    from runner.results.leaderboard.results_folder import Results
    from runner.results.metric_table import RANKING_METRIC

    if args.flips < 0:
        raise UsageError(f"--flips {args.flips}: the number of flips must be 0 or more")
    args.metric = args.metric or RANKING_METRIC
    results = Results(args.results)
    least = _worst(args, results) if args.worst else None
    found = _found(args, results)
    code = _exit_code(found)
    if args.json:
        more = {} if least is None else {"worst": asdict(least)}
        print_json({**found.to_json(), **more, "exit_code": int(code)})
        return code
    for pair in found.pairs:
        heading(f"{found.metric}: {pair.verdict}")
    if least is not None:
        ends = with_interval(least.value, least.ci_low, least.ci_high)
        how = "95 % for all at once" if least.reason is None else f"no interval: {least.reason}"
        say(f"the worst of {least.systems} by {found.metric}: {least.system}, {ends} ({how})")
    if found.pairs:
        say()
        _print_pairs(found.pairs)
    if found.slices:
        say()
        _print_slices(found)
    for pair in found.pairs:
        _say_of(pair, found, args)
    for line in found.notes:
        note(f"note: {line}")
    _say_asserted(found)
    return code


def _found(args: argparse.Namespace, results: Results) -> Comparison:
    """What is asked for. With assertions, what keeps them from being judged is no failed assertion.

    Raises:
        UsageError: what is asked cannot be compared, or no assertion can be judged.
        RunError: a file of a run is missing or damaged.
    """
    from runner.base.errors import RunError, UsageError
    from runner.results.comparison.comparison import compare_systems

    names = [_names(word) for word in args.runs]
    try:
        return compare_systems(
            names, results, metric=args.metric, by=args.by, baseline=args.baseline, asserts=args.asserts
        )
    except RunError as error:
        if args.asserts:
            raise UsageError(f"no assertion was judged, since a run cannot be read: {error}") from error
        raise


def _names(word: str) -> list[str]:
    """The runs of one system; a folder may have a comma in its name."""
    return [word] if Path(word).is_dir() else [name for name in word.split(",") if name] or [word]


def _worst(args: argparse.Namespace, results: Results) -> WorstCase:
    from runner.base.errors import UsageError
    from runner.runs.finished.result import FinishedRun

    pooled = [word for word in args.runs if len(_names(word)) > 1]
    if pooled:
        raise UsageError(f"--worst compares single runs; {pooled[0]!r} pools several")
    return FinishedRun.worst_of([FinishedRun.opened(results.find(word)) for word in args.runs], args.metric)


def _exit_code(found: Comparison) -> ExitCode:
    from runner.results.comparison.assertions import AssertionResult

    held = {one.held for one in found.asserted}
    return (
        ExitCode.FAILED
        if AssertionResult.FAILS in held
        else ExitCode.UNDECIDED
        if AssertionResult.UNDECIDED in held
        else ExitCode.DONE
    )


def _print_pairs(pairs: Sequence[SystemComparison]) -> None:
    corrected = ("p (Holm)",) if any(pair.p_corrected != pair.p for pair in pairs) else ()
    mcnemar = ("McNemar",) if any(pair.mid_p_mcnemar is not None for pair in pairs) else ()
    columns = (
        "system", "value", "base", "of base", "difference [95%]", "p", *corrected, *mcnemar, "datapoints", "groups",
        "differ", "detectable",
    )  # fmt: skip
    print_table(columns, [[_cell(pair, name) for name in columns] for pair in pairs], drop=_DROPPED)


def _print_slices(found: Comparison) -> None:
    from runner.statistics.sign_flip import ALPHA

    columns = (
        "value", "system", "base", "difference [95%]", "p", "p (Holm)", "datapoints", "groups", "detectable",
    )  # fmt: skip
    rows = [[one.slice if name == "value" else _cell(one, name) for name in columns] for one in found.slices]
    print_table(columns, rows, f"by {found.by}", drop=_DROPPED)
    for one in found.slices:
        if one.p_corrected is not None and one.p_corrected <= ALPHA:
            say(f"{in_one_line(str(one.slice))}: {one.verdict}")


def _cell(pair: SystemComparison, column: str) -> Any:
    match column:
        case "system":
            return pair.other
        case "value":
            return decimal(pair.other_value)
        case "base":
            return pair.base
        case "of base":
            return decimal(pair.base_value)
        case "difference [95%]":
            return with_interval(pair.difference, pair.ci_low, pair.ci_high)
        case "p" | "p (Holm)" | "McNemar":
            return p_value({"p": pair.p, "p (Holm)": pair.p_corrected, "McNemar": pair.mid_p_mcnemar}[column])
        case "detectable":
            return decimal(pair.detectable)
        case "differ":
            return pair.differing
        case _:
            return getattr(pair, column)


def _say_of(pair: SystemComparison, found: Comparison, args: argparse.Namespace) -> None:
    """What one pair leaves to be said: how it was matched, whom it leaves out, its flips."""
    title = f"{pair.other} and {pair.base}: " if len(found.pairs) > 1 else ""
    for line in pair.notes:
        note(f"note: {title}{line}")
    for system, ids in ((pair.base, pair.only_base), (pair.other, pair.only_other)):
        if ids:
            named = comma_join(map(in_one_line, ids[:_NAMED])) + (", ..." if len(ids) > _NAMED else "")
            note(f"note: {counted(len(ids), 'datapoint')} of {system} left out, which the other has not: {named}")
    if not pair.flips or not args.flips:
        return
    say()
    heading(f"{title}{counted(len(pair.flips), 'flip')}: right in one and wrong in the other")
    for flip in pair.flips[: args.flips]:
        both = [flip.base_run, flip.base_rollout, flip.other_run, flip.other_rollout]
        shares = "" if {flip.base_accuracy, flip.other_accuracy} == {0.0, 1.0} else (
            f", {flip.base_accuracy:.0%} and {flip.other_accuracy:.0%}"
        )  # fmt: skip
        say(f"  {in_one_line(flip.datapoint)} (label {flip.label}): right in {flip.right_in}{shares}")
        say(f"    {shlex.join(['nip-run', 'show', *both, *results_option(args.results)])}")
    if len(pair.flips) > args.flips:
        say(f"  the first {args.flips}; all of them: --flips {len(pair.flips)}")


def _say_asserted(found: Comparison) -> None:
    if found.asserted and found.pairs:
        say()
    for one in found.asserted:
        what = one.system if one.base is None else f"{one.system} less {one.base}"
        say(f"{one.held}: {one.assertion}   ({what}: {with_interval(one.value, one.ci_low, one.ci_high)})")
