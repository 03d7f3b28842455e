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

from runner.base.errors import ReleaseError, UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import counted
from runner.cli.arguments import REFERENCE_HELP, RUN_HELP, add_registry_option
from runner.cli.terminal.output import note, print_json, say, say_lines

if TYPE_CHECKING:
    from runner.documents.releases.manifest import Release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="RUN|REF|DIR", help=f"a run ({RUN_HELP}), {REFERENCE_HELP}, or a folder written by `get`"
    )
    add_registry_option(parser)
    parser.add_argument(
        "--signer-key", type=Path, metavar="FILE", help="check the signature with this public key (PEM)"
    )


def execute(args: argparse.Namespace) -> int:
    from runner.registry.check_notes import CheckNote, UncheckedNote, count_differences

    target, further_result, findings = _check_target(args)
    problems = [line for line in findings if not isinstance(line, CheckNote)]
    notes = [line for line in findings if isinstance(line, CheckNote)]
    edited, why_unchecked = _find_local_edits(args)
    if args.json:
        facts = {"what": target, "wrong": problems, "notes": notes, "edited": edited, "not_checked": why_unchecked}
        print_json({**facts, "exit_code": int(ExitCode.FAILED if problems else ExitCode.DONE)})
        return ExitCode.FAILED if problems else ExitCode.DONE
    for path in edited:
        note(f"{target}: {path} was edited after the download, which is allowed; a run plays the edited version")
    if why_unchecked is not None:
        reason = f"{why_unchecked[0].upper()}{why_unchecked[1:]}"
        note(f"{target}: not checked: whether its numbers follow from its journal. {reason}")
    say_lines(problems)
    if problems:
        note(f"{target}: {counted(count_differences(problems), 'problem')}")
        return ExitCode.FAILED
    if not args.quiet:
        note(*notes)
        hash_result = "every other hash is right" if edited else "every hash is right"
        if further_result == NUMBERS_FOLLOW and any(isinstance(line, UncheckedNote) for line in notes):
            further_result = OTHER_NUMBERS_FOLLOW
        rest = f", and {further_result}" if further_result and why_unchecked is None else ""
        say(f"{target}: {hash_result}{rest}")
    return ExitCode.DONE


def _find_local_edits(args: argparse.Namespace) -> tuple[list[str], str | None]:
    """Return the files of a downloaded folder that were edited, and the reason if some checks are impossible."""
    from runner.registry.bundles.missing_rows import describe_missing_rows, lacks_rows
    from runner.registry.fetched_release import is_fetched, open_fetched
    from runner.registry.verification.verify import find_edited_files

    folder = Path(args.what)
    if not is_fetched(folder):
        return [], None
    try:
        release = open_fetched(folder)
        return find_edited_files(folder), describe_missing_rows(release) if lacks_rows(release) else None
    except ReleaseError:  # `_check_target` reports it
        return [], None


NUMBERS_FOLLOW = "all recorded numbers follow from the journal"
OTHER_NUMBERS_FOLLOW = "all other recorded numbers follow from the journal"
"""The result if some numbers cannot be checked; see `UncheckedNote`."""


def _describe_further_checks(release: Release, *, in_registry: bool = False) -> str:
    """Return the end of a sentence about the check of a release's numbers, or about why they cannot be checked.

    A dataset's rows that were not published can be added to a downloaded release, but not to one in a registry.
    """
    from runner.registry.fetched_release import PIN
    from runner.spec.origin import DATA

    if in_registry and release.file(PIN) is not None:
        return "its numbers were not checked, because it was published without the rows of its dataset"
    if release.file(f"{DATA}/journal.jsonl") is not None:
        return NUMBERS_FOLLOW
    has_parts = any(link.role == "part" for link in release.links)
    return "its games are in separate releases; nip-run reproduce checks them" if has_parts else ""


def _has_problems(lines: Iterable[str]) -> bool:
    from runner.registry.check_notes import CheckNote

    return not all(isinstance(line, CheckNote) for line in lines)


def _check_target(args: argparse.Namespace) -> tuple[str, str, Sequence[str]]:
    """Check the run, release or folder. Return its name, the result of the checks beyond hashes, and all findings."""
    from runner.documents.releases.reference import Kind, is_reference, parse_reference
    from runner.registry.board.wording import describe_tier
    from runner.registry.fetched_release import is_fetched, open_fetched
    from runner.registry.transports.locations import connect_to_read
    from runner.registry.verification.verify import find_folder_problems, find_release_problems, find_run_problems

    folder = Path(args.what)
    if is_fetched(folder):
        _check_no_signer_key(args)
        findings = list(find_folder_problems(folder))
        checks = "" if _has_problems(findings) else _describe_further_checks(open_fetched(folder).release)
        return str(folder), checks, findings
    if not folder.is_dir() and (is_reference(args.what) or "/" in args.what):
        reference = parse_reference(args.what, default_kind=Kind.RUN)
        with connect_to_read(args.registry) as registry:
            entry = registry.find(reference)
            findings = list(find_release_problems(registry, entry, args.signer_key))
            if (tier := describe_tier(entry, registry.address)) and not (args.quiet or args.json):
                note(f"{entry.reference}: {tier}; the following was checked locally")
            if _has_problems(findings):
                return str(entry.reference), "", findings
            release, _ = registry.read_manifest(entry)
            return str(entry.reference), _describe_further_checks(release, in_registry=True), findings
    _check_no_signer_key(args)
    run = args.results.find(args.what)
    return run.run_id, NUMBERS_FOLLOW, list(find_run_problems(run))


def _check_no_signer_key(args: argparse.Namespace) -> None:
    if args.signer_key is not None:
        raise UsageError(
            "--signer-key needs a release in a registry, which stores the signatures; give REF and --from WHERE"
        )
