"""The checks that a release must pass before it is published. All failures of all checks are reported together.

The checks read the redacted files, because these are sent. Each check function yields a message for each failure, and
a `CheckNote` for each note. The first line of the function's docstring states what must be true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from runner.base.errors import NewerFormatError, NipRunError, ReleaseError, SpecError
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join, counted
from runner.documents.releases.bundle import Bundle
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import LATEST, Kind, Reference, parse_reference
from runner.documents.yaml_reader import MAX_BYTES, read_yaml
from runner.game.prompts.sandbox import scan as scan_template
from runner.models.provider_traits import traits_of
from runner.models.settings import NOT_PUBLISHED
from runner.registry.bundles.run_facts import unpinned_reasons
from runner.registry.check_notes import CheckNote
from runner.registry.draft import Draft
from runner.registry.redaction.draft_folder import run_folder
from runner.registry.redaction.draft_redaction import ROWS, SPEC
from runner.registry.redaction.machine_names import MachineNames
from runner.registry.redaction.private_text import find_private_text
from runner.registry.redaction.yaml_redaction import values_in
from runner.registry.transports.registry import Registry, ReleaseEntry
from runner.registry.verification.kinds import find_kind_problems, find_torn_logs
from runner.registry.verification.verify import find_run_problems
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED, Manifest, Status
from runner.spec.loader import load_specs
from runner.spec.origin import DATA
from runner.spec.run_names import SAVED_SPEC
from runner.training.plan import plan_of

MAX_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True)
class Subject:
    """A release to publish, with everything that its checks read."""

    original: Draft
    """The release before redaction."""
    draft: Draft
    """The redacted release."""
    folder: Path
    """A folder with the redacted files, like the folder that `nip-run get` would write."""
    registry: Registry | None
    """The registry to publish to; None if it is not known yet."""
    batch: Sequence[Release]
    """The releases that are published together, including this one, before redaction."""
    names: MachineNames
    """Names of this machine and its user, which must not be published."""
    force: bool = False
    """Whether files that are in no public commit may be published."""

    @property
    def release(self) -> Release:
        return self.draft.release

    @cached_property
    def run(self) -> RunFolder | None:
        """The run in the release; None if the release is not a run."""
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
"""A check: yields a message for each failure of a subject, and a `CheckNote` for each note."""


def _check_finished(subject: Subject) -> Iterator[str]:
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
            f"the run is incomplete: {manifest.transport_failed} of {manifest.rollouts} rollouts were lost in transport"
        )
    for line in find_torn_logs(run, manifest.identity):
        yield f"{line}; run the run's command again, which removes these lines"


def _check_inputs_saved(subject: Subject) -> Iterator[str]:
    """The run's folder has the resolved spec and its inputs. (The check `numbers` compares them with the journal.)"""
    if subject.manifest is None:
        return
    missing = [path for path in (SPEC, f"{DATA}/inputs/protocol.yaml", ROWS) if path not in subject.draft.all_contents]
    if missing or not subject.manifest.spec_sha256:
        yield (
            f"the run lacks {comma_join(missing) or 'the hash of its spec'}, so others cannot reproduce it; play it "
            "again to publish it"
        )


def _check_references(subject: Subject) -> Iterator[str]:
    """Every linked release is named with its version and hash, and everyone who can see this release can see it."""
    batch = {str(release.reference) for release in subject.batch}
    for link in subject.release.links:
        if link.release is None or link.release in batch:
            continue
        if link.role == "child_of" and link.sha256 is None:
            problem = (
                "no registry is given; add --to WHERE"
                if subject.registry is None
                else f"{subject.registry.address} does not have this release; publish it there first"
            )
            yield f"--child-of {link.release}: {problem}"
            continue
        reference = parse_reference(link.release)
        if not isinstance(reference, Reference) or reference.version in (None, LATEST):
            yield f"{link.role} names {link.release} without a version; name it as OWNER/NAME@VERSION"
        elif link.role not in _ROLES_IN_RUN and link.sha256 is None:
            yield f"{link.role} names {link.release} without its hash; `nip-run install {link.release}` pins it"
        elif subject.registry is not None:
            yield from _check_link(subject, link.role, reference, link.sha256, subject.registry)


def _check_kind(subject: Subject) -> Iterator[str]:
    """The run's kind is `training` if it trains models, and `benchmark` if it does not."""
    if subject.run is not None:
        yield from find_kind_problems(subject.run, subject.release.facts)


