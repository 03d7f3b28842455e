"""Publish a run or a component with all the files that determine its results.

Examples:
  nip-run publish RUN --to DIR --as acme --license CC-BY-4.0 --dry-run
  nip-run publish prompts/mine --kind prompts --as acme/terse@1.0 --to git:git@example.org:acme/board.git
  nip-run publish acme/terse@1.0 --kind prompts --yank 'leaks the label'
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import Interrupted, RunDirectoryError, RunError, UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import counted
from runner.cli.arguments import REFERENCE_HELP, REGISTRY_HELP, RUN_HELP, parse_kind
from runner.cli.terminal.output import note, print_heading, print_json, print_table, say, say_lines

if TYPE_CHECKING:
    from runner.documents.releases.reference import Kind, Reference
    from runner.registry.draft import Draft, PublisherChoices
    from runner.registry.publishing.publish import ReadyRelease
    from runner.registry.transports.interface import AddResult
    from runner.registry.transports.registry import PublishResult, Registry, ReleaseEntry
    from runner.results.folder import RunFolder
    from runner.results.leaderboard.results_folder import Results


OWNER = "NIP_RUN_OWNER"
"""The environment variable with the owner of releases for commands without `--as`."""

HASH_DIGITS = 12
"""Number of digits of a hash that are printed; `--json` has all of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "what",
        nargs="+",
        metavar="RUN|FILE|FOLDER",
        help=f"runs ({RUN_HELP}; or a folder); or with --kind the file or folder of a component",
    )
    add("--to", dest="registry", metavar="WHERE", help=f"the registry: {REGISTRY_HELP}")
    add("--kind", help="kind of a component: protocol, prompts, dataset, agent, trainer, spec or model")
    add(
        "--as",
        dest="name",
        metavar="OWNER/NAME@VERSION",
        help="the release's name; for a run OWNER is enough: the name is its id, the version 1",
    )
    add("--part", metavar="NAME", help="the agent, trainer or model group to take from a spec")
    _add_terms(parser)
    _add_actions(parser)


def _add_terms(parser: argparse.ArgumentParser) -> None:
    """Add the options for the description, the licenses and the visibility of a release."""
    add = parser.add_argument
    add("--description", default="", metavar="TEXT", help="description for listings")
    add("--license", "--licence", metavar="SPDX", help="license as an SPDX expression, such as CC-BY-4.0 or MIT")
    add(
        "--dataset-license",
        "--dataset-licence",
        metavar="SPDX",
        help="license of a run's dataset, if different; `none` leaves its rows out",
    )
    add(
        "--labels-license",
        "--labels-licence",
        metavar="SPDX",
        help="license of the labels of people, which are left out without it; their names become numbers",
    )
    add("--private", action="store_true", help="leave the release out of searches and leaderboards")


def _add_actions(parser: argparse.ArgumentParser) -> None:
    """Add the options that change which checks are made and what is sent."""
    add = parser.add_argument
    add("--dry-run", action="store_true", help="run all checks and show what would be sent, but send nothing")
    add(
        "--force",
        action="store_true",
        help="publish even if files of a public repository are not committed and pushed; marked as not pinned",
    )
    add("--pin", type=Path, metavar="SPEC", help="pin a run whose SPEC and files have since been pushed unchanged")
    add(
        "--allow-name",
        action="append",
        default=[],
        metavar="WORD",
        help="publish this user name, machine name, host or path anyway; repeatable",
    )
    add("--child-of", metavar="REF", help=f"the release it was derived from: {REFERENCE_HELP}")
    add("--pull-request", action="store_true", help="git, hf: propose a branch or a pull request")
    add("--sign-key", type=Path, metavar="FILE", help="sign the manifest with this private key (PEM)")
    add(
        "--yank",
        metavar="REASON",
        help="withdraw a version: it is no longer the newest, and users who request it see the reason",
    )


