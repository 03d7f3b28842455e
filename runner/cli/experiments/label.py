"""Answer an analyzer's question about parts of a run yourself, to measure the error of models that answer it.

Examples:
  nip-run label RUN follow_up --units 50
  nip-run label RUN tone.yaml --units 100 --stratify --readers Ann Ben
  nip-run label RUN tone.yaml --export labels.csv
  nip-run label RUN tone.yaml --import labels.csv --readers Ann
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join, counted
from runner.cli.arguments import RUNS_HELP
from runner.cli.experiments.question_page import add_page_options
from runner.cli.terminal.output import note, print_json, say
from runner.cli.terminal.page_file import open_in_browser, page_file

if TYPE_CHECKING:
    from runner.analysis.label_sample import SampledUnit
    from runner.analysis.labels import LabelFile
    from runner.analysis.results import AnalysisTable
    from runner.analysis.units import Unit
    from runner.results.folder import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help=RUNS_HELP)
    add("analyzer", metavar="ANALYZER", help="the name of a built-in analyzer, or an analyzer's .yaml file")
    add("--units", type=int, metavar="N", help="number of units to label, chosen at random; default: all")
    add(
        "--stratify",
        nargs="?",
        const="",
        metavar="INSTRUMENT",
        help="choose equal numbers of units for each answer of a model; INSTRUMENT chooses one of several models",
    )
    add("--seed", default="0", metavar="SEED", help="another seed chooses other units; default: 0")
    add(
        "--readers", nargs="+", default=[], metavar="NAME", help="accept only these readers; with --export: only theirs"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--export", type=Path, metavar="FILE", help="write the labels as a validation set for Scout, .csv"
    )
    action.add_argument(
        "--import", dest="import_file", type=Path, metavar="FILE", help="import labels from a validation set, .csv"
    )
    add_page_options(parser)


def execute(args: argparse.Namespace) -> int:
    from runner.analysis.analyzer import load_analyzer
    from runner.analysis.labels import LabelFile

    analyzer = load_analyzer(args.analyzer)
    folder: RunFolder = args.results.find(args.run)
    file = LabelFile(folder.path, analyzer)
    if args.export is not None:
        return _export(file, args)
    units = _applicable_units(folder, file)
    if args.import_file is not None:
        return _import(file, units, args)
    return _serve(folder, file, units, args)


def _applicable_units(folder: RunFolder, file: LabelFile) -> dict[str, Unit]:
    from runner.analysis.units import list_units, why_not_applicable

    units = {
        unit.id: unit for unit in list_units(folder, file.analyzer) if why_not_applicable(unit, file.analyzer) is None
    }
    if not units:
        raise UsageError(
            f"{file.analyzer.name} applies to no part of run {folder.run_id}, so there is nothing to label"
        )
    return units


# The page


def _serve(folder: RunFolder, file: LabelFile, units: Mapping[str, Unit], args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from runner.analysis.label_queue import LabelQueue, unit_question
    from runner.analysis.strata import save_strata
    from runner.pages.live.label_page import LabelPage
    from runner.pages.live.server import PageServer
    from runner.runs.execution.process import sigterm_as_keyboard_interrupt

    table, sample = _sample(folder, file, units, args)
    queue = LabelQueue(
        file, sample, lambda unit_id: unit_question(file.analyzer, units[unit_id]),
        stratified_by=None if table is None else save_strata(folder, table), readers=args.readers,
    )  # fmt: skip
    file.current()  # report a damaged file before readers start
    server = PageServer(LabelPage(queue, f"Label: {file.analyzer.name}"), args.port)
    try:
        with suppress(KeyboardInterrupt), sigterm_as_keyboard_interrupt(), page_file(server) as page:
            note(f"people label {counted(len(sample), 'unit')} at {page} (open this file in a browser on this machine; "
                 "only you can read it); Ctrl-C stops the server")  # fmt: skip
            if args.open:
                open_in_browser(page)
            server.serve_forever()
    finally:
        server.server_close()
    return _print_counts(folder, file, sample, args)


def _sample(
    folder: RunFolder, file: LabelFile, units: Mapping[str, Unit], args: argparse.Namespace
) -> tuple[AnalysisTable | None, list[SampledUnit]]:
    """Return the units to label, and the results whose answers are their strata."""
    from runner.analysis.label_sample import sample_units
    from runner.analysis.strata import table_strata

    if args.units is not None and args.units < 1:
        raise UsageError(f"--units {args.units}: the number of units must be 1 or more")
    if args.stratify is None:
        return None, sample_units(dict.fromkeys(units), args.seed, args.units)
    if args.units is None:
        raise UsageError("--stratify chooses some of the units; add --units N")
    table = _find_table(folder, file, args.stratify)
    strata = table_strata(table)
    return table, sample_units({unit_id: strata.get(unit_id, "") for unit_id in units}, args.seed, args.units)


def _find_table(folder: RunFolder, file: LabelFile, name: str) -> AnalysisTable:
    """Return the results of the analyzer's question by the start of their instrument."""
    from runner.analysis.results import read_analyses

    tables = [
        table for table in read_analyses(folder)
        if table.question_sha256 == file.analyzer.question_sha256 and table.instrument.startswith(name)
    ]  # fmt: skip
    if len(tables) == 1:
        return tables[0]
    subject = f"{file.analyzer.name} on run {folder.run_id}"
    if not tables:
        raise UsageError(
            f"--stratify: there are no results of {subject}. Run nip-run analyze {folder.run_id} ANALYZER first"
        )
    instruments = comma_join(table.instrument for table in tables)
    raise UsageError(f"--stratify: there are several results of {subject}; name one instrument: {instruments}")


