"""Checks before a release is published. All failures of all checks are reported together.

A run is checked as users will get it: the journal that is checked is the one that is sent.
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
from runner.registry.bundles.run_facts import unpinned_reasons
from runner.registry.check_notes import CheckNote
from runner.registry.draft import Draft
from runner.registry.lineage.cycles import closed_cycle
from runner.registry.publishing.spec_check import find_spec_problems
from runner.registry.publishing.versions import find_name_conflict
from runner.registry.redaction.draft_folder import run_folder
from runner.registry.redaction.draft_redaction import ROWS, SPEC
from runner.registry.redaction.machine_names import MachineNames
from runner.registry.redaction.private_text import find_private_text
from runner.registry.transports.registry import Registry
from runner.registry.verification.kinds import find_kind_problems
from runner.registry.verification.torn_logs import find_torn_logs
from runner.registry.verification.verify import find_run_problems
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED, Manifest, Status
from runner.spec.origin import DATA

MAX_TEMPLATE = 1 << 20


@dataclass(frozen=True)
class Subject:
    """A release to be published, and what its checks need."""

    raw: Draft
    """The release before redaction."""
    draft: Draft
    """The redacted release."""
    folder: Path
    """A folder with the redacted files, as `get` would write it."""
    registry: Registry | None
    """The registry to publish to; None if it is not known yet."""
    batch: Sequence[Release]
    """The releases that are published together, before redaction."""
    names: MachineNames
    force: bool = False

    @property
    def release(self) -> Release:
        return self.draft.release

    @cached_property
    def run(self) -> RunFolder | None:
        """The run in the release; None for a component."""
        return run_folder(self.folder) if self.release.kind == Kind.RUN else None

    @cached_property
    def manifest(self) -> Manifest | None:
        return None if self.run is None else self.run.manifest()

    @cached_property
    def bundle(self) -> Bundle:
        return self.draft.bundle() if self.registry is None else self.draft.bundle(self.registry.limits)


class CheckOutcome(NamedTuple):
    """The result of one check."""

    check: str
    failures: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.failures


CheckFunction = Callable[[Subject], Iterator[str]]
"""Yield what is wrong with a subject, and notes."""


def _finished(subject: Subject) -> Iterator[str]:
    """The run is finished, and its logs are complete."""
    run, manifest = subject.run, subject.manifest
    if run is None or manifest is None:
        return
    if manifest.status not in PLAYED:
        state = "is being played" if manifest.status == Status.RUNNING else f"is {manifest.status}"
        yield f"run {manifest.run_id} {state}, and only finished runs can be published; repeat its command to finish it"
        return
    if manifest.status == Status.INCOMPLETE:
        yield CheckNote(
            f"it is incomplete: {manifest.transport_failed} of {manifest.rollouts} rollouts were lost in transport"
        )
    for line in find_torn_logs(run, manifest.identity):
        yield f"{line}; run the same command again, which removes them"


def _inputs_saved(subject: Subject) -> Iterator[str]:
    """The resolved spec and its inputs were saved; `numbers` checks that they belong to the journal."""
    if subject.manifest is None:
        return
    missing = [path for path in (SPEC, f"{DATA}/inputs/protocol.yaml", ROWS) if path not in subject.draft.all_contents]
    if missing or not subject.manifest.spec_sha256:
        yield f"missing inputs of the run: {comma_join(missing) or 'the hash of its spec'}"


def _references(subject: Subject) -> Iterator[str]:
    """Every release that it names is known by hash, and is visible to everybody who can see this one."""
    batch = {str(release.reference) for release in subject.batch}
    for link in subject.release.links:
        if link.release is None or link.release in batch:
            continue
        if link.role == "child_of" and link.sha256 is None:
            problem = (
                "the registry is not known; add --to WHERE"
                if subject.registry is None
                else f"it is not in {subject.registry.where}"
            )
            yield f"--child-of {link.release}: {problem}; publish that release there first"
            continue
        reference = parse(link.release)
        if not isinstance(reference, Reference) or reference.version in (None, LATEST):
            yield f"{link.role} names {link.release} without a version; name it as OWNER/NAME@VERSION"
        elif link.role not in _ROLES_IN_RUN and link.sha256 is None:
            yield f"{link.role} names {link.release} without its hash; `nip-run install {link.release}` pins it"
        elif subject.registry is not None:
            yield from _link(subject, link.role, reference, link.sha256, subject.registry)
    if subject.registry is not None and (cycle := closed_cycle(subject.release, subject.batch, subject.registry)):
        yield cycle


def _kind(subject: Subject) -> Iterator[str]:
    """The run's kind is `training` exactly if it trains models."""
    if subject.run is not None:
        yield from find_kind_problems(subject.run, subject.release.facts)


_ROLES_IN_RUN = ("part", "parent", "judges", "output", "input")
"""Links that follow from the run; their releases may be published later."""