def execute(args: argparse.Namespace) -> int:
    from runner.registry.publishing.publish import PublishOptions, prepare_releases, send_releases
    from runner.registry.redaction.machine_names import MachineNames

    kind = parse_kind(args.kind)
    if args.yank is not None:
        return _yank_releases(args, kind)
    if args.pull_request and args.sign_key is not None:
        raise UsageError(
            "--sign-key cannot sign a proposed release: merge the pull request, then repeat the command without "
            "--pull-request"
        )
    registry = _connect_registry(args)
    try:
        with ExitStack() as resources:
            if registry is not None:
                resources.enter_context(registry)
            draft_groups, folders = _collect_drafts(args, kind, registry, resources)
            names = MachineNames.of_process(args.results.path if folders else None).without(args.allow_name)
            options = PublishOptions(names=names, force=args.force)
            ready_releases = resources.enter_context(prepare_releases(draft_groups, registry, options))
            if args.dry_run:
                return _show_dry_run(ready_releases, registry, args)
            assert registry is not None
            published, added = send_releases(ready_releases, registry)
            _sign_releases(registry, published, args)
            _record_releases(folders, published, ready_releases, registry.address)
            return _show_published(ready_releases, published, added, registry.address, args)
    except KeyboardInterrupt:
        error = Interrupted("interrupted; a release that was not published completely stays invisible")
        error.add_note("Repeat the command to finish.")
        raise error from None


def _connect_registry(args: argparse.Namespace) -> Registry | None:
    from runner.registry.transports.locations import REGISTRY_VARIABLE, connect

    if args.dry_run and args.registry is None and not os.environ.get(REGISTRY_VARIABLE):
        return None
    return connect(args.registry, pull_request=args.pull_request)


# Drafts


def _collect_drafts(
    args: argparse.Namespace, kind: Kind | None, registry: Registry | None, locks: ExitStack
) -> tuple[list[Sequence[Draft]], list[RunFolder]]:
    """Return the drafts of each run or component on the command line, and the folders of the runs."""
    from runner.documents.releases.reference import Kind

    if kind is not None and kind != Kind.RUN:
        if len(args.what) > 1:
            raise UsageError("publish one component at a time: each needs its own --as OWNER/NAME@VERSION")
        if args.pin is not None:
            raise UsageError(
                f"--pin works only with runs; push the commit of the {kind}, then publish another version without --pin"
            )
        return [[_component_draft(Path(args.what[0]), kind, args)]], []
    if args.part is not None:
        raise UsageError("--part selects a component from a spec; add --kind agent, trainer or model")
    return _collect_run_drafts(args, registry, locks)


def _collect_run_drafts(
    args: argparse.Namespace, registry: Registry | None, locks: ExitStack
) -> tuple[list[Sequence[Draft]], list[RunFolder]]:
    """Return the drafts of each run on the command line, and the folders of the runs, which stay locked in `locks`."""
    from dataclasses import replace

    from runner.documents.releases.reference import Kind
    from runner.registry.bundles.runs import build_run_drafts
    from runner.registry.lineage.links import run_reference
    from runner.registry.publishing.public_commits import pinned_sources
    from runner.results.leaderboard.results_folder import Results

    results: Results = args.results
    choices = _build_choices(args, Kind.RUN)
    if args.pin is not None and len(args.what) > 1:
        raise UsageError("--pin works with one run, since it names the spec of that run; publish the runs one by one")
    if len(args.what) > 1 and choices.name is not None:
        raise UsageError(
            f"--as names one release, but there are {len(args.what)} runs; give only the owner: --as OWNER"
        )
    if files := [name for name in args.what if Path(name).is_file()]:
        raise UsageError(f"{files[0]} is a file, and a run is a folder; to publish a component, add --kind KIND")
    draft_groups = []
    folders = list({run.path.resolve(): run for run in map(results.find, args.what)}.values())
    references = {run.run_id: str(run_reference(run.run_id, choices.owner, choices.version)) for run in folders}
    choices = replace(choices, references=references, registry_address=None if registry is None else registry.address)
    for folder in folders:
        _lock_run(folder, locks)
        if args.pin is not None:
            choices = replace(choices, sources=pinned_sources(folder, args.pin))
        draft_groups.append(build_run_drafts(folder, Results.of(folder), choices))
    return draft_groups, folders


