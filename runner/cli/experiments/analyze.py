"""Ask questions about the transcripts of runs: a model answers, or code where it can. See also `validate`.

Examples:
  nip-run analyze RUN role_conformance --model gpt-6-luna
  nip-run analyze RUN1 RUN2 follow_up exact_quotation my_question.yaml --model gpt-6-luna budget.usd=1
  nip-run analyze last rubric models.analyst.base_url=http://127.0.0.1:8000/v1 models.analyst.model=Qwen/Qwen3-8B
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from runner.base.errors import UsageError
from runner.base.text import comma_join, decimal, did_you_mean, list_some, shortened
from runner.cli.arguments import RUN_HELP, add_trust_options
from runner.cli.experiments.question_page import add_page_options
from runner.cli.startup import load_scipy_with_one_thread
from runner.cli.terminal.output import note, print_json, print_table, say, say_wrapped

if TYPE_CHECKING:
    from runner.analysis.analyzer import Analyzer
    from runner.analysis.planning import PlannedAnalysis
    from runner.analysis.rates import AnalysisRates
    from runner.cli.specs import SpecPoint
    from runner.results.folder import RunFolder
    from runner.results.leaderboard.results_folder import Results
    from runner.runs.finished.result import FinishedRun


MAX_ANSWER = 24
"""Maximum number of characters of an answer in the table."""
MAX_REASONS = 5
"""Maximum number of reasons that are listed for units that are not applicable."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "spec_arguments",
        nargs="+",
        metavar="RUN|ANALYZER|KEY=VALUE",
        help=f"runs ({RUN_HELP}; or a folder), analyzers (built-in names or .yaml files), and overrides of the "
        "analysis, such as models.analyst.temperature=0 or budget.usd=1",
    )
    add("--model", metavar="MODEL", help="the model that answers; short for models.analyst.model=MODEL")
    add(
        "--structured",
        choices=("auto", "yes", "no"),
        default="auto",
        help="make the server answer in JSON; auto: only a provider's own server; default: auto",
    )
    add_trust_options(parser)
    add("--again", action="store_true", help="ask the model again in a new run")
    add_page_options(parser)
    parser.set_defaults(
        command="analyze", shard=None, replay=None, until_round=None, set_model=[], run_id=None, verdict="last"
    )


def execute(args: argparse.Namespace) -> int:
    from runner.cli.experiments.run import RunCommand, check_run_options
    from runner.cli.specs import SpecPoint

    folders, analyzers, overrides = _read_arguments(args)
    planned = _plan(args, folders, analyzers, overrides)
    points = {SpecPoint("the analysis", analysis.plan): analysis for analysis in planned if analysis.plan is not None}
    for line in () if args.quiet else dict.fromkeys(line for analysis in planned for line in analysis.notes):
        note(f"note: {line}")
    check_run_options(args, len(points))
    tables = _Tables()
    for analysis in planned:
        if analysis.plan is None:
            tables.add(analysis, None)
    code = 0
    try:
        if points:
            load_scipy_with_one_thread()
            command = RunCommand(
                args, list(points), lambda point, result: tables.add(points[_same(point, points)], result)
            )
            code = command.execute()
    finally:
        tables.show(planned, as_json=args.json)
    return code


def _same(point: SpecPoint, points: dict[SpecPoint, PlannedAnalysis]) -> SpecPoint:
    """Return the point with the same plan, because `RunCommand` may have replaced the point by a copy."""
    return next(other for other in points if other.plan.run_id == point.plan.run_id)


def _read_arguments(args: argparse.Namespace) -> tuple[list[RunFolder], list[Analyzer], list[str]]:
    """Return the runs, the analyzers and the overrides among the arguments.

    Raises:
        UsageError: an argument is neither a run nor an analyzer, or one of both kinds is missing.
        SpecError: an analyzer has errors.
    """
    from runner.analysis.analyzer import builtin_analyzers, is_analyzer, load_analyzer
    from runner.cli.specs import split_arguments

    results: Results = args.results
    builtin = builtin_analyzers()
    names, overrides = split_arguments(args.spec_arguments, kind="run", hint="list the runs with `nip-run runs`")
    analyzers = [name for name in names if is_analyzer(name)]
    runs = (_find_run(name, results, builtin) for name in names if name not in analyzers)
    folders = list(dict.fromkeys(runs))
    if not folders or not analyzers:
        missing = "a run" if not folders else f"an analyzer, a .yaml file or one of {comma_join(builtin)}"
        raise UsageError(f"name {missing}: nip-run analyze RUN ANALYZER")
    if args.model:
        overrides.append(f"models.analyst.model={json.dumps(args.model)}")
    # Messages tell the user how to resume with the same arguments, but `last` names another run once this one started.
    ids = [str(folder.path) if folder != results.run(folder.run_id) else folder.run_id for folder in folders]
    args.spec_arguments = [*ids, *analyzers, *overrides]
    return folders, [load_analyzer(name) for name in dict.fromkeys(analyzers)], overrides


