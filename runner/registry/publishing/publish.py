"""Publish drafts of releases: redact and check them, and send them only if every draft passes every check.

`nip-run publish` and the Python function `publish` use this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runner.base.errors import NotFoundError, ReleaseError, UsageError
from runner.base.text import counted
from runner.documents.releases.bundle import Bundle
from runner.documents.releases.manifest import ReleaseLink
from runner.documents.releases.reference import Kind, parse_reference
from runner.models.retirements import shutdown_notes
from runner.registry.bundles.run_facts import unpinned_reasons
from runner.registry.draft import Draft
from runner.registry.publishing.checks import CheckOutcome, Subject, run_checks
from runner.registry.redaction.draft_folder import write_fetched_folder
from runner.registry.redaction.draft_redaction import redact_drafts
from runner.registry.redaction.machine_names import MachineNames
from runner.registry.redaction.text_search import PrivateText
from runner.registry.transports.interface import AddResult
from runner.registry.transports.registry import PublishResult, Registry


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """The options of one publish."""

    names: MachineNames
    """Names of this machine and its user, which must not be published."""
    force: bool = False
    """Whether files that are in no public commit may be published. They are marked as not pinned."""


@dataclass(frozen=True)
class ReadyRelease:
    """A release that is built and checked, but not sent yet."""

    draft: Draft
    outcomes: Sequence[CheckOutcome]
    bundle: Bundle | None
    """The release to send; None if it cannot be built. One of the outcomes says why."""

    @property
    def passed(self) -> bool:
        return self.bundle is not None and all(outcome.passed for outcome in self.outcomes)

    def to_json(self, address: str | None) -> dict[str, Any]:
        """Return what would be sent to the registry at `address`, and the results of the checks."""
        release = self.draft.release if self.bundle is None else self.bundle.release
        return {
            "reference": str(release.reference),
            "where": address,
            "sha256": None if self.bundle is None else self.bundle.sha256,
            "passed": self.passed,
            "checks": [
                {
                    "check": outcome.check,
                    "passed": outcome.passed,
                    "failures": list(outcome.failures),
                    "notes": list(outcome.notes),
                }
                for outcome in self.outcomes
            ],
            "files": [vars(entry) for entry in release.files],
            "bytes": release.size,
            "cleaned": release.facts.get("cleaned", []),
            "pinned": release.facts.get("pinned"),
            "visibility": release.visibility,
            "licence": release.licence,
            "notes": list(self.draft.notes),
        }


@contextmanager
def prepare_releases(
    families: Sequence[Sequence[Draft]], registry: Registry | None, options: PublishOptions
) -> Iterator[list[ReadyRelease]]:
    """Redact and check drafts, and yield them ready to send. Their temporary files exist during the `with` block.

    A family is a training run with its parts and models, or a single draft. All drafts of a family get the same
    replacements for private names.

    Raises:
        ReleaseError: a draft cannot be redacted; nothing may be published.
    """
    with ExitStack() as stack:
        ready_releases: list[ReadyRelease] = []
        batch = [draft.release for family in families for draft in family]
        for drafts in families:
            family = [_resolve_parent(draft, registry) for draft in drafts]
            work_folder = Path(stack.enter_context(TemporaryDirectory(prefix=".nip-run-")))
            for number, (original, draft) in enumerate(zip(family, redact_drafts(family, work_folder), strict=True)):
                complete_draft = _with_hashes(_with_notes(draft), ready_releases)
                target = work_folder / f"fetched_{number}"
                folder = write_fetched_folder(complete_draft.release, complete_draft.all_contents, target)
                subject = Subject(original, complete_draft, folder, registry, batch, options.names, options.force)
                ready_releases.append(_check_release(subject))
        yield ready_releases


def _resolve_parent(draft: Draft, registry: Registry | None) -> Draft:
    """Return the draft with the version and hash of its parent release (`child_of`), if the registry has the parent."""
    links = tuple(_resolve_link(link, registry, draft.release.kind) for link in draft.release.links)
    return draft if links == draft.release.links else replace(draft, release=replace(draft.release, links=links))


def _resolve_link(link: ReleaseLink, registry: Registry | None, kind: Kind) -> ReleaseLink:
    if registry is None or link.role != "child_of" or link.release is None or link.sha256 is not None:
        return link
    try:
        entry = registry.find(parse_reference(link.release, default_kind=kind))
    except (NotFoundError, UsageError):
        return link  # the check `references` then reports that the release is missing
    return replace(link, release=str(entry.reference), sha256=entry.sha256)


def _with_notes(draft: Draft) -> Draft:
    """Return the draft with the fact `pinned`, and with a note for each of its models that is shut down."""
    release, notes = draft.release, (*draft.notes, *shutdown_notes(draft.release.facts))
    complete_release = replace(release, facts={**release.facts, "pinned": not any(unpinned_reasons(release.sources))})
    return replace(draft, release=complete_release, notes=notes)


def _with_hashes(draft: Draft, earlier_releases: Sequence[ReadyRelease]) -> Draft:
    """Return the draft with the hashes of its parts and models, which were prepared before it in the same publish."""
    bundles = [release.bundle for release in earlier_releases if release.bundle is not None]
    hashes = {str(bundle.release.reference): bundle.sha256 for bundle in bundles}
    links = tuple(
        replace(link, sha256=hashes.get(link.release)) if link.release and link.role in ("part", "output") else link
        for link in draft.release.links
    )
    return replace(draft, release=replace(draft.release, links=links))


def _check_release(subject: Subject) -> ReadyRelease:
    outcomes = run_checks(subject)
    try:
        return ReadyRelease(subject.draft, outcomes, subject.bundle)
    except ReleaseError:
        return ReadyRelease(subject.draft, outcomes, None)


def list_failures(releases: Sequence[ReadyRelease]) -> list[str]:
    """Return the failures of all releases. If several releases fail for the same cause, they share one line."""
    causes: dict[tuple[str, object], list[tuple[str, str]]] = {}
    for release in releases:
        for outcome in release.outcomes:
            for failure in outcome.failures:
                cause = failure.occurrences[0].cause if isinstance(failure, PrivateText) else failure
                causes.setdefault((outcome.check, cause), []).append((str(release.draft.release.reference), failure))
    return [
        _describe_cause(check, failures, name_releases=len(releases) > 1) for (check, _), failures in causes.items()
    ]


def _describe_cause(check: str, failures: Sequence[tuple[str, str]], *, name_releases: bool) -> str:
    """Describe the failures of a check with the same cause; if `name_releases`, with the names of the releases."""
    reference, message = failures[0]
    if not name_releases:
        return f"{check}: {message}"
    if isinstance(message, PrivateText):
        texts = [(release, text) for release, text in failures if isinstance(text, PrivateText)]
        message = PrivateText.from_occurrences(
            replace(occurrence, file=f"{release}:{occurrence.file}")
            for release, text in texts
            for occurrence in text.occurrences
        )
        return f"{check}: {message}"
    more = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
    return f"{reference}{more}: {check}: {message}"


def send_releases(releases: Sequence[ReadyRelease], registry: Registry) -> tuple[list[PublishResult], AddResult]:
    """Send all releases.

    Raises:
        ReleaseError: a check failed and nothing was sent, or the registry cannot be written.
        TakenError: another release has the same name and version; nothing was sent.
    """
    problems = list_failures(releases)
    bundles = [release.bundle for release in releases if release.bundle is not None]
    if problems or len(bundles) < len(releases):
        raise ReleaseError(f"nothing was published: {counted(len(problems), 'problem')} to fix").with_notes(problems)
    return registry.publish(bundles, _commit_message(bundles))


def _commit_message(bundles: Sequence[Bundle]) -> str:
    first = str(bundles[-1].release.reference)
    return f"Publish {first}" + (f" and {len(bundles) - 1} more" if len(bundles) > 1 else "")
