"""Answer an analyzer's question about parts of a run yourself, to measure the error of models that answer it.

Examples:
  nip-run label RUN follow_up --units 50
  nip-run label RUN tone.yaml --units 100 --stratify --readers Ann Ben
  nip-run label RUN tone.yaml --units 50 --export sample.csv
  nip-run label RUN tone.yaml --import sample.csv --readers Ann
"""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join, counted, list_some
from runner.cli.arguments import RUNS_HELP, add_trust_options
from runner.cli.experiments.question_page import add_page_options
from runner.cli.terminal.output import note, print_json, say
from runner.cli.terminal.page_file import open_in_browser, page_file

if TYPE_CHECKING:
    from runner.analysis.label_sample import SampledUnit
    from runner.analysis.labels import Label, LabelFile
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
        "--readers",
        nargs="+",
        default=[],
        metavar="NAME",
        help="accept, import and export only labels of these readers; with one NAME, also the imported rows without a "
        "reader are theirs",
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--export",
        type=Path,
        metavar="FILE",
        help="write the labels as a validation set for Scout, .csv; with --units: the sample, with empty targets to "
        "fill in",
    )
    action.add_argument(
        "--import", dest="import_file", type=Path, metavar="FILE", help="import labels from a validation set, .csv"
    )
    add(
        "--replace",
        action="store_true",
        help="with --import: replace labels that differ, and delete those with an empty target",
    )
    add_trust_options(parser)
    add_page_options(parser)


def execute(args: argparse.Namespace) -> int:
    from runner.analysis.analyzer import load_analyzer
    from runner.analysis.labels import LabelFile

    if args.replace and args.import_file is None:
        raise UsageError("--replace belongs to --import FILE")
    analyzer = load_analyzer(args.analyzer)
    folder: RunFolder = args.results.find(args.run)
    file = LabelFile(folder.path, analyzer)
    if args.export is not None:
        return _export(folder, file, args)
    units = _applicable_units(folder, file, args)
    if args.import_file is not None:
        return _import(file, units, args)
    return _serve(folder, file, units, args)


def _applicable_units(folder: RunFolder, file: LabelFile, args: argparse.Namespace) -> dict[str, Unit]:
    from runner.analysis.planning import decide_units
    from runner.models.api_keys import all_allowed

    allowed = all_allowed(args.allow_key, args.allow_command, args.allow_host)
    decided = decide_units(folder, file.analyzer, allowed)
    units = {unit.id: unit for unit in decided.units if unit.id not in decided.reasons}
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
    from runner.pages.live.question_page import LabelPage
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
    table = _find_table(folder, file, args)
    strata = table_strata(table)
    return table, sample_units({unit_id: strata.get(unit_id, "") for unit_id in units}, args.seed, args.units)


def _find_table(folder: RunFolder, file: LabelFile, args: argparse.Namespace) -> AnalysisTable:
    """Return the results of the analyzer's question by the start of their instrument, `args.stratify`."""
    from runner.analysis.results import read_analyses

    tables = [
        table for table in read_analyses(folder)
        if table.question_sha256 == file.analyzer.question_sha256 and table.instrument.startswith(args.stratify)
    ]  # fmt: skip
    if len(tables) == 1:
        return tables[0]
    subject = f"{file.analyzer.name} on run {folder.run_id}"
    if not tables:
        command = shlex.join(["nip-run", "analyze", folder.run_id, args.analyzer])
        raise UsageError(f"--stratify: there are no results of {subject}. First run {command}")
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


def _export(folder: RunFolder, file: LabelFile, args: argparse.Namespace) -> int:
    from runner.analysis.label_csv import labels_to_csv
    from runner.base.storage.atomic_files import atomic_write

    if args.export.suffix.lower() != ".csv":
        raise UsageError(f"--export {args.export}: the file name must end in .csv")
    rows = [label for label in file.current() if not args.readers or label.reader in args.readers]
    texts = None
    if args.units is not None or args.stratify is not None:
        rows, texts = _sample_rows(folder, file, rows, args)
    atomic_write(args.export, labels_to_csv(rows, file.analyzer, texts))
    labels = [row for row in rows if row.answer is not None]
    readers, to_label = sorted({row.reader for row in labels}), len(rows) - len(labels)
    if args.json:
        print_json({"path": str(args.export), "labels": len(labels), "to_label": to_label, "readers": readers})
    elif not args.quiet:
        empty = "" if texts is None else f", {counted(to_label, 'row')} to fill in"
        say(f"{args.export}: {counted(len(labels), 'label')}{empty}")
        if to_label:
            words = ["nip-run", "label", args.run, args.analyzer, "--import", str(args.export), "--readers"]
            command = shlex.join([*words, *(args.readers or ["NAME"])])
            note(f"fill in `target` with one of {comma_join(file.analyzer.file.answers)}; next: {command}")
        elif texts is None and not labels:
            note("add --units N to write a random sample of N units to label")
        if len(readers) > 1:
            note(f"the file has labels of {comma_join(readers)}; Scout expects one row per unit: add --readers NAME")
    return ExitCode.DONE


