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

from runner.base.exit_codes import ExitCode
from runner.base.storage.safe_files import read_bounded
from runner.base.text import counted, csv_text, in_one_line
from runner.cli.arguments import RUNS
from runner.cli.terminal.output import note as tell
from runner.cli.terminal.output import print_json, print_table, say, short_time

if TYPE_CHECKING:
    from runner.results.folder import RunFolder
    from runner.results.notes import Notes, ReaderNote


_COLUMNS = ("id", "rollout", "at", "by", "tags", "note")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help=RUNS)
    add("rollout", metavar="ROLLOUT", nargs="?", help="a rollout id, the start of one, or a datapoint's id")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--add", metavar="TEXT", help="add a note to the rollout, or to the run")
    what.add_argument("--remove", metavar="ID", help="remove a note")
    what.add_argument("--export", type=Path, metavar="FILE", help="write the notes to a file, .jsonl or .csv")
    what.add_argument(
        "--import",
        dest="take_in",
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
    from runner.base.errors import UsageError
    from runner.results.leaderboard.results_folder import Results
    from runner.results.notes import Notes

    folder = Results(args.results).find(args.run)
    notes = Notes(folder)
    of = None if args.rollout is None else _rollout_id(folder, notes, args.rollout)
    if args.add is not None:
        kept = notes.write(args.add, args.tag, rollout_id=of, by=args.by)
        return _done(args, kept.to_json(), f"kept note {kept.id} of {_of(folder, kept)}")
    if args.by is not None:
        raise UsageError("--by needs --add")
    if args.remove is not None:
        notes.remove(args.remove)
        return _done(args, {"removed": args.remove}, f"removed note {args.remove}")
    if args.take_in is not None:
        new, there = notes.take_in(_read(args.take_in))
        return _done(args, {"new": new, "there": there}, f"{counted(new, 'new note')}, {there} there already")
    words = (args.search or "").lower().split()
    found = [
        one for one in notes.all()
        if of in (None, one.rollout_id) and set(args.tag) <= set(one.tags) and one.has(words)
    ]  # fmt: skip
    if args.export is not None:
        _export(args.export, found, folder.run_id)
        return _done(
            args, {"path": str(args.export), "notes": len(found)}, f"{args.export}: {counted(len(found), 'note')}"
        )
    return _list(found, folder, args)


def _rollout_id(folder: RunFolder, notes: Notes, name: str) -> str:
    """The id of the rollout that is meant; one that has notes needs no look at the run's games."""
    from runner.runs.finished.reconstruction import find_rollout, played_plan

    noted = {one.rollout_id for one in notes.all()}
    return name if name in noted else find_rollout(folder, played_plan(folder), name).job.rollout_id


def _of(folder: RunFolder, note: ReaderNote) -> str:
    return f"run {folder.run_id}" if note.rollout_id is None else f"rollout {note.rollout_id}"


def _done(args: argparse.Namespace, result: object, said: str) -> int:
    if args.json:
        print_json(result)
    elif not args.quiet:
        say(said)
    return ExitCode.DONE


def _read(path: Path) -> bytes:
    from runner.base.errors import UsageError
    from runner.results.notes import MAX_FILE

    try:
        return read_bounded(path, MAX_FILE)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _export(path: Path, notes: Sequence[ReaderNote], run_id: str) -> None:
    """Raises:
    UsageError: the file's ending says no format.
    RunError: it cannot be written.
    """
    from runner.base.errors import UsageError
    from runner.base.hashing import canonical
    from runner.base.storage.atomic_files import atomic_write

    if path.suffix.lower() == ".csv":
        lines = io.StringIO()
        rows = csv.writer(lines, lineterminator="\n")
        rows.writerow(("run_id", "id", "at", "by", "rollout_id", "tags", "text"))
        cells = ((run_id, one.id, one.at, one.by or "", one.rollout_id or "", ", ".join(one.tags), one.text)
                 for one in notes)  # fmt: skip
        rows.writerows(map(csv_text, row) for row in cells)
        atomic_write(path, lines.getvalue())
    elif path.suffix.lower() == ".jsonl":
        atomic_write(path, b"".join(canonical({"run_id": run_id, **one.to_json()}) + b"\n" for one in notes))
    else:
        raise UsageError(f"--export {path}: the file name must end in .jsonl or .csv")


def _list(notes: Sequence[ReaderNote], folder: RunFolder, args: argparse.Namespace) -> int:
    if args.json:
        print_json([one.to_json() for one in notes])
        return ExitCode.DONE
    if not notes:
        say(f"no such notes of run {folder.run_id}" if args.search or args.tag or args.rollout else
            f"no notes of run {folder.run_id}")  # fmt: skip
        if not args.quiet:
            tell(f"add one: nip-run notes {folder.run_id} ROLLOUT --add TEXT")
        return ExitCode.DONE
    rows = [
        (one.id, one.rollout_id or "(the run)", short_time(one.at), one.by or "", ", ".join(one.tags),
         in_one_line(one.text))
        for one in notes
    ]  # fmt: skip
    print_table(_COLUMNS, rows, drop=("by", "at"))
    return ExitCode.DONE
