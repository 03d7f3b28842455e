"""Merge the shards of a run into one run.

Examples:
  nip-run merge RUN
  nip-run merge RUN copied/3-of-8
  nip-run merge copied/1-of-2 copied/2-of-2
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.exit_codes import ExitCode
from runner.cli.startup import one_blas_thread
from runner.cli.terminal.output import note, print_json
from runner.statistics.intervals import load_intervals

if TYPE_CHECKING:
    from runner.base.errors import MergeError
    from runner.results.folder import RunFolder
    from runner.results.leaderboard.results_folder import Results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN|PART",
        help="run ids, run folders, or folders of shards copied from other machines",
    )


def execute(args: argparse.Namespace) -> int:
    from runner.base.errors import MergeError
    from runner.cli.terminal.run_result import as_json, show_result
    from runner.results.leaderboard.results_folder import Results
    from runner.runs.shards.merge import merge

    results = Results(args.results)
    runs = named(args.runs, results)
    with one_blas_thread():
        load_intervals()
    failed: list[MergeError] = []
    done = []
    for run_id, parts in runs.items():
        try:
            result = merge(run_id, results, parts)
        except MergeError as error:
            if len(runs) == 1:
                raise
            failed.append(error)
            continue
        done.append(result)
        if result.was_finished:
            note(f"run {run_id} was merged already; nothing was changed")
        if not args.json:
            show_result(result, results, run_id, quiet=True, verbose=args.verbose > 0)
            for line in () if args.quiet else result.notes:
                note(f"note: {line}")
    if args.json:
        print_json([as_json(result) for result in done])
    for line in (line for one in failed for line in one.lines()):
        note(line)
    return ExitCode.FAILED if failed else ExitCode.DONE


def named(words: Sequence[str], results: Results) -> dict[str, list[RunFolder]]:
    """The runs that words name, each with the parts of it that are given by their folders.

    A part goes to the run that it says it is of, where that is named; else to the only one there is, which refuses it.

    Raises:
        UsageError: a word names neither a run nor a part.
    """
    from runner.base.errors import UsageError
    from runner.results.folder import SHARDS, RunFolder

    runs: dict[str, list[RunFolder]] = {}
    parts: list[tuple[str, RunFolder]] = []
    names, wrong = [], []
    for word in words:
        path = Path(word)
        if (path / "manifest.json").is_file() and not _is_run(path, results):
            parts.append((_run_of(RunFolder(path)), RunFolder(path)))
        else:
            names.append(word)
    given = [*dict.fromkeys(run_id for run_id, _ in parts if run_id)]
    for word in names:
        path = Path(word)
        if (path / SHARDS).is_dir() and path.resolve() == results.run(path.resolve().name).path.resolve():
            runs.setdefault(path.resolve().name, [])
        elif (found := _begun(word, results, given)) is not None:
            runs.setdefault(found, [])
        else:
            wrong.append(
                f"{word!r}: no run in {results.path} was played in shards by this name, and {_given(parts, given)}"
            )
    if wrong:
        raise UsageError(wrong[0]).with_notes(wrong[1:])
    for run_id, folder in parts:
        home = run_id if run_id in runs else next(iter([*runs, *given]), folder.path.name)
        runs.setdefault(home, []).append(folder)
    return runs


def _run_of(part: RunFolder) -> str:
    """The id of the run that a part says it is of; none of one that is damaged, which is told with all the rest."""
    from runner.base.errors import RunError
    from runner.results.folder import split_part
    from runner.spec.experiment import RUN_ID_PATTERN

    try:
        run_id = split_part(part.manifest().run_id)[0]
    except RunError:
        return ""
    return run_id if re.fullmatch(RUN_ID_PATTERN, run_id) else ""


def _given(parts: Sequence[tuple[str, RunFolder]], runs: Sequence[str]) -> str:
    """What the parts are of that are given."""
    if runs:
        return f"the parts given are of {', '.join(runs)}"
    if parts:
        return f"what is given as parts cannot be read: {', '.join(str(folder.path) for _, folder in parts)}"
    return "no part is there"


def _is_run(path: Path, results: Results) -> bool:
    """Whether a folder is that of a whole run of these results."""
    whole = results.run(path.resolve().name)
    return whole.path.resolve() == path.resolve()


def _begun(word: str, results: Results, given: Sequence[str]) -> str | None:
    """The id of the run, of these results or of given parts, that a word names, or is the only one to begin with."""
    here = [folder.run_id for folder in results.in_shards(word)] if word else []
    found = sorted({*here, *(run_id for run_id in given if word and run_id.startswith(word))})
    if word in found or (word and "/" not in word and results.run(word).manifest_path.is_file()):
        return word
    return found[0] if len(found) == 1 else None
