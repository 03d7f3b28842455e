"""Compare an analyzer's answers with the labels of people, and correct its rates with them.

Examples:
  nip-run validate RUN follow_up
  nip-run validate RUN RUN tone.yaml
  nip-run validate RUN tone.yaml --labels-needed 0.1
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join
from runner.cli.arguments import RUNS_HELP
from runner.cli.startup import load_scipy_with_one_thread
from runner.cli.terminal.output import print_json, say

if TYPE_CHECKING:
    from runner.analysis.analyzer import Analyzer
    from runner.analysis.labels import Label
    from runner.analysis.results import AnalysisTable
    from runner.analysis.strata import Strata
    from runner.analysis.validation import Validation
    from runner.results.folder import RunFolder
    from runner.statistics.clustered_means import Quantity


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help=f"{RUNS_HELP}; rates of further runs are compared with the first's")
    add("analyzer", metavar="ANALYZER", help="the name of a built-in analyzer, or an analyzer's .yaml file")
    add("--instrument", metavar="ID", help="only results of this instrument, or the start of its id; default: all")
    add(
        "--labels-needed",
        type=float,
        metavar="WIDTH",
        help="print how many labels make the intervals of corrected rates this wide, such as 0.1 for 10 points",
    )


class _LabeledRun(NamedTuple):
    """A run with the results and the labels of the analyzer."""

    folder: RunFolder
    tables: Sequence[AnalysisTable]
    """The chosen results that answer the analyzer's question."""
    other_questions: Sequence[AnalysisTable]
    labels: Sequence[Label]
    strata: Sequence[Strata]
    """The strata from which labels were drawn."""


def execute(args: argparse.Namespace) -> int:
    from runner.analysis.analyzer import load_analyzer
    from runner.analysis.validation import number_groups, validate
    from runner.analysis.validation_log import append_validations, validation_record
    from runner.cli.terminal.validation_tables import (
        describe_quantity,
        describe_table,
        print_validation,
        to_json,
    )

    analyzer = load_analyzer(args.analyzer)
    if args.labels_needed is not None:
        _check_width(analyzer, args.labels_needed)
    load_scipy_with_one_thread()
    folders = {folder.run_id: folder for folder in map(args.results.find, args.runs)}
    runs = [_load_run(folder, analyzer, args) for folder in folders.values()]
    groups = number_groups(table for run in runs for table in run.tables)
    validations = {
        run.folder.run_id: [validate(analyzer, table, run.labels, groups, run.strata) for table in run.tables]
        for run in runs
    }
    for run in runs:
        validated = [validation for validation in validations[run.folder.run_id] if validation.is_validated]
        append_validations(run.folder.path, map(validation_record, validated))
    differences = _differences(validations)
    if args.json:
        print_json({
            "analyzer": analyzer.name, "question_sha256": analyzer.question_sha256,
            "validations": [to_json(each, args.labels_needed) for run in validations.values() for each in run],
            "other_questions": [table.instrument for run in runs for table in run.other_questions],
            "differences": [row._asdict() | {"difference": row.difference.to_json()} for row in differences],
        })  # fmt: skip
        return ExitCode.DONE
    for run in runs:
        for table in run.other_questions:
            say(f"{describe_table(table)}: not validated, because it answered another version of the question")
        for validation in validations[run.folder.run_id]:
            print_validation(validation, args.analyzer, args.labels_needed)
    for row in differences:
        number = describe_quantity(row.difference)
        say(f"{row.name} of {row.run} minus {row.base}, instrument {row.instrument}, corrected: {number}")
    return ExitCode.DONE


def _check_width(analyzer: Analyzer, width: float) -> None:
    values = list((analyzer.values or {}).values()) if analyzer.is_scale else [0.0, 1.0]
    highest = max(values) - min(values)
    if not 0 < width < highest:
        example = "0.1 for 10 points" if highest == 1 else f"{highest / 10:g}"
        raise UsageError(
            f"--labels-needed {width:g}: the width of an interval must be more than 0 and less than {highest:g}, such "
            f"as {example}"
        )


def _load_run(folder: RunFolder, analyzer: Analyzer, args: argparse.Namespace) -> _LabeledRun:
    from runner.analysis.labels import LabelFile
    from runner.analysis.results import read_analyses
    from runner.analysis.strata import find_strata

    tables, instrument = read_analyses(folder), args.instrument
    matches = [t for t in tables if t.analyzer == analyzer.name and t.instrument.startswith(instrument or "")]
    if not matches:
        instruments = [table.instrument for table in tables if table.analyzer == analyzer.name]
        listed = f"; its instruments are {comma_join(instruments)}" if instruments else ""
        subject = f"{analyzer.name}{'' if instrument is None else f' by {instrument}'} on run {folder.run_id}"
        command = shlex.join(["nip-run", "analyze", folder.run_id, args.analyzer])
        raise UsageError(f"there are no results of {subject}{listed}. " + ("" if listed else f"First run {command}"))
    same = [table for table in matches if table.question_sha256 == analyzer.question_sha256]
    others = [table for table in matches if table.question_sha256 != analyzer.question_sha256]
    labels = LabelFile(folder.path, analyzer).current()
    return _LabeledRun(folder, same, others, labels, find_strata(folder, labels, tables))


class _Difference(NamedTuple):
    """The difference of a corrected rate between two runs."""

    run: str
    base: str
    instrument: str
    name: str
    difference: Quantity


def _differences(validations: Mapping[str, Sequence[Validation]]) -> list[_Difference]:
    """Return the differences of corrected rates to the first run, for the instruments that both have."""
    from runner.analysis.validation import rate_difference

    (base, first), *others = validations.items()
    by_instrument = {validation.table.instrument: validation for validation in first}
    return [
        _Difference(run, base, validation.table.instrument, name, rate_difference(old, validation, name))
        for run, of_run in others
        for validation in of_run
        if (old := by_instrument.get(validation.table.instrument)) is not None
        for name in validation.rates
        if name in old.rates
    ]
