"""Check every hash and record of a run or a release; plays nothing.

Examples:
  nip-run verify last
  nip-run verify run/acme/nip-0123456789 --from DIR
  nip-run verify mine
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.exit_codes import ExitCode
from runner.base.text import counted
from runner.cli.arguments import REF, RUN, add_registry
from runner.cli.terminal.output import note, print_json, say

if TYPE_CHECKING:
    from runner.documents.releases.manifest import Release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="RUN|REF|DIR", help=f"a run ({RUN}), {REF}, or a folder written by `get`")
    add_registry(parser)
    parser.add_argument(
        "--signer-key", type=Path, metavar="FILE", help="check the signature with this public key (PEM)"
    )


def execute(args: argparse.Namespace) -> int:
    from runner.registry.check_notes import CheckNote, VersionNote, count_differences

    what, also, found = _checked(args)
    wrong = [line for line in found if not isinstance(line, CheckNote)]
    notes = [line for line in found if isinstance(line, CheckNote)]
    changed, unchecked = _since_got(args)
    if args.json:
        said = {"what": what, "wrong": wrong, "notes": notes, "edited": changed, "not_checked": unchecked}
        print_json({**said, "exit_code": int(ExitCode.FAILED if wrong else ExitCode.DONE)})
        return ExitCode.FAILED if wrong else ExitCode.DONE
    for path in changed:
        note(f"{what}: {path} was edited since it was got, as it may be; what is played is as edited")
    if unchecked is not None:
        note(f"{what}: not checked: that its numbers follow from its journal. {unchecked[0].upper()}{unchecked[1:]}")
    for line in wrong:
        say(line)
    if wrong:
        note(f"{what}: {counted(count_differences(wrong), 'thing')} wrong")
        return ExitCode.FAILED
    if not args.quiet:
        for line in notes:
            note(line)
        least = "every other hash is right" if changed else "every hash is right"
        if also == FOLLOWS and any(isinstance(line, VersionNote) for line in notes):
            also = REST_FOLLOWS
        rest = f", and {also}" if also and unchecked is None else ""
        say(f"{what}: {least}{rest}")
    return ExitCode.DONE


def _since_got(args: argparse.Namespace) -> tuple[list[str], str | None]:
    """Of a got folder the files that its reader changed and may, and why not all could be checked."""
    from runner.base.errors import ReleaseError
    from runner.registry.bundles.missing_rows import describe_missing_rows, lacks_rows
    from runner.registry.fetched_release import is_fetched, open_fetched
    from runner.registry.verification.verify import edited_files

    folder = Path(args.what)
    if not is_fetched(folder):
        return [], None
    try:
        got = open_fetched(folder)
        return edited_files(folder), describe_missing_rows(got) if lacks_rows(got) else None
    except ReleaseError:  # which is told among what is wrong
        return [], None


FOLLOWS = "all that was recorded follows from the journal"
REST_FOLLOWS = "all else that was recorded follows from the journal"
"""Beside what another version told otherwise."""


def _also(release: Release, *, in_registry: bool = False) -> str:
    """What is checked of a release beside its hashes, or is not; in a registry no rows were put beside it."""
    from runner.registry.fetched_release import PIN
    from runner.spec.origin import DATA

    if in_registry and release.file(PIN) is not None:
        return "its numbers were not checked: the rows of its dataset, which they need, are not in it"
    if release.file(f"{DATA}/journal.jsonl") is not None:
        return FOLLOWS
    parts = any(link.role == "part" for link in release.links)
    return "its games are in releases of their own, which nip-run reproduce looks at" if parts else ""


def _any(lines: Iterable[str]) -> bool:
    from runner.registry.check_notes import CheckNote

    return not all(isinstance(line, CheckNote) for line in lines)


def _checked(args: argparse.Namespace) -> tuple[str, str, Sequence[str]]:
    """What was checked, what of it beside its hashes, and all that is wrong with it."""
    from runner.documents.releases.reference import Kind, is_reference, parse
    from runner.registry.board.wording import describe_tier
    from runner.registry.fetched_release import is_fetched, open_fetched
    from runner.registry.transports.locations import connect_to_read
    from runner.registry.verification.verify import find_folder_problems, find_release_problems, find_run_problems
    from runner.results.leaderboard.results_folder import Results

    folder = Path(args.what)
    if is_fetched(folder):
        _check_no_signer_key(args)
        wrong = list(find_folder_problems(folder))
        return str(folder), "" if _any(wrong) else _also(open_fetched(folder).release), wrong
    if not folder.is_dir() and (is_reference(args.what) or "/" in args.what):
        named = parse(args.what, None if args.what.count("/") > 1 else Kind.RUN)
        with connect_to_read(args.where) as registry:
            entry = registry.find(named)
            wrong = list(find_release_problems(registry, entry, args.signer_key))
            if (said := describe_tier(entry, registry.where)) and not (args.quiet or args.json):
                note(f"{entry.reference}: {said}; what follows was checked here")
            return str(entry.reference), "" if _any(wrong) else _also(registry.read(entry)[0], in_registry=True), wrong
    _check_no_signer_key(args)
    run = Results(args.results).find(args.what)
    return run.run_id, FOLLOWS, list(find_run_problems(run))


def _check_no_signer_key(args: argparse.Namespace) -> None:
    from runner.base.errors import UsageError

    if args.signer_key is not None:
        raise UsageError(
            "--signer-key needs a release in a registry, since signatures are stored there: give REF and --from WHERE"
        )