_ROLES_IN_RUN = ("part", "parent", "judges", "output", "input")
"""Roles of links that nip-run computes from the run. They need no hash, because their releases may not exist yet."""


def _check_link(
    subject: Subject, role: str, target: Reference, sha256: str | None, registry: Registry
) -> Iterator[str]:
    """Yield a failure or a note if a linked release is not in the registry, has another hash, or is private."""
    entry = next((entry for entry in registry.entries(target.kind) if entry.reference == target), None)
    if entry is None:
        yield CheckNote(f"{role}: {target} is not in {registry.address}; publish it there too, so that others find it")
    elif sha256 is not None and entry.sha256 != sha256:
        yield (
            f"{role}: {target} in {registry.address} is not the release that was used (sha256:{sha256[:12]}); publish "
            "that one under another name or version"
        )
    elif subject.release.visibility == "public" and registry.read_manifest(entry)[0].visibility == "private":
        yield f"{role}: {target} is private, but this release is public; make {target} public, or add --private"


def _check_pinned(subject: Subject) -> Iterator[str]:
    """Every part of the release is in a public commit. Parts without a public remote repository only get a note."""
    parts_with_remote = {part for part, source in subject.release.sources.items() if source.repository is not None}
    for reason in unpinned_reasons(subject.release.sources):
        if subject.force or reason.partition(":")[0] not in parts_with_remote:
            yield CheckNote(f"not pinned: {reason}")
        else:
            hint = " (then add --pin SPEC)" if subject.release.kind in (Kind.RUN, Kind.MODEL) else ""
            yield f"{reason}{hint}, or publish it as not pinned with --force"


def _check_versions(subject: Subject) -> Iterator[str]:
    """The versions of nip-run, Python and packages are recorded."""
    manifest = subject.manifest
    if manifest is None:
        return
    if not manifest.version or not manifest.python:
        yield "the run does not record the versions of nip-run and Python that played it; play it again to publish it"
    if "environment.lock" not in subject.draft.contents:
        message = "the run has no environment.lock with its package versions; play it again to record them"
        # Versions that did not record `sources` did not write environment.lock either.
        yield CheckNote(message) if manifest.sources is None else message


def _check_nothing_private(subject: Subject) -> Iterator[str]:
    """No file has a secret, or a name of this machine or its user."""
    yield from find_private_text(subject.release, subject.draft.contents, subject.original, subject.names)


def _check_readable(subject: Subject) -> Iterator[str]:
    """Others can load the release: nip-run does not refuse any of its files."""
    for path in sorted(subject.draft.contents):
        if path.endswith((".yaml", ".yml")):
            for problem in read_yaml(subject.folder / path, path).problems:
                yield f"{problem}; nip-run refuses such a file from others"
        elif path.endswith(".jinja"):
            yield from _check_template(subject.folder / path, path)
    is_run = subject.manifest is not None and subject.manifest.format > 0
    # A spec with links cannot be loaded here, because the releases that it uses must be installed first.
    if is_run or (subject.release.kind == Kind.SPEC and not subject.release.links):
        yield from find_spec_problems(subject.folder)


def _check_template(file: Path, path: str) -> Iterator[str]:
    for line, message in scan_template(read_bounded(file, MAX_TEMPLATE_BYTES).decode("utf-8", "replace")).refused:
        yield f"{path}:{line}: {message}; nip-run refuses such a file from others"


def _check_numbers(subject: Subject) -> Iterator[str]:
    """The run's records and numbers follow from the journal that is sent."""
    if subject.run is None or subject.manifest is None or subject.manifest.status not in PLAYED:
        return
    for line in find_run_problems(subject.run):
        message = line.replace(f"{subject.folder}/", "")
        yield CheckNote(message) if isinstance(line, CheckNote) else message


def _check_manifest(subject: Subject) -> Iterator[str]:
    """The manifest is valid, with the names, number and sizes of its files."""
    Release.from_bytes(subject.bundle.manifest)  # raises ReleaseError
    yield from ()  # all checks are generators


def _check_terms(subject: Subject) -> Iterator[str]:
    """A public release has a license."""
    if subject.release.visibility == "public" and subject.release.licence is None:
        yield "a public release needs a license: add --license NAME (such as CC-BY-4.0), or --private"


