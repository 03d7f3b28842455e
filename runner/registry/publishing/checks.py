"""What must hold before anything is published: checks by name, in their order, each told with what to do.

All failures of all checks are told at once. Those of a run hold for what would leave, laid out as whoever gets it will
have it: the journal that is checked is the one that is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from runner.base.errors import NipRunError
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join
from runner.documents.releases.bundle import Bundle
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import LATEST, Kind, Reference, parse
from runner.documents.yaml_reader import read
from runner.game.prompts.sandbox import scan as scan_template
from runner.registry.bundles.run_facts import why_not_pinned
from runner.registry.check_notes import CheckNote
from runner.registry.draft import Draft
from runner.registry.lineage.cycles import closed_cycle
from runner.registry.publishing.spec_check import unreadable_spec
from runner.registry.publishing.versions import taken
from runner.registry.redaction.draft_folder import run_folder
from runner.registry.redaction.draft_redaction import ROWS, SPEC
from runner.registry.redaction.machine_names import MachineNames
from runner.registry.redaction.private_text import find_private_text
from runner.registry.transports.registry import Registry
from runner.registry.verification.kinds import wrong_kind
from runner.registry.verification.torn_logs import torn_logs
from runner.registry.verification.verify import wrong_in_run
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED, Manifest, Status
from runner.spec.origin import DATA

MAX_TEMPLATE = 1 << 20


@dataclass(frozen=True)
class Subject:
    """A release that is to be published, and what its checks need to know."""

    raw: Draft
    """As its run or file has it."""
    draft: Draft
    """Cleaned, as it would leave."""
    laid_out: Path
    """The cleaned files in a folder."""
    registry: Registry | None
    """Where it would go; None: not known yet."""
    together: frozenset[str]
    """The names of all releases of the same publish."""
    names: MachineNames
    force: bool = False
    licence_needed: bool = True
    beside: Sequence[Release] = ()
    """The releases of the same publish, before they are cleaned."""

    @property
    def release(self) -> Release:
        return self.draft.release

    @cached_property
    def run(self) -> RunFolder | None:
        """The run that it holds; None of a component."""
        return run_folder(self.laid_out) if self.release.kind == Kind.RUN else None

    @cached_property
    def manifest(self) -> Manifest | None:
        return None if self.run is None else self.run.manifest()

    @cached_property
    def bundle(self) -> Bundle:
        return self.draft.bundle() if self.registry is None else self.draft.bundle(self.registry.limits)


class CheckOutcome(NamedTuple):
    """What a check has come to."""

    check: str
    failures: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.failures


CheckFunction = Callable[[Subject], Iterator[str]]
"""A subject into what is wrong with it, and notes."""


def _finished(subject: Subject) -> Iterator[str]:
    """The run has come to its end, and its records are whole."""
    run, manifest = subject.run, subject.manifest
    if run is None or manifest is None:
        return
    if manifest.status not in PLAYED:
        what = "is being played" if manifest.status == Status.RUNNING else f"is {manifest.status}"
        yield f"run {manifest.run_id} {what}, and only a finished run is published; run its command again to finish it"
        return
    if manifest.status == Status.INCOMPLETE:
        yield CheckNote(
            f"it is incomplete: {manifest.transport_failed} of {manifest.rollouts} rollouts were lost in transport"
        )
    for line in torn_logs(run, manifest.identity):
        yield f"{line}; run the same command again, which cuts them off"


def _captured(subject: Subject) -> Iterator[str]:
    """The resolved spec and its inputs were saved when the run began; that they are what was played, `numbers` says."""
    if subject.manifest is None:
        return
    gone = [path for path in (SPEC, f"{DATA}/inputs/protocol.yaml", ROWS) if path not in subject.draft.all_contents]
    if gone or not subject.manifest.spec_sha256:
        yield f"what the run was played with is not all there: {comma_join(gone) or 'the hash of its spec'}"


def _references(subject: Subject) -> Iterator[str]:
    """Every release that it names is known by its hash, and whoever may see this one may see that one."""
    for link in subject.release.links:
        if link.release is None or link.release in subject.together:
            continue
        if link.role == "child_of" and link.sha256 is None:
            there = (
                "which registry? Say --to WHERE"
                if subject.registry is None
                else f"it is not in {subject.registry.where}"
            )
            yield f"--child-of {link.release}: {there}; publish the one that this was made from there first"
            continue
        named = parse(link.release)
        if not isinstance(named, Reference) or named.version in (None, LATEST):
            yield f"{link.role} names {link.release}, which is no version; name one, as OWNER/NAME@VERSION"
        elif link.role not in _NEIGHBOURS and link.sha256 is None:
            yield f"{link.role} names {link.release} without its hash; `nip-run install {link.release}` pins it"
        elif subject.registry is not None:
            yield from _published(subject, link.role, named, link.sha256, subject.registry)
    if subject.registry is not None and (why := closed_cycle(subject.release, subject.beside, subject.registry)):
        yield why


def _kind(subject: Subject) -> Iterator[str]:
    """It trains models if it says so, and only then."""
    if subject.run is not None:
        yield from wrong_kind(subject.run, subject.release.facts)


_NEIGHBOURS = ("part", "parent", "judges", "output", "input")
"""Links that a run has by itself, whose releases may come later."""


def _published(subject: Subject, role: str, named: Reference, sha256: str | None, registry: Registry) -> Iterator[str]:
    found = next((one for one in registry.entries(named.kind) if one.reference == named), None)
    if found is None:
        yield CheckNote(f"{role}: {named} is not in {registry.where}; publish it there too, so that others find it")
    elif sha256 is not None and found.sha256 != sha256:
        yield f"{role}: {named} in {registry.where} is not the release that was used (sha256:{sha256[:12]})"
    elif subject.release.visibility == "public" and registry.read(found)[0].visibility == "private":
        yield f"{role}: {named} is private, and this would be public; publish that one openly, or this --private"


def _pinned(subject: Subject) -> Iterator[str]:
    """Every part is in a public commit, or its folder has no public remote, so that the release is not pinned."""
    could_be = {part for part, source in subject.release.sources.items() if source.repository is not None}
    for why in not_pinned(subject.release):
        if subject.force or why.partition(":")[0] not in could_be:
            yield CheckNote(f"not pinned: {why}")
        else:
            later = " (then add --pin SPEC)" if subject.release.kind in (Kind.RUN, Kind.MODEL) else ""
            yield f"{why}{later}, or publish it as not pinned with --force"


def not_pinned(release: Release) -> Iterator[str]:
    """Why a release's parts cannot be found in a public commit."""
    return why_not_pinned(release.sources)