def _link(subject: Subject, role: str, target: Reference, sha256: str | None, registry: Registry) -> Iterator[str]:
    entry = next((entry for entry in registry.entries(target.kind) if entry.reference == target), None)
    if entry is None:
        yield CheckNote(f"{role}: {target} is not in {registry.where}; publish it there too, so that others find it")
    elif sha256 is not None and entry.sha256 != sha256:
        yield f"{role}: {target} in {registry.where} is not the release that was used (sha256:{sha256[:12]})"
    elif subject.release.visibility == "public" and registry.read(entry)[0].visibility == "private":
        yield f"{role}: {target} is private, but this release is public; make that one public, or use --private"


def _pinned(subject: Subject) -> Iterator[str]:
    """Every part is in a public commit, or has no public remote, which marks the release as not pinned."""
    could_be = {part for part, source in subject.release.sources.items() if source.repository is not None}
    for reason in unpinned_reasons(subject.release.sources):
        if subject.force or reason.partition(":")[0] not in could_be:
            yield CheckNote(f"not pinned: {reason}")
        else:
            later = " (then add --pin SPEC)" if subject.release.kind in (Kind.RUN, Kind.MODEL) else ""
            yield f"{reason}{later}, or publish it as not pinned with --force"


def _versions(subject: Subject) -> Iterator[str]:
    """The versions of nip-run, Python and packages are recorded."""
    manifest = subject.manifest
    if manifest is None:
        return
    if not manifest.version or not manifest.python:
        yield "the versions of nip-run and Python that played it are not recorded; play it again to publish it"
    if "environment.lock" not in subject.draft.contents:
        message = "there is no environment.lock with the versions of the packages that it was played with"
        yield CheckNote(message) if manifest.sources is None else message  # earlier versions did not record them


def _nothing_private(subject: Subject) -> Iterator[str]:
    """No byte has a secret or a name of this machine or its user."""
    yield from find_private_text(subject.release, subject.draft.contents, subject.raw, subject.names)


def _readable(subject: Subject) -> Iterator[str]:
    """Readers accept it: files that nip-run refuses from others are not published."""
    for path in sorted(subject.draft.contents):
        if path.endswith((".yaml", ".yml")):
            for problem in read(subject.folder / path, path).problems:
                yield f"{problem}; a reader refuses it"
        elif path.endswith(".jinja"):
            yield from _template(subject.folder / path, path)
    of_a_run = subject.manifest is not None and subject.manifest.format > 0
    if of_a_run or (subject.release.kind == Kind.SPEC and not subject.release.links):  # no release to install first
        yield from find_spec_problems(subject.folder)


def _template(file: Path, path: str) -> Iterator[str]:
    for line, message in scan_template(read_bounded(file, MAX_TEMPLATE).decode("utf-8", "replace")).refused:
        yield f"{path}:{line}: {message}; a reader refuses it"


def _numbers(subject: Subject) -> Iterator[str]:
    """The records and numbers follow from the journal that is sent."""
    if subject.run is None or subject.manifest is None or subject.manifest.status not in PLAYED:
        return
    for line in find_run_problems(subject.run):
        message = line.replace(f"{subject.folder}/", "")
        yield CheckNote(message) if isinstance(line, CheckNote) else message


def _manifest(subject: Subject) -> Iterator[str]:
    """Readers accept its manifest, and the names, number and size of its files."""
    Release.from_bytes(subject.bundle.manifest)
    yield from ()


def _terms(subject: Subject) -> Iterator[str]:
    """A public release has a license."""
    if subject.release.visibility == "public" and subject.release.licence is None:
        yield "a public release needs a license: add --license NAME (such as CC-BY-4.0), or --private"


def _available(subject: Subject) -> Iterator[str]:
    """The name and version are free in the registry."""
    if subject.registry is not None:
        yield from find_name_conflict(subject.registry, subject.bundle)


CHECKS: Mapping[str, CheckFunction] = {
    "finished": _finished,
    "captured": _inputs_saved,
    "kind": _kind,
    "references": _references,
    "pinned": _pinned,
    "versions": _versions,
    "nothing private": _nothing_private,
    "readable": _readable,
    "numbers": _numbers,
    "manifest": _manifest,
    "terms": _terms,
    "name": _available,
}
"""The checks in order; the last one asks the registry."""


def run_checks(subject: Subject) -> list[CheckOutcome]:
    """Run all checks of a release."""
    return [_outcome(name, check, subject) for name, check in CHECKS.items()]


def _outcome(name: str, check: CheckFunction, subject: Subject) -> CheckOutcome:
    messages: list[str] = []
    try:
        messages.extend(check(subject))
    except (NipRunError, OSError) as error:
        messages.append(str(error))
    failures = tuple(dict.fromkeys(line for line in messages if not isinstance(line, CheckNote)))
    return CheckOutcome(name, failures, tuple(dict.fromkeys(line for line in messages if isinstance(line, CheckNote))))
