"""Find out whether a dataset gives its labels away, and whether its splits are separate.

Examples:
  nip-run audit spec.yaml
  nip-run audit data.jsonl dataset.group_by=problem
  nip-run audit spec.yaml --ignore number --html audit.html
  nip-run audit data.csv dataset.columns.label=is_correct --max-auc 0.6 --json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import UsageError
from runner.base.text import counted, decimal, in_one_line, list_some, p_value, with_interval
from runner.cli.terminal.output import note, print_heading, print_json, print_table, say, say_lines

if TYPE_CHECKING:
    from runner.curation.audit.report import AuditReport

MAX_LISTED_DUPLICATES = 10
"""Number of duplicates that are printed; --json and --html have all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "dataset",
        metavar="DATASET",
        help="a .jsonl, .csv or .parquet file, or a spec with a section `dataset`; all splits are audited. Exit code "
        "1: there are findings; 5: no findings, but too little data to find any; 0: no findings",
    )
    add("overrides", nargs="*", default=[], metavar="KEY=VALUE", help="set a key, such as dataset.group_by=problem")
    add(
        "--ignore",
        action="append",
        default=[],
        metavar="COLUMN",
        help="a column that no agent sees, such as the number of a solution; repeatable",
    )
    add(
        "--max-auc",
        type=float,
        default=0.5,
        metavar="X",
        help="accept predictors with an AUC from 1-X to X, even if they are significant; default: 0.5",
    )
    add(
        "--similarity",
        type=float,
        metavar="S",
        help="the share of common word triples that makes two texts near-duplicates; default: 0.8",
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of the permutations and of cross-validation; default: 0")
    add("--html", type=Path, metavar="FILE.html", help="also write a page")


def execute(args: argparse.Namespace) -> int:
    from runner.curation.audit.duplicates import SIMILARITY
    from runner.curation.audit.items import list_columns, list_items
    from runner.curation.audit.report import AuditSettings, audit_dataset
    from runner.registry.components.lookup import make_finder_for
    from runner.spec.loader import load_whole_dataset

    similarity = SIMILARITY if args.similarity is None else args.similarity
    _check_options(args, similarity)
    dataset = load_whole_dataset(args.dataset, args.overrides, make_finder_for(args.dataset))
    columns = list_columns(list_items(dataset))
    if unknown := [name for name in args.ignore if name not in columns]:
        raise UsageError(f"--ignore {unknown[0]}: no such column; the audit uses {list_some(columns)}")
    settings = AuditSettings(frozenset(args.ignore), args.max_auc, similarity, args.seed)
    report = audit_dataset(dataset, settings)
    if args.json:
        print_json(report.to_json())
    else:
        _show_report(args.dataset, report)
    if args.html is not None:  # at the end, so that a path that cannot be written does not cost the results
        _write_page(args.html, args.dataset, report)
    return report.exit_code


def _check_options(args: argparse.Namespace, similarity: float) -> None:
    if not 0.5 <= args.max_auc <= 1:
        raise UsageError(f"--max-auc {args.max_auc}: must be from 0.5 to 1")
    if not 0 < similarity <= 1:
        raise UsageError(f"--similarity {similarity}: must be above 0 and at most 1")
    if args.seed < 0:
        raise UsageError(f"--seed {args.seed}: must be 0 or more")
    if args.html is not None and args.html.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--html {args.html}: the file name must end in .html")


def _write_page(path: Path, name: str, report: AuditReport) -> None:
    from runner.base.redaction import current_redactor
    from runner.base.storage.atomic_files import atomic_write
    from runner.pages.report.audit import audit_page

    page = current_redactor().redact_text(audit_page(name, report))
    atomic_write(path, page.encode("utf-8", "backslashreplace"))


def _show_report(name: str, report: AuditReport) -> None:
    findings = counted(len(report.findings), "finding") if report.findings else "no findings"
    print_heading(f"{in_one_line(name)}: {findings}")
    say_lines(f"  {in_one_line(line)}" for line in report.findings)
    labels = ", ".join(f"{count} with label {label}" for label, count in report.labels.items())
    say(f"{counted(report.items, 'item')} in {counted(report.groups, 'group')}: {labels}")
    if report.untested is not None:
        note(f"note: {report.untested}")
    if report.tested_items < report.items and report.tests:
        note(f"note: predictors were tested with {report.tested_items} items, in groups chosen at random")
    if report.tests:
        say()
        _print_tests(report)
    for edit in report.edits:
        size = f"median {edit.median_size:g} characters, starting {edit.median_position:.0%} into the text"
        say(f"column {edit.column!r}: {counted(edit.edits, 'wrong version')} next to a right one; edits: {size}")
    _print_duplicates(report)


def _print_tests(report: AuditReport) -> None:
    rows = [
        (
            test.column, test.measure, with_interval(test.auc, test.ci_low, test.ci_high), p_value(test.p),
            p_value(test.p_holm), "yes" if report.is_leak(test) else "no",
        )
        for test in report.tests
    ]  # fmt: skip
    title = "does it predict the label? (AUC 0.5: no; below 0.5: larger with label 0)"
    print_table(("column", "measure", "AUC [95%]", "p", "p (Holm)", "leak"), rows, title, drop=("p",))


def _print_duplicates(report: AuditReport) -> None:
    if not report.duplicates:
        return
    say()
    scope = report.duplicate_scope
    rows = [
        (pair.column, pair.first, pair.second, " and ".join(pair.places), decimal(pair.similarity))
        for pair in report.duplicates[:MAX_LISTED_DUPLICATES]
    ]
    title = f"duplicates and near-duplicates in different {scope}"
    print_table(("column", "first", "second", scope, "similarity"), rows, title, drop=(scope,))
    if len(report.duplicates) > MAX_LISTED_DUPLICATES:
        note(f"only the first {MAX_LISTED_DUPLICATES} of {len(report.duplicates)}; --json and --html have all")