def _versions(subject: Subject) -> Iterator[str]:
    """It is recorded with which versions it was played."""
    manifest = subject.manifest
    if manifest is None:
        return
    if not manifest.version or not manifest.python:
        yield "the versions of nip-run and Python that played it are not recorded; play it again to publish it"
    if "environment.lock" not in subject.draft.contents:
        said = "there is no environment.lock with the versions of the packages that it was played with"
        yield CheckNote(said) if manifest.sources is None else said  # an earlier version kept none


def _private(subject: Subject) -> Iterator[str]:
    """No secret, and no name of this machine or its user, stands in any byte."""
    yield from find_private_text(subject.release, subject.draft.contents, subject.raw, subject.names)


def _readable(subject: Subject) -> Iterator[str]:
    """Whoever gets it can read it: what we refuse of others, we do not publish."""
    for path in sorted(subject.draft.contents):
        if path.endswith((".yaml", ".yml")):
            for problem in read(subject.laid_out / path, path).problems:
                yield f"{problem}; a reader refuses it"
        elif path.endswith(".jinja"):
            yield from _template(subject.laid_out / path, path)
    of_a_run = subject.manifest is not None and subject.manifest.format > 0
    if of_a_run or (subject.release.kind == Kind.SPEC and not subject.release.links):  # no release to install first
        yield from unreadable_spec(subject.laid_out)


def _template(file: Path, path: str) -> Iterator[str]:
    for line, message in scan_template(read_bounded(file, MAX_TEMPLATE).decode("utf-8", "replace")).refused:
        yield f"{path}:{line}: {message}; a reader refuses it"


def _numbers(subject: Subject) -> Iterator[str]:
    """The journal replays to exactly the records and numbers that are published."""
    if subject.run is None or subject.manifest is None or subject.manifest.status not in PLAYED:
        return
    for line in wrong_in_run(subject.run):
        shown = line.replace(f"{subject.laid_out}/", "")
        yield CheckNote(shown) if isinstance(line, CheckNote) else shown


def _manifest(subject: Subject) -> Iterator[str]:
    """Its manifest and its files, by name, number and size, are such as a reader takes."""
    Release.from_bytes(subject.bundle.manifest)
    yield from ()


def _terms(subject: Subject) -> Iterator[str]:
    """It is said who may see it, and under which licence."""
    if subject.release.visibility == "public" and subject.release.licence is None:
        yield "under which licence may others use it? Say --licence NAME (such as CC-BY-4.0), or publish it --private"


def _free(subject: Subject) -> Iterator[str]:
    """Its name and version are not another release's."""
    if subject.registry is not None:
        yield from taken(subject.registry, subject.bundle)


CHECKS: Mapping[str, CheckFunction] = {
    "finished": _finished,
    "captured": _captured,
    "kind": _kind,
    "references": _references,
    "pinned": _pinned,
    "versions": _versions,
    "nothing private": _private,
    "readable": _readable,
    "numbers": _numbers,
    "manifest": _manifest,
    "terms": _terms,
    "name": _free,
}
"""In their order, which is that of facts/registry.md; the last one asks the registry."""


def checked(subject: Subject) -> list[CheckOutcome]:
    """What all checks say of a release."""
    return [_outcome(name, check, subject) for name, check in CHECKS.items()]


def _outcome(name: str, check: CheckFunction, subject: Subject) -> CheckOutcome:
    said: list[str] = []
    try:
        said.extend(check(subject))
    except (NipRunError, OSError) as error:
        said.append(str(error))
    failures = tuple(dict.fromkeys(line for line in said if not isinstance(line, CheckNote)))
    return CheckOutcome(name, failures, tuple(dict.fromkeys(line for line in said if isinstance(line, CheckNote))))
