"""Publish a run or a component with all that determines it.

Examples:
  nip-run publish RUN --to DIR --as acme --licence CC-BY-4.0 --dry-run
  nip-run publish prompts/mine --kind prompts --as acme/terse@1.0 --to git:git@example.org:acme/board.git
  nip-run publish acme/terse@1.0 --kind prompts --yank 'leaks the label'
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, counted, did_you_mean
from runner.cli.arguments import REF, RUN, WHERE
from runner.cli.terminal.output import heading, note, print_json, print_table, say

if TYPE_CHECKING:
    from runner.documents.releases.reference import Kind, Reference
    from runner.registry.draft import Draft, Naming
    from runner.registry.publishing.publish import ReadyRelease
    from runner.registry.transports.interface import AddResult
    from runner.registry.transports.registry import Published, Registry, ReleaseEntry
    from runner.results.folder import RunFolder


OWNER = "NIP_RUN_OWNER"

SHORT = 12
"""So many digits of a hash are shown; `--json` has all of it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "what",
        nargs="+",
        metavar="RUN|FILE|FOLDER",
        help=f"runs ({RUN}; or a folder); or with --kind the file or folder of a component",
    )
    add("--to", dest="where", metavar="WHERE", help=f"the registry: {WHERE}")
    add("--kind", help="kind of a component: protocol, prompts, dataset, agent, trainer, spec or model")
    add(
        "--as",
        dest="name",
        metavar="OWNER/NAME@VERSION",
        help="the release's name; for a run OWNER is enough: the name is its id, the version 1",
    )
    add("--part", metavar="NAME", help="the agent, trainer or model group to take from a spec")
    add("--description", default="", metavar="TEXT", help="description for listings")
    add("--licence", "--license", metavar="SPDX", help="license as an SPDX expression, such as CC-BY-4.0 or MIT")
    add(
        "--dataset-licence",
        "--dataset-license",
        metavar="SPDX",
        help="license of a run's dataset, if different; `none` leaves its rows out",
    )
    add("--private", action="store_true", help="leave it out of searches and leaderboards")
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
    add("--child-of", metavar="REF", help=f"the release it was derived from: {REF}")
    add("--pull-request", action="store_true", help="git, hf: propose a branch or a pull request")
    add("--sign-key", type=Path, metavar="FILE", help="sign the manifest with this private key (PEM)")
    add(
        "--yank",
        metavar="REASON",
        help="withdraw a version: it is no longer the newest, and whoever requests it sees the reason",
    )


def execute(args: argparse.Namespace) -> int:
    from runner.base.errors import Interrupted, UsageError
    from runner.registry.publishing.publish import Options, prepare_releases, send
    from runner.registry.redaction.machine_names import MachineNames
    from runner.results.leaderboard.results_folder import Results

    kind = _kind(args.kind)
    if args.yank is not None:
        return _yank(args, kind)
    if args.pull_request and args.sign_key is not None:
        raise UsageError("--sign-key: once the pull request is merged, the command without it signs")
    registry = _registry(args)
    try:
        with ExitStack() as held:
            if registry is not None:
                held.enter_context(registry)
            families, folders = _families(args, kind, held)
            results = Results(args.results).path if folders else None
            options = Options(names=MachineNames.of_process(results).allow(args.allow_name), force=args.force)
            made = held.enter_context(prepare_releases(families, registry, options))
            if args.dry_run:
                return _show(made, registry, args)
            assert registry is not None
            published, added = send(made, registry)
            _sign(registry, published, args)
            _record(folders, published, made, registry.where)
            return _told(made, published, added, registry.where, args)
    except KeyboardInterrupt:
        error = Interrupted("interrupted; nobody sees anything that was not published whole")
        error.add_note("The same command finishes it.")
        raise error from None


def _registry(args: argparse.Namespace) -> Registry | None:
    from runner.registry.transports.locations import VARIABLE, connect

    if args.dry_run and args.where is None and not os.environ.get(VARIABLE):
        return None
    return connect(args.where, pull_request=args.pull_request)


def _kind(said: str | None) -> Kind | None:
    from runner.base.errors import UsageError
    from runner.documents.releases.reference import Kind

    if said is None:
        return None
    if said not in set(Kind):
        near = did_you_mean(said, [*map(str, Kind)]) or f"; there are {comma_join(Kind)}"
        raise UsageError(f"--kind {said}: there is no such kind{near}")
    return Kind(said)