def _component_draft(path: Path, kind: Kind, args: argparse.Namespace) -> Draft:
    choices = _build_choices(args, kind)  # before the slow import, so that a wrong --as is reported at once
    from runner.registry.components.drafts import build_component_draft

    return build_component_draft(path, kind, choices, args.part)


def _lock_run(folder: RunFolder, locks: ExitStack) -> None:
    """Lock a run and its parts in `locks`, so that no other process plays them while they are published.

    Raises:
        RunDirectoryError: a run is being played.
        UsageError: the folder is one shard of a run.
    """
    from runner.base.storage.locks import locked
    from runner.results.folder import split_part
    from runner.results.leaderboard.results_folder import Results

    if folder.name is not None or not folder.path.is_dir():
        return  # a downloaded release, to whose folder no process writes
    manifest = folder.manifest()
    if manifest.shard is not None:
        run_id, _ = split_part(manifest.run_id)
        raise UsageError(
            f"{manifest.run_id} is shard {manifest.shard} of run {run_id}; merge the run, then publish it: nip-run "
            f"merge {run_id}"
        )
    parts = Results.of(folder).parts_of(folder.run_id) if manifest.has_parts else []
    if manifest.is_tournament:
        part_ids = " ".join(part.run_id for part in parts)
        raise UsageError(
            f"{manifest.run_id} is a tournament, which cannot be published; publish the runs of its pairings, which "
            f"have all games: nip-run publish {part_ids or manifest.example_part} --to WHERE --as OWNER"
        )
    for run in (folder, *parts):
        try:
            locks.enter_context(locked(run.lock, f"run {run.run_id}"))
        except RunDirectoryError as error:
            raise RunDirectoryError(f"{error}; wait until the run ends, then publish it") from error
        except RunError:
            pass  # The folder is read-only. A file that changes nevertheless fails its hash check on upload.


def _build_choices(args: argparse.Namespace, kind: Kind) -> PublisherChoices:
    """Build the release's name and terms from `--as` or `NIP_RUN_OWNER` and the other options."""
    from runner.documents.releases.reference import Kind, Reference, identifier_problem, parse_reference
    from runner.registry.bundles.runs import NO_ROWS
    from runner.registry.draft import PublisherChoices
    from runner.registry.licenses import canonical_license

    name_text = args.name or os.environ.get(OWNER, "")
    if not name_text:
        raise UsageError(f"the owner is missing: add --as OWNER (or OWNER/NAME@VERSION), or set {OWNER}")
    reference = Reference(kind, name_text, "")
    if "/" in name_text:
        parsed = parse_reference(name_text, kind)
        if not isinstance(parsed, Reference):
            raise UsageError(f"--as {name_text}: a hash cannot be the name of a release; write --as OWNER/NAME@VERSION")
        reference = parsed
    elif problem := identifier_problem(name_text):
        raise UsageError(f"--as {name_text}: {problem}")
    if kind != Kind.RUN and (not reference.name or reference.version is None):
        raise UsageError(f"--as {name_text}: a {kind} needs a name and a version; write --as OWNER/NAME@VERSION")
    parent = _find_parent(args, kind)
    dataset_license = args.dataset_license
    if dataset_license != NO_ROWS:
        dataset_license = canonical_license("--dataset-license", dataset_license)
    return PublisherChoices(
        owner=reference.owner,
        name=reference.name or None,
        version=reference.version or "1",
        description=args.description,
        licence=canonical_license("--license", args.license),
        dataset_licence=dataset_license,
        labels_licence=canonical_license("--labels-license", args.labels_license),
        visibility="private" if args.private else "public",
        child_of=None if parent is None else str(parent.reference),
        child_of_sha256=None if parent is None else parent.sha256,
    )


def _find_parent(args: argparse.Namespace, kind: Kind) -> ReleaseEntry | None:
    """Return the release that `--child-of` names, from the registry in `--to`; None without the option."""
    from runner.documents.releases.reference import parse_reference
    from runner.registry.transports.locations import connect_to_read

    if args.child_of is None:
        return None
    with connect_to_read(args.registry) as registry:
        return registry.find(parse_reference(args.child_of, default_kind=kind))


