"""List, search, add, export or import readers' notes on a run.

Examples:
  nip-run notes RUN
  nip-run notes RUN ROLLOUT --add 'gives up too early' --tag verifier
  nip-run notes last --search early
  nip-run notes last --export notes.csv
  nip-run notes RUN --import notes.jsonl
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import UsageError, os_errors_as
from runner.base.exit_codes import ExitCode
from runner.base.storage.safe_files import read_bounded
from runner.base.text import counted, csv_text, in_one_line
from runner.cli.arguments import RUNS_HELP
from runner.cli.terminal.output import format_time, print_json, print_table, say
from runner.cli.terminal.output import note as print_note

if TYPE_CHECKING:
    from runner.results.folder import RunFolder
    from runner.results.notes import Notes, ReaderNote


_COLUMNS = ("id", "rollout", "at", "by", "tags", "note")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help=RUNS_HELP)
    add("rollout", metavar="ROLLOUT", nargs="?", help="a rollout id, the start of one, or a datapoint's id")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--add", metavar="TEXT", help="add a note to the rollout, or to the run")
    action.add_argument("--remove", metavar="ID", help="remove a note")
    action.add_argument("--export", type=Path, metavar="FILE", help="write the notes to a file, .jsonl or .csv")
    action.add_argument(
        "--import",
        dest="import_file",
        type=Path,
        metavar="FILE",
        help="import a notes.jsonl, such as the one a report saves",
    )
    add(
        "--tag",
        action="append",
        default=[],
        metavar="TAG",
        help="with --add: a tag of the note; otherwise only notes with this tag; repeatable",
    )
    add("--by", metavar="NAME", help="with --add: the author")
    add("--search", metavar="WORDS", help="only notes whose text or tags contain all these words")


def execute(args: argparse.Namespace) -> int:
    from runner.results.notes import Notes

    folder: RunFolder = args.results.find(args.run)
    notes = Notes(folder)
    rollout_id = None if args.rollout is None else _rollout_id(folder, notes, args.rollout)
    if args.add is not None:
        entry = notes.write(args.add, args.tag, rollout_id=rollout_id, by=args.by)
        subject = f"run {folder.run_id}" if rollout_id is None else f"rollout {rollout_id}"
        return _print_done(args, entry.to_json(), f"added note {entry.id} to {subject}")
    if args.by is not None:
        raise UsageError("--by names the author of a new note; add --add TEXT")
    if args.remove is not None:
        notes.remove(args.remove)
        return _print_done(args, {"removed": args.remove}, f"removed note {args.remove}")
    if args.import_file is not None:
        new, existing = notes.import_lines(_read_file(args.import_file))
        message = f"{counted(new, 'new note')}, {existing} already present"
        return _print_done(args, {"new": new, "there": existing}, message)
    terms = (args.search or "").lower().split()
    matches = [
        entry for entry in notes.all()
        if rollout_id in (None, entry.rollout_id) and set(args.tag) <= set(entry.tags) and entry.contains(terms)
    ]  # fmt: skip
    if args.export is not None:
        _export_notes(args.export, matches, folder.run_id)
        return _print_done(
            args, {"path": str(args.export), "notes": len(matches)}, f"{args.export}: {counted(len(matches), 'note')}"
        )
    return _list_notes(matches, folder, args)


def _rollout_id(folder: RunFolder, notes: Notes, name: str) -> str:
    """Return the id of the named rollout. For a rollout with notes, this does not read the run's games."""
    from runner.runs.finished.reconstruction import find_rollout, played_plan

    ids_with_notes = {reader_note.rollout_id for reader_note in notes.all()}
    return name if name in ids_with_notes else find_rollout(folder, played_plan(folder), name).job.rollout_id


def _print_done(args: argparse.Namespace, result: object, message: str) -> int:
    if args.json:
        print_json(result)
    elif not args.quiet:
        say(message)
    return ExitCode.DONE


def _read_file(path: Path) -> bytes:
    from runner.base.storage.line_file import MAX_FILE

    with os_errors_as(UsageError, f"cannot read {path}"):
        return read_bounded(path, MAX_FILE)


def _export_notes(path: Path, notes: Sequence[ReaderNote], run_id: str) -> None:
    """Write notes to a .csv or .jsonl file.

    Raises:
        UsageError: the extension is neither .csv nor .jsonl.
        RunError: the file cannot be written.
    """
    from runner.base.hashing import canonical
    from runner.base.storage.atomic_files import atomic_write

    if path.suffix.lower() == ".csv":
        lines = io.StringIO()
        rows = csv.writer(lines, lineterminator="\n")
        rows.writerow(("run_id", "id", "at", "by", "rollout_id", "tags", "text"))
        cells = ((run_id, entry.id, entry.at, entry.by or "", entry.rollout_id or "", ", ".join(entry.tags), entry.text)
                 for entry in notes)  # fmt: skip
        rows.writerows(map(csv_text, row) for row in cells)
        atomic_write(path, lines.getvalue())
    elif path.suffix.lower() == ".jsonl":
        atomic_write(path, b"".join(canonical({"run_id": run_id, **entry.to_json()}) + b"\n" for entry in notes))
    else:
        raise UsageError(f"--export {path}: the file name must end in .jsonl or .csv")


def _list_notes(notes: Sequence[ReaderNote], folder: RunFolder, args: argparse.Namespace) -> int:
    if args.json:
        print_json([entry.to_json() for entry in notes])
        return ExitCode.DONE
    if not notes:
        matching = "matching " if args.search or args.tag or args.rollout else ""
        say(f"no {matching}notes on run {folder.run_id}")
        if not args.quiet:
            print_note(f"add one: nip-run notes {folder.run_id} ROLLOUT --add TEXT")
        return ExitCode.DONE
    rows = [
        (entry.id, entry.rollout_id or "(the run)", format_time(entry.at), entry.by or "", ", ".join(entry.tags),
         in_one_line(entry.text))
        for entry in notes
    ]  # fmt: skip
    print_table(_COLUMNS, rows, drop=("by", "at"))
    return ExitCode.DONE