def _find_run(name: str, results: Results, analyzers: Sequence[str]) -> RunFolder:
    hint = did_you_mean(name, analyzers)
    try:
        return results.find(name)
    except UsageError as error:
        if not hint:
            raise
        raise UsageError(f"{name!r} is neither a run nor an analyzer{hint}") from error


def _plan(
    args: argparse.Namespace, folders: Sequence[RunFolder], analyzers: Sequence[Analyzer], overrides: Sequence[str]
) -> list[PlannedAnalysis]:
    from runner.analysis.planning import AnalysisOptions, plan_analysis
    from runner.models.api_keys import all_allowed
    from runner.registry.components.lookup import make_finder

    options = AnalysisOptions(
        overrides=overrides,
        structured=args.structured,
        allowed=all_allowed(args.allow_key, args.allow_command, args.allow_host),
        find_run=args.results.path_of,
        find_component=make_finder(),
    )
    return [plan_analysis(folder, analyzer, options) for folder in folders for analyzer in analyzers]


class _Tables:
    """The results of the finished analyses."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, str], AnalysisRates] = {}

    def add(self, analysis: PlannedAnalysis, result: FinishedRun | None) -> None:
        """Write the table of a finished analysis to the analyzed run's folder."""
        from runner.analysis.collection import collect_results
        from runner.analysis.rates import plain_rates
        from runner.analysis.results import write_analysis
        from runner.results.manifest import PLAYED

        if result is not None and result.manifest.status not in PLAYED:
            return
        table = collect_results(analysis, None if result is None else result.folder)
        write_analysis(analysis.folder, table)
        self._rates[table.run_id, table.name] = plain_rates(table)

    def show(self, planned: Sequence[PlannedAnalysis], *, as_json: bool) -> None:
        """Print the rates in the order of the command's arguments."""
        from dataclasses import asdict

        from runner.analysis.scores import find_validations

        names = [(analysis.folder.run_id, f"{analysis.analyzer.name}-{analysis.instrument}") for analysis in planned]
        rates = [self._rates[name] for name in names if name in self._rates]
        folders = {analysis.folder.path.parent: analysis.folder for analysis in planned}
        validations = {name: text for folder in folders.values() for name, text in find_validations(folder).items()}
        if as_json:
            print_json([{**asdict(rate), "validated": rate.instrument in validations} for rate in rates])
        elif rates:
            headings = ("run", "analyzer", "instrument", "model", "units", "rate", "answers", "no answer",
                        "not applicable", "failed")  # fmt: skip
            print_table(headings, [_row(rate) for rate in rates])
            _print_notes(rates, validations)


def _print_notes(rates: Sequence[AnalysisRates], validations: Mapping[str, str]) -> None:
    """Print why units are not applicable, and how far to trust the rates."""
    for rate in rates:
        if rate.not_applicable:
            reasons = [f"{reason} ({count})" for reason, count in rate.not_applicable.items()]
            say_wrapped(f"{rate.run_id}, {rate.analyzer}, not applicable: {list_some(reasons, MAX_REASONS)}")
    text = "Rates are plain shares or means of the answers: uncorrected"
    instruments = dict.fromkeys((rate.analyzer, rate.instrument) for rate in rates)
    if not any(instrument in validations for _, instrument in instruments):
        say(f"{text}, and not validated against people.")
        return
    say(f"{text}.")
    for analyzer, instrument in instruments:
        say_wrapped(f"{analyzer}, {instrument}: {validations.get(instrument, 'not validated against people')}")


def _row(rate: AnalysisRates) -> tuple[str, ...]:
    counts = [str(rate.statuses.get(status, 0)) for status in ("no_answer", "not_applicable", "failed")]
    answers = ", ".join(f"{shortened(answer, MAX_ANSWER)}: {count}" for answer, count in rate.answers.items())
    mean = decimal(rate.mean)
    models = comma_join(rate.models) or "-"
    return rate.run_id, rate.analyzer, rate.instrument, models, str(rate.applicable), mean, answers or "-", *counts
