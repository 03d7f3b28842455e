"""Measure a judge like an instrument: how much of its verdicts is noise, and which settings change them.

Examples:
  nip-run gauge specs/gauge/solo_verifier.yaml
  nip-run gauge RUN
  nip-run gauge RUN votes=3 'sweep={prompts: [terse, careful]}'
  nip-run gauge specs/gauge/solo_verifier.yaml --again
  nip-run gauge RUN --expect 'icc >= 0.8' --expect 'flips <= 5%'
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.base.package_data import is_file
from runner.base.text import comma_join, counted, decimal, did_you_mean, p_value, with_interval
from runner.cli.arguments import RUN_HELP, add_trust_options
from runner.cli.experiments.question_page import add_page_options
from runner.cli.startup import load_scipy_with_one_thread
from runner.cli.terminal.output import note, print_heading, print_json, print_table, say

if TYPE_CHECKING:
    from runner.cli.specs import SpecPoint
    from runner.results.comparison.assertions import Assertion, AssertionResult
    from runner.results.folder import RunFolder
    from runner.results.gauge.gauge import Facet, Gauge
    from runner.results.leaderboard.results_folder import Results
    from runner.runs.finished.result import FinishedRun
    from runner.statistics.clustered_means import Quantity


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "spec_arguments",
        nargs="+",
        metavar="SPEC|RUN|KEY=VALUE",
        help=f"a spec, whose games are played if they are missing; or finished runs ({RUN_HELP}). Overrides after a "
        "spec change it; overrides after a run judge its debates again, as `nip-run rejudge` does",
    )
    add(
        "--expect",
        action="append",
        default=[],
        metavar="EXPR",
        help="MEASURE >= NUMBER (>, <=, <), where MEASURE is icc, retest_icc, identical, flips, noise_floor, "
        "FACET.flips or FACET.p; exit code 1: a condition fails; 5: too little data to decide; repeatable",
    )
    add(
        "--datapoints",
        type=int,
        metavar="N",
        help="number of datapoints for the noise floor; default: the number of gauged units",
    )
    add("--again", action="store_true", help="send the same requests again as new runs, and check for drift")
    add_trust_options(parser)
    add_page_options(parser)
    parser.set_defaults(command="gauge", shard=None, replay=None, until_round=None, set_model=[], run_id=None,
                        verdict="last")  # fmt: skip


class _Condition(NamedTuple):
    """A condition of `--expect` with its result."""

    condition: str
    measure: Quantity
    result: AssertionResult


def execute(args: argparse.Namespace) -> int:
    from runner.results.comparison.assertions import exit_code, parse_assertion
    from runner.results.gauge.gauge import MEASURES, gauge_runs
    from runner.results.gauge.readings import load_gauged_runs
    from runner.results.gauge.stored import save_gauge

    conditions = [parse_assertion(text, option="--expect") for text in args.expect]
    if any(condition.against_base for condition in conditions):
        raise UsageError("--expect: a gauge has no base; compare with a number, such as icc >= 0.8")
    if args.datapoints is not None and args.datapoints < 1:
        raise UsageError(f"--datapoints {args.datapoints}: the number must be 1 or more")
    for condition in conditions:  # before the games, which may cost money
        if condition.metric not in MEASURES:
            hint = did_you_mean(condition.metric, MEASURES) or f"; a gauge has {comma_join(MEASURES)}"
            raise UsageError(f"--expect: {condition.text}: no measure {condition.metric!r}{hint}")
        if condition.number > 1:
            raise UsageError(f"--expect: {condition.text}: {condition.metric} is at most 1 (100 %)")
    folders, code = _play_or_find(args)
    if code or not folders:
        return code
    load_scipy_with_one_thread()
    gauge = gauge_runs(load_gauged_runs(folders))
    datapoints = args.datapoints or gauge.units
    judged = [_judge(condition, gauge.measures(datapoints)) for condition in conditions]
    path = save_gauge(gauge, args.results)
    code = exit_code(condition.result for condition in judged)
    if args.json:
        print_json({**gauge.to_json(datapoints), "file": str(path), "expected": [_condition_json(c) for c in judged],
                    "exit_code": int(code)})  # fmt: skip
        return code
    _show_gauge(gauge, datapoints)
    for row in judged:
        say(f"{row.result}: {row.condition}   ({row.measure.reason or _format(row.measure)})")
    return code


def _play_or_find(args: argparse.Namespace) -> tuple[list[RunFolder], int]:
    """Return the runs of the arguments, which are played if they are specs or have overrides, and the exit code."""
    from runner.cli.specs import split_arguments

    names, overrides = split_arguments(args.spec_arguments, kind="spec or run", hint="put a spec or a run before them")
    results: Results = args.results
    are_specs = [Path(name).suffix in (".yaml", ".yml") or is_file(Path(name)) for name in names]
    if any(are_specs) and not all(are_specs):
        raise UsageError("give either specs or finished runs, not both; repeat the command for the others")
    if not all(are_specs) and not overrides:
        if args.again:
            raise UsageError("--again plays a spec again; give the spec, or gauge both runs: nip-run gauge RUN LATER")
        folders = [results.find(name) for name in names]
        return list({folder.path.resolve(): folder for folder in folders}.values()), ExitCode.DONE
    return _play(args, all(are_specs), names, overrides)


def _play(
    args: argparse.Namespace, are_specs: bool, names: Sequence[str], overrides: Sequence[str]
) -> tuple[list[RunFolder], int]:
    """Play the points of specs, or judge the debates of runs again; return the runs in the order of the points."""
    from runner.cli.experiments.rejudge import rejudge_points
    from runner.cli.experiments.run import RunCommand, check_run_options
    from runner.cli.specs import load_points

    results: Results = args.results
    if are_specs:
        points = load_points(args.spec_arguments, results.path_of, quiet=args.quiet)
    else:
        folders = [results.find(name) for name in names]
        points = [point for folder in folders for point in rejudge_points(folder, overrides, args)]
    check_run_options(args, len(points))
    load_scipy_with_one_thread()
    earlier = _earlier_runs(points, results) if args.again else []
    finished: dict[str, FinishedRun] = {}
    code = RunCommand(args, points, lambda point, run: finished.update({point.plan.run_id: run})).execute()
    order = [point.plan.run_id for point in points]
    played = sorted(finished, key=lambda run_id: (run_id not in order, run_id in order and order.index(run_id)))
    return [*earlier, *(finished[run_id].folder for run_id in played)], code


def _earlier_runs(points: Sequence[SpecPoint], results: Results) -> list[RunFolder]:
    """Return the finished runs of the points, in the order of the points: the first one and those of --again."""
    from itertools import count, takewhile

    from runner.results.manifest import Status

    def is_done(folder: RunFolder) -> bool:
        return folder.manifest_path.is_file() and folder.manifest().status == Status.DONE

    runs: list[RunFolder] = []
    for point in points:
        names = (point.plan.run_id if number == 1 else f"{point.plan.run_id}-{number}" for number in count(1))
        runs.extend(takewhile(is_done, (results.run(name) for name in names)))
    return runs


def _show_gauge(gauge: Gauge, datapoints: int) -> None:
    """Print a gauge as text."""
    counts = (
        f"{counted(gauge.readings, 'verdict')} on {counted(gauge.units, 'unit')} in "
        f"{counted(len(gauge.run_ids), 'run')}"
    )
    print_heading(f"{counts}; scores are {'P(accept)' if gauge.score == 'probability' else 'verdicts'}")
    icc = "" if gauge.icc.reason is None else f" ({gauge.icc.reason})"
    say(f"intraclass correlation: {_format(gauge.icc)}{icc}")
    if len(gauge.run_ids) > 1:
        say(f"  between repeats of one request: {_format(gauge.retest_icc)}")
    say(f"identical repeats: {_format(gauge.identical)}")
    say(f"flips between repeats: {_format(gauge.flips)}")
    say(f"noise floor of two runs of {counted(datapoints, 'datapoint')}: {_points(gauge.noise_floor(datapoints))}")
    between = gauge.noise_floor_of_variants(datapoints)
    if between is not None:
        say(f"  if they use different variants: {100 * between:.1f} points of accuracy")
    _show_components(gauge)
    for facet in gauge.facets:
        _show_facet(facet)
    _show_servers(gauge)
    for count, noun, text in (
        (gauge.undecided, "verdict", "without a decision"), (gauge.lost, "game", "left out, because calls failed"),
        (gauge.copied, "verdict", "copied from another run, left out"),
    ):  # fmt: skip
        if count:
            note(f"note: {counted(count, noun)} {text}")
    for line in gauge.missing:
        note(f"not measured: {line}")


def _show_components(gauge: Gauge) -> None:
    if not gauge.components:
        return
    total = sum(quantity.value or 0.0 for quantity in gauge.components.values())
    rows = [
        [name, _format(quantity, 4), f"{(quantity.value or 0.0) / total:.0%}" if total else "-"]
        for name, quantity in gauge.components.items()
    ]
    say()
    print_table(["component", "variance [95%]", "share"], rows)


def _show_facet(facet: Facet) -> None:
    from runner.results.gauge.readings import TIME

    say()
    if facet.p_holm is None:
        print_heading(f"{facet.name}: not tested")
        return
    drift = "drift" if facet.matters else "no drift detected"
    effect = "matters" if facet.matters else "no effect detected"
    adjusted = "" if facet.name == TIME else " (Holm)"
    print_heading(f"{facet.name}: {drift if facet.name == TIME else effect}, p = {p_value(facet.p_holm)}{adjusted}")
    rows = [
        [level.label, level.readings, decimal(level.mean),
         "reference" if number == 0 else with_interval(level.shift, level.ci_low, level.ci_high)]
        for number, level in enumerate(facet.levels)
    ]  # fmt: skip
    print_table(["level", "verdicts", "mean score", "shift [95%]"], rows)
    if facet.flips is not None:
        say(f"flips between levels: {_format(facet.flips)}")


def _show_servers(gauge: Gauge) -> None:
    """Print the models and fingerprints that servers reported, if there are several."""
    for name, kind in (("models", "model names"), ("fingerprints", "system fingerprints")):
        values = {value for server in gauge.servers for value in getattr(server, name)}
        if len(values) > 1:
            say(f"the server reported {len(values)} {kind}:")
            for server in gauge.servers:
                say(f"  {server.run_id} ({server.started_at}): {_counts(getattr(server, name))}")


def _counts(counts: Mapping[str, int]) -> str:
    return comma_join(f"{value} ({count})" for value, count in sorted(counts.items())) or "none"


def _format(quantity: Quantity, places: int = 3) -> str:
    low, high = quantity.interval or (None, None)
    return with_interval(quantity.value, low, high, places)


def _points(quantity: Quantity) -> str:
    """Format a share as points of accuracy."""
    if quantity.value is None or quantity.interval is None:
        return f"unknown ({quantity.reason})"
    low, high = quantity.interval
    return f"{with_interval(100 * quantity.value, 100 * low, 100 * high, 1)} points of accuracy"


def _judge(condition: Assertion, measures: Mapping[str, Quantity]) -> _Condition:
    """Judge a condition by the interval of its measure."""
    measure = measures[condition.metric]
    return _Condition(condition.text, measure, condition.judge(*(measure.interval or (None, None))))


def _condition_json(condition: _Condition) -> dict[str, object]:
    return {"condition": condition.condition, **condition.measure.to_json(), "result": condition.result}