def _check_available(subject: Subject) -> Iterator[str]:
    """The name and version are free in the registry."""
    if subject.registry is not None:
        yield from find_name_conflict(subject.registry, subject.bundle)


CHECKS: Mapping[str, CheckFunction] = {
    "finished": _check_finished,
    "captured": _check_inputs_saved,
    "kind": _check_kind,
    "references": _check_references,
    "pinned": _check_pinned,
    "versions": _check_versions,
    "nothing private": _check_nothing_private,
    "readable": _check_readable,
    "numbers": _check_numbers,
    "manifest": _check_manifest,
    "terms": _check_terms,
    "name": _check_available,
}
"""The checks by name. `run_checks` runs them from the first to the last."""


def run_checks(subject: Subject) -> list[CheckOutcome]:
    """Run all checks of a release."""
    return [_run_check(name, check, subject) for name, check in CHECKS.items()]


def _run_check(name: str, check: CheckFunction, subject: Subject) -> CheckOutcome:
    messages: list[str] = []
    try:
        messages.extend(check(subject))
    except (NipRunError, OSError) as error:
        messages.append(str(error))
    failures = tuple(dict.fromkeys(line for line in messages if not isinstance(line, CheckNote)))
    return CheckOutcome(name, failures, tuple(dict.fromkeys(line for line in messages if isinstance(line, CheckNote))))


_READERS_ADDRESS = "http://127.0.0.1:1/v1"
"""Stands for the address that a user of the release sets. The check sends nothing to this address."""


def find_spec_problems(folder: Path) -> Iterator[str]:
    """Yield the reasons why others could not load the spec in a folder. Nothing is played."""
    files = [path for path in (folder / SAVED_SPEC, folder / DATA / SAVED_SPEC) if path.is_file()]
    if folder / SAVED_SPEC not in files:
        return
    values = {
        key: value
        for path in files
        for key, value in values_in(read_bounded(path, MAX_BYTES).decode("utf-8", "replace"))
    }
    if any(key.endswith(".provider") and traits_of(value).needs_run for key, value in values.items()):
        return  # a replay can only be loaded if the replayed run is in the same results folder
    removed = [key for key, value in values.items() if key.endswith(".base_url") and value == NOT_PUBLISHED]
    overrides = [f"{key}={_READERS_ADDRESS}" for key in removed if not key.startswith("sweep.")]
    try:
        for spec in load_specs(folder / SAVED_SPEC, overrides):
            plan_of(spec)
    except NipRunError as error:
        for problem in error.problems if isinstance(error, SpecError) else (error,):
            yield f"{problem}; others could not load the spec".replace(f"{folder}/", "")


ALREADY_PUBLISHED = "this release is already in the registry, with the same bytes"


def find_name_conflict(registry: Registry, bundle: Bundle) -> Iterator[str]:
    """Yield a message if a different release has this name and version, or a note if the same release has them."""
    entries = {entry.reference: entry for entry in registry.entries(bundle.release.kind)}
    published = entries.get(bundle.release.reference)
    if published is None:
        return
    if published.sha256 == bundle.sha256:
        yield CheckNote(ALREADY_PUBLISHED)
        return
    yield (
        f"{registry.address} already has another {published.reference} (sha256:{published.sha256[:12]}), which differs "
        f"from this release in {_describe_difference(registry, bundle, published)}. A version never changes, so give "
        "another version with --as OWNER/NAME@VERSION"
    )


def _describe_difference(registry: Registry, bundle: Bundle, entry: ReleaseEntry) -> str:
    """Describe the terms (license, visibility, description) that differ; if they are equal, the files that differ."""
    try:
        published, _ = registry.read_manifest(entry)
    except (ReleaseError, NewerFormatError):
        return "its bytes"
    new = bundle.release
    terms = [
        f"its {name} (published {getattr(published, name) or 'none'}, here {getattr(new, name) or 'none'})"
        for name in ("licence", "visibility", "description")
        if getattr(published, name) != getattr(new, name)
    ]
    if terms:
        return " and ".join(terms)
    published_files, new_files = ({file.path: file.sha256 for file in release.files} for release in (published, new))
    files = sorted(path for path in published_files | new_files if published_files.get(path) != new_files.get(path))
    if not files:
        return "its manifest"
    first = next((path for path in files if path.startswith(f"{DATA}/inputs/")), files[0])
    return first if len(files) == 1 else f"{first} and {counted(len(files) - 1, 'more file')}"