def _record_releases(
    folders: Sequence[RunFolder],
    published: Sequence[PublishResult],
    ready_releases: Sequence[ReadyRelease],
    address: str,
) -> None:
    """Record in the results folder of each local run which releases were published from it."""
    from runner.registry.sent_releases import record_release
    from runner.results.leaderboard.results_folder import Results

    for folder in (run for run in folders if run.name is None):
        results, run_ids = Results.of(folder), {folder.run_id}
        if folder.manifest().is_training_run:
            run_ids |= {part.run_id for part in results.parts_of(folder.run_id)}
        for ready_release, release in zip(ready_releases, published, strict=True):
            run_id = ready_release.draft.release.facts.get("run_id")
            if run_id not in run_ids:
                continue
            try:
                record_release(results.run(run_id), str(release.reference), release.sha256, address)
            except RunError as error:
                note(f"{error}; `nip-run history` will show {release.reference} as a separate run")


# Output


def _show_dry_run(ready_releases: Sequence[ReadyRelease], registry: Registry | None, args: argparse.Namespace) -> int:
    """Print what would be published, without sending it."""
    from runner.registry.publishing.publish import list_failures

    address = None if registry is None else registry.address
    problems = list_failures(ready_releases)
    if args.json:
        releases = [ready_release.to_json(address) for ready_release in ready_releases]
        print_json({"ok": not problems, "dry_run": True, "releases": releases, "problems": problems})
    else:
        for ready_release in ready_releases:
            _show_release(ready_release, address)
        count = counted(len(problems), "problem")
        say(f"{count}; nothing would be published" if problems else "all of this would be sent")
    note(*problems)
    return ExitCode.FAILED if problems else ExitCode.DONE


def _show_release(ready_release: ReadyRelease, address: str | None) -> None:
    bundle = ready_release.bundle
    release = ready_release.draft.release if bundle is None else bundle.release
    print_heading(str(release.reference))
    say(f"to          {address or 'not chosen; add --to WHERE'}")
    say(f"manifest    {'not built' if bundle is None else f'sha256:{bundle.sha256[:HASH_DIGITS]}'}")
    say(f"visibility  {release.visibility}; license {release.licence or 'none'}")
    redactions = ", ".join(f"{row['rule']} {row['count']}" for row in release.facts.get("cleaned", []))
    say(f"redacted    {redactions or 'nothing'}")
    rows = [
        (outcome.check, "passed" if outcome.passed else "FAILED", line)
        for outcome in ready_release.outcomes
        for line in (*outcome.failures, *outcome.notes) or ("",)
    ]
    print_table(("check", "result", "what"), rows)
    print_table(
        ("file", "bytes", "sha256"),
        [(entry.path, f"{entry.size:,}", entry.sha256[:HASH_DIGITS]) for entry in release.files],
    )
    say_lines(ready_release.draft.notes)
    say()


def _show_published(
    ready_releases: Sequence[ReadyRelease],
    published: Sequence[PublishResult],
    added: AddResult,
    address: str,
    args: argparse.Namespace,
) -> int:
    """Print which releases were published or proposed, and the commands that download them. Return the exit code."""
    state, location = ("published", address) if added.proposed_at is None else ("proposed", added.proposed_at)
    pairs = list(zip(ready_releases, published, strict=True))
    commands = [_follow_up_commands(ready_release, release.reference, location) for ready_release, release in pairs]
    if args.json:
        releases = [
            {
                **ready_release.to_json(address),
                "was_there": release.already_existed,
                "signed": args.sign_key is not None,
                "commands": release_commands,
            }
            for (ready_release, release), release_commands in zip(pairs, commands, strict=True)
        ]
        facts = {"revision": added.revision, "note": added.note, "proposed_at": added.proposed_at}
        print_json({"ok": True, "releases": releases, **facts})
        return ExitCode.DONE
    for release in published:
        status = "already published with the same content" if release.already_existed else state
        say(f"{release.reference}  sha256:{release.sha256[:HASH_DIGITS]}  {status}")
    say_lines(commands[-1])
    if args.quiet:
        return ExitCode.DONE
    note(*_merge_notes(ready_releases))
    if added.note:
        note(added.note)
    return ExitCode.DONE