# What is published


def _families(
    args: argparse.Namespace, kind: Kind | None, held: ExitStack
) -> tuple[list[Sequence[Draft]], list[RunFolder]]:
    """The drafts of each thing that is named, and the runs that they are of."""
    from dataclasses import replace

    from runner.base.errors import UsageError
    from runner.documents.releases.reference import Kind
    from runner.registry.bundles.runs import drafts_of
    from runner.registry.publishing.public_commits import pinned_sources
    from runner.results.leaderboard.results_folder import Results

    if kind not in (None, Kind.RUN):
        if len(args.what) > 1:
            raise UsageError("publish one component at a time: each needs its own --as OWNER/NAME@VERSION")
        if args.pin is not None:
            raise UsageError(
                f"--pin is for a run; publish the {kind} again as another version once its commit is pushed"
            )
        return [[_component(Path(args.what[0]), kind, args)]], []
    if args.part is not None:
        raise UsageError("--part is for a component out of a spec; say which with --kind agent, trainer or model")
    results = Results(args.results)
    naming = _naming(args, Kind.RUN)
    if args.pin is not None and len(args.what) > 1:
        raise UsageError("--pin is for one run: give the spec that it was played from")
    if len(args.what) > 1 and naming.name is not None:
        raise UsageError(f"--as names one release, but there are {len(args.what)} runs; give only the owner")
    families = []
    folders = list({found.path.resolve(): found for found in map(results.find, args.what)}.values())
    for folder in folders:
        _hold(folder, held)
        if args.pin is not None:
            naming = replace(naming, sources=pinned_sources(folder, args.pin))
        families.append(drafts_of(folder, Results.of(folder), naming))
    return families, folders


def _component(path: Path, kind: Kind, args: argparse.Namespace) -> Draft:
    naming = _naming(args, kind)
    from runner.registry.components.drafts import component_draft

    return component_draft(path, kind, naming, args.part)


def _hold(folder: RunFolder, held: ExitStack) -> None:
    """Keep other processes from playing a run and its parts while they are published.

    Raises:
        RunDirectoryError: one is being played.
        UsageError: it is one shard of a run.
    """
    from runner.base.errors import RunDirectoryError, UsageError
    from runner.results.folder import split_part
    from runner.results.leaderboard.results_folder import Results

    if folder.name is not None or not folder.path.is_dir():
        return  # what was got is no run of ours, and nobody plays in it
    manifest = folder.manifest()
    if manifest.shard is not None:
        whole, _ = split_part(manifest.run_id)
        raise UsageError(
            f"{manifest.run_id} is shard {manifest.shard} of run {whole}, which is published as a whole: nip-run merge "
            f"{whole}"
        )
    parts = Results.of(folder).parts_of(folder.run_id) if manifest.is_training_run else []
    for one in (folder, *parts):
        try:
            held.enter_context(_locked(one))
        except RunDirectoryError as error:
            raise RunDirectoryError(f"{error}; only what stands still is published, so wait for its end") from error


@contextmanager
def _locked(folder: RunFolder) -> Iterator[None]:
    from runner.base.errors import RunDirectoryError, RunError
    from runner.base.storage.locks import locked

    with ExitStack() as lock:
        try:
            lock.enter_context(locked(folder.lock, f"run {folder.run_id}"))
        except RunDirectoryError:
            raise
        except RunError:
            pass  # in a folder that may only be read; a file that changes meanwhile is noticed as it is sent
        yield


def _naming(args: argparse.Namespace, kind: Kind) -> Naming:
    """How the release is called, by `--as` or `NIP_RUN_OWNER`."""
    from runner.base.errors import UsageError
    from runner.documents.releases.reference import Kind, Reference, identifier_problem, parse
    from runner.registry.bundles.runs import NO_ROWS
    from runner.registry.draft import Naming
    from runner.registry.licenses import canonical_license

    said = args.name or os.environ.get(OWNER, "")
    if not said:
        raise UsageError(f"the owner is missing: add --as OWNER (or OWNER/NAME@VERSION), or set {OWNER}")
    named = Reference(kind, said, "")
    if "/" in said:
        found = parse(said, kind)
        if not isinstance(found, Reference):
            raise UsageError(f"--as {said}: a hash is not a name; write OWNER/NAME@VERSION")
        named = found
    elif wrong := identifier_problem(said):
        raise UsageError(f"--as {said}: {wrong}")
    if kind != Kind.RUN and (not named.name or named.version is None):
        raise UsageError(f"--as {said}: a {kind} has a name and a version of its own: --as OWNER/NAME@VERSION")
    parent = _parent(args, kind)
    dataset_license = args.dataset_licence
    if dataset_license != NO_ROWS:
        dataset_license = canonical_license("--dataset-license", dataset_license)
    return Naming(
        owner=named.owner,
        name=named.name or None,
        version=named.version or "1",
        description=args.description,
        licence=canonical_license("--license", args.licence),
        dataset_licence=dataset_license,
        visibility="private" if args.private else "public",
        child_of=None if parent is None else str(parent.reference),
        child_of_sha256=None if parent is None else parent.sha256,
    )


