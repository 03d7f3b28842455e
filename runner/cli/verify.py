"""`nip-run verify`: every hash and record of a run or a release. Nothing is played, nothing is written."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from runner.cli.output import note, print_json, say
from runner.errors import UsageError
from runner.exit_codes import ExitCode
from runner.registry.differences import Note
from runner.registry.fetched import is_got
from runner.registry.verify import wrong_in_got, wrong_in_release, wrong_in_run
from runner.releases.reference import Kind, is_reference, parse
from runner.results.results import Results
from runner.text import counted
from runner.transports.connect import connect


def execute(args: argparse.Namespace) -> int:
    what, said = _checked(args)
    wrong = [line for line in said if not isinstance(line, Note)]
    notes = [line for line in said if isinstance(line, Note)]
    if args.json:
        print_json(
            {
                "what": what,
                "wrong": wrong,
                "notes": notes,
                "exit_code": int(ExitCode.FAILED if wrong else ExitCode.DONE),
            }
        )
        return ExitCode.FAILED if wrong else ExitCode.DONE
    for line in wrong:
        say(line)
    if wrong:
        note(f"{what}: {counted(len(wrong), 'thing')} wrong")
        return ExitCode.FAILED
    if not args.quiet:
        for line in notes:
            note(line)
        say(f"{what}: every hash is right, and all that was recorded follows from the journal")
    return ExitCode.DONE


def _checked(args: argparse.Namespace) -> tuple[str, Sequence[str]]:
    """What was checked, and all that is wrong with it."""
    folder = Path(args.what)
    if is_got(folder):
        if args.signer_key is not None:
            raise UsageError("a signature stays in the registry; verify the release there: --from WHERE and its REF")
        return str(folder), list(wrong_in_got(folder))
    if not folder.is_dir() and (is_reference(args.what) or "/" in args.what):
        named = parse(args.what, None if args.what.count("/") > 1 else Kind.RUN)
        with connect(args.where) as registry:
            entry = registry.find(named)
            return str(entry.reference), list(wrong_in_release(registry, entry, args.signer_key))
    run = Results(args.results).find(args.what)
    return run.run_id, list(wrong_in_run(run))