def _merge_notes(ready_releases: Sequence[ReadyRelease]) -> Iterator[str]:
    """Yield each note once, with the releases it applies to."""
    releases_by_note: dict[str, list[str]] = {}
    for ready_release in ready_releases:
        for line in dict.fromkeys(_notes_of_release(ready_release)):
            releases_by_note.setdefault(line, []).append(str(ready_release.draft.release.reference))
    for line, releases in releases_by_note.items():
        more = f" and {len(releases) - 1} more" if len(releases) > 1 else ""
        yield f"{releases[0]}{more}: {line}"


def _notes_of_release(ready_release: ReadyRelease) -> Iterator[str]:
    from runner.documents.releases.reference import Kind
    from runner.registry.publishing.checks import ALREADY_PUBLISHED

    release = ready_release.draft.release
    if redactions := ", ".join(f"{row['rule']} ({row['count']})" for row in release.facts.get("cleaned", [])):
        yield f"redacted: {redactions}"
    for outcome in ready_release.outcomes:
        yield from (line for line in outcome.notes if line != ALREADY_PUBLISHED)
    # Drop the draft's note "not pinned", since a check reports the same.
    yield from (line for line in ready_release.draft.notes if not line.startswith("not pinned"))
    if release.facts.get("pinned") is False and release.kind == Kind.RUN:
        yield (
            "the run is published as not pinned; once its files are in a public commit, publish another version with "
            "--as OWNER/NAME@2 --pin SPEC"
        )


def _follow_up_commands(ready_release: ReadyRelease, reference: Reference, address: str) -> list[str]:
    """Return commands for other users, which download the release from the registry at `address` and use it."""
    from runner.documents.releases.reference import Kind
    from runner.registry.bundles.missing_rows import ROWS_KEY
    from runner.registry.fetched_release import PIN

    verbs = ("get", "reproduce") if reference.kind == Kind.RUN else ("get", "install")
    lacks_rows = ready_release.bundle is not None and ready_release.bundle.release.file(PIN) is not None
    rows = ["--set", f"{ROWS_KEY}=FILE"] if lacks_rows else []
    return [
        shlex.join(["nip-run", verb, str(reference), "--from", address, *(rows if verb == "reproduce" else ())])
        for verb in verbs
    ]


def _sign_releases(registry: Registry, published: Sequence[PublishResult], args: argparse.Namespace) -> None:
    if args.sign_key is None:
        return
    from runner.registry.signing import sign_release

    for release in published:
        sign_release(registry, registry.find(release.reference), args.sign_key)


# Yanking


def _yank_releases(args: argparse.Namespace, kind: Kind | None) -> int:
    from runner.documents.releases.reference import Kind, Reference, parse_reference
    from runner.registry.transports.interface import AddResult
    from runner.registry.transports.locations import connect

    references = []
    for text in args.what:
        parsed = parse_reference(text, kind, default_kind=Kind.RUN)
        if not isinstance(parsed, Reference) or parsed.version is None:
            raise UsageError(f"{text}: the version is missing; write OWNER/NAME@VERSION")
        references.append(parsed)
    with connect(args.registry, pull_request=args.pull_request) as registry:
        added = AddResult()
        for reference in references:
            if registry.find(reference).yanked != args.yank:  # skip releases that are already yanked for this reason
                added = registry.yank(reference, args.yank)
        address = registry.address
    if args.json:
        print_json({"ok": True, "yanked": list(map(str, references)), "where": address, "reason": args.yank})
        return ExitCode.DONE
    say_lines(f"{reference} is yanked in {address}: {args.yank}" for reference in references)
    if added.note and not args.quiet:
        note(added.note)
    return ExitCode.DONE