def _print_counts(folder: RunFolder, file: LabelFile, sample: Sequence[SampledUnit], args: argparse.Namespace) -> int:
    ids = {unit.unit_id for unit in sample}
    counts = Counter(label.reader for label in file.current() if label.unit_id in ids)
    if args.json:
        print_json({"path": str(file.path), "units": len(ids), "labels": dict(sorted(counts.items()))})
    elif not args.quiet:
        for reader, count in sorted(counts.items()):
            say(f"{reader}: {count} of {len(ids)} units labeled")
        note(f"next: nip-run validate {folder.run_id} {args.analyzer}")
    return ExitCode.DONE


# CSV


def _export(file: LabelFile, args: argparse.Namespace) -> int:
    from runner.analysis.label_csv import labels_to_csv
    from runner.base.storage.atomic_files import atomic_write

    if args.export.suffix.lower() != ".csv":
        raise UsageError(f"--export {args.export}: the file name must end in .csv")
    labels = [label for label in file.current() if not args.readers or label.reader in args.readers]
    atomic_write(args.export, labels_to_csv(labels, file.analyzer))
    readers = sorted({label.reader for label in labels})
    if args.json:
        print_json({"path": str(args.export), "labels": len(labels), "readers": readers})
    elif not args.quiet:
        say(f"{args.export}: {counted(len(labels), 'label')}")
        if len(readers) > 1:
            note(f"the file has labels of {comma_join(readers)}; Scout expects one row per unit: add --readers NAME")
    return ExitCode.DONE


def _import(file: LabelFile, units: Mapping[str, Unit], args: argparse.Namespace) -> int:
    """Import all labels of a CSV file that differ from the current ones, or none if a row is wrong."""
    from runner.analysis.label_csv import labels_from_csv
    from runner.base.storage.line_file import MAX_FILE

    if len(args.readers) > 1:
        raise UsageError("--import: --readers names the reader of rows without one; name a single reader")
    try:
        text = read_bounded(args.import_file, MAX_FILE).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {args.import_file}: {getattr(error, 'strerror', error)}") from error
    labels = labels_from_csv(text, file.analyzer, units, *(args.readers or [None]))
    current = {(label.reader, label.unit_id): label.answer for label in file.current()}
    new = [label for label in labels if current.get((label.reader, label.unit_id)) != label.answer]
    file.append(new)
    if args.json:
        print_json({"new": len(new), "there": len(labels) - len(new)})
    elif not args.quiet:
        say(f"{counted(len(new), 'new label')}, {len(labels) - len(new)} already present")
    return ExitCode.DONE