def _sample_rows(
    folder: RunFolder, file: LabelFile, labels: Sequence[Label], args: argparse.Namespace
) -> tuple[list[Label], dict[str, str]]:
    """Return the rows of a sample to fill in, and the texts of its units."""
    from runner.analysis.label_csv import rows_of_sample, unit_text
    from runner.analysis.label_queue import unit_question
    from runner.analysis.strata import save_strata

    units = _applicable_units(folder, file, args)
    table, sample = _sample(folder, file, units, args)
    stratified_by = None if table is None else save_strata(folder, table)
    rows = rows_of_sample(sample, labels, file.analyzer, args.readers, stratified_by)
    return rows, {row.unit_id: unit_text(unit_question(file.analyzer, units[row.unit_id])) for row in rows}


class _Import(NamedTuple):
    """The labels of a CSV file, by what an import does with them."""

    new: list[Label]
    changed: list[Label]
    deleted: list[Label]
    """Labels without an answer for units that the reader labeled."""
    unchanged: list[Label]
    empty: list[Label]
    """Labels without an answer for other units."""

    @classmethod
    def from_labels(cls, labels: Sequence[Label], current: Sequence[Label]) -> _Import:
        answers = {(label.reader, label.unit_id): label.answer for label in current}
        result = cls([], [], [], [], [])
        for label in labels:
            answer = answers.get((label.reader, label.unit_id))
            if label.answer is None:
                (result.empty if answer is None else result.deleted).append(label)
            elif answer is None:
                result.new.append(label)
            else:
                (result.unchanged if answer == label.answer else result.changed).append(label)
        return result


def _import(file: LabelFile, units: Mapping[str, Unit], args: argparse.Namespace) -> int:
    """Import the labels of a CSV file, or none if a row is wrong."""
    from runner.analysis.label_csv import labels_from_csv
    from runner.base.storage.line_file import MAX_FILE

    try:
        text = read_bounded(args.import_file, MAX_FILE).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {args.import_file}: {getattr(error, 'strerror', error)}") from error
    labels = labels_from_csv(text, file.analyzer, units, args.readers[0] if len(args.readers) == 1 else None)
    accepted = [label for label in labels if not args.readers or label.reader in args.readers]
    parts = _Import.from_labels(accepted, file.current())
    if not args.replace:
        if parts.changed:
            listed = list_some([f"{label.reader}'s for {label.unit_id}" for label in parts.changed])
            raise UsageError(
                f"nothing was imported: {counted(len(parts.changed), 'label')} of the run would change ({listed}); "
                "add --replace to replace labels"
            )
        parts = parts._replace(deleted=[], empty=parts.deleted + parts.empty)
    file.append(parts.new + parts.changed + parts.deleted)
    if args.json:
        others = len(labels) - len(accepted)
        print_json({name: len(part) for name, part in parts._asdict().items()} | {"other_readers": others})
    elif not args.quiet:
        _print_import(parts, sorted({label.reader for label in labels if label not in accepted}))
    return ExitCode.DONE


def _print_import(parts: _Import, other_readers: Sequence[str]) -> None:
    done = [f"{len(part)} {name}" for name, part in (("changed", parts.changed), ("deleted", parts.deleted)) if part]
    say(comma_join([counted(len(parts.new), "new label"), *done, f"{len(parts.unchanged)} already present"]))
    if any(label.drawn is None for label in parts.new + parts.changed):
        note("nip-run did not draw all of these units: nip-run validate needs a random sample of the run's units")
    if parts.empty:
        note(f"{counted(len(parts.empty), 'row')} without a target left out")
    if other_readers:
        note(f"labels of {comma_join(other_readers)} left out, because --readers does not name them")