def _parent(args: argparse.Namespace, kind: Kind) -> ReleaseEntry | None:
    """The release of `--child-of`, which is in the registry that is published to."""
    from runner.documents.releases.reference import parse
    from runner.registry.transports.locations import connect_to_read

    if args.child_of is None:
        return None
    with connect_to_read(args.where) as registry:
        return registry.find(parse(args.child_of, kind if args.child_of.count("/") < 2 else None))


def _record(
    folders: Sequence[RunFolder], published: Sequence[Published], made: Sequence[ReadyRelease], where: str
) -> None:
    """Write down in the results folder of each run what was made of it; what was got is no run of ours."""
    from runner.base.errors import RunError
    from runner.registry.sent_releases import record_release
    from runner.results.leaderboard.results_folder import Results

    for folder in (one for one in folders if one.name is None):
        results, parts = Results.of(folder), {folder.run_id}
        if folder.manifest().is_training_run:
            parts |= {part.run_id for part in results.parts_of(folder.run_id)}
        for prepared, one in zip(made, published, strict=True):
            run_id = prepared.draft.release.facts.get("run_id")
            if run_id in parts:
                try:
                    record_release(results.run(run_id), str(one.reference), one.sha256, where)
                except RunError as error:
                    note(f"{error}; `nip-run history` will show {one.reference} as a run of its own")


# What is told


def _show(made: Sequence[ReadyRelease], registry: Registry | None, args: argparse.Namespace) -> int:
    """What would leave, and nothing that does."""
    from runner.registry.publishing.publish import list_failures

    where = None if registry is None else registry.where
    wrong = list_failures(made)
    if args.json:
        shown = [one.to_json(where) for one in made]
        print_json({"ok": not wrong, "dry_run": True, "releases": shown, "problems": wrong})
    else:
        for one in made:
            _show_one(one, where)
        say(
            f"{counted(len(wrong), 'problem')}; nothing would be published" if wrong else "this is all that would leave"
        )
    for line in wrong:
        note(line)
    return ExitCode.FAILED if wrong else ExitCode.DONE


def _show_one(one: ReadyRelease, where: str | None) -> None:
    release = one.draft.release if one.bundle is None else one.bundle.release
    heading(str(release.reference))
    say(f"to          {where or 'nowhere yet; say --to WHERE'}")
    say(f"manifest    {'not made' if one.bundle is None else f'sha256:{one.bundle.sha256[:SHORT]}'}")
    say(f"visibility  {release.visibility}; licence {release.licence or 'none given'}")
    taken = ", ".join(f"{row['rule']} {row['count']}" for row in release.facts.get("cleaned", []))
    say(f"taken out   {taken or 'nothing'}")
    rows = [
        (outcome.check, "passed" if outcome.passed else "FAILED", line)
        for outcome in one.outcomes
        for line in (*outcome.failures, *outcome.notes) or ("",)
    ]
    print_table(("check", "result", "what"), rows)
    print_table(
        ("file", "bytes", "sha256"), [(entry.path, f"{entry.size:,}", entry.sha256[:SHORT]) for entry in release.files]
    )
    for line in one.draft.notes:
        say(line)
    say()


def _told(
    made: Sequence[ReadyRelease], published: Sequence[Published], added: AddResult, where: str, args: argparse.Namespace
) -> int:
    """What was published, or proposed, and how others get it."""
    from runner.registry.fetched_release import PIN

    done, at = ("published", where) if added.proposed_at is None else ("proposed", added.proposed_at)
    pins = {str(one.bundle.release.reference) for one in made if one.bundle and one.bundle.release.file(PIN)}
    commands = {
        str(one.reference): _commands(one.reference, at, lacks_rows=str(one.reference) in pins) for one in published
    }
    if args.json:
        shown = [
            {
                **prepared.to_json(where),
                "was_there": one.was_there,
                "signed": args.sign_key is not None,
                "commands": commands[str(one.reference)],
            }
            for prepared, one in zip(made, published, strict=True)
        ]
        print_json(
            {
                "ok": True,
                "releases": shown,
                "revision": added.revision,
                "note": added.note,
                "proposed_at": added.proposed_at,
            }
        )
        return ExitCode.DONE
    for one in published:
        what = "was there already, the very same" if one.was_there else done
        say(f"{one.reference}  sha256:{one.sha256[:SHORT]}  {what}")
    for command in commands[str(published[-1].reference)]:
        say(command)
    if args.quiet:
        return ExitCode.DONE
    for line in _notes(made):
        note(line)
    if added.note:
        note(added.note)
    return ExitCode.DONE


def _notes(made: Sequence[ReadyRelease]) -> Iterator[str]:
    """What is to be known of releases, each thing once, however many it is said of."""
    said: dict[str, list[str]] = {}
    for one in made:
        for line in dict.fromkeys(_notes_of(one)):
            said.setdefault(line, []).append(str(one.draft.release.reference))
    for line, releases in said.items():
        more = f" and {len(releases) - 1} more" if len(releases) > 1 else ""
        yield f"{releases[0]}{more}: {line}"


def _notes_of(one: ReadyRelease) -> Iterator[str]:
    from runner.documents.releases.reference import Kind
    from runner.registry.publishing.versions import ALREADY_PUBLISHED

    taken = ", ".join(f"{row['rule']} ({row['count']})" for row in one.draft.release.facts.get("cleaned", []))
    if taken:
        yield f"taken out: {taken}"
    for outcome in one.outcomes:
        yield from (line for line in outcome.notes if line != ALREADY_PUBLISHED)
    yield from (line for line in one.draft.notes if not line.startswith("not pinned"))  # the check says it, too
    if one.draft.release.facts.get("pinned") is False and one.draft.release.kind == Kind.RUN:
        yield (
            "it is published as not pinned; once its files are in a public commit, publish it as another version "
            "(--as OWNER/NAME@2) with --pin SPEC"
        )


def _commands(reference: Reference, where: str, *, lacks_rows: bool) -> list[str]:
    """What others type."""
    from runner.documents.releases.reference import Kind
    from runner.registry.bundles.missing_rows import OPTION

    verbs = ("get", "reproduce") if reference.kind == Kind.RUN else ("get", "install")
    rows = ["--set", f"{OPTION}=FILE"] if lacks_rows else []
    return [
        shlex.join(["nip-run", verb, str(reference), "--from", where, *(rows if verb == "reproduce" else ())])
        for verb in verbs
    ]


def _sign(registry: Registry, published: Sequence[Published], args: argparse.Namespace) -> None:
    if args.sign_key is None:
        return
    from runner.registry.signing import sign_release

    for one in published:
        sign_release(registry, registry.find(one.reference), args.sign_key)


# Yanked


def _yank(args: argparse.Namespace, kind: Kind | None) -> int:
    from runner.base.errors import UsageError
    from runner.documents.releases.reference import Kind, Reference, parse
    from runner.registry.transports.interface import AddResult
    from runner.registry.transports.locations import connect

    named = []
    for text in args.what:
        found = parse(text, kind or (Kind.RUN if text.count("/") == 1 else None))
        if not isinstance(found, Reference) or found.version is None:
            raise UsageError(f"{text}: the version is missing; write OWNER/NAME@VERSION")
        named.append(found)
    with connect(args.where, pull_request=args.pull_request) as registry:
        added = AddResult()
        for reference in named:
            if registry.find(reference).yanked != args.yank:  # the same again is nothing
                added = registry.yank(reference, args.yank)
        where = registry.where
    if args.json:
        print_json({"ok": True, "yanked": [str(one) for one in named], "where": where, "reason": args.yank})
        return ExitCode.DONE
    for reference in named:
        say(f"{reference} is yanked in {where}: {args.yank}")
    if added.note and not args.quiet:
        note(added.note)
    return ExitCode.DONE
