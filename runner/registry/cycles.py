"""A release by which a model would come from itself: a registry that took it would hold what cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from runner.registry.left_out import in_words
from runner.registry.lineage import Lineage
from runner.registry.sessions import Session, session_of_release
from runner.releases.manifest import Release, digest
from runner.releases.reference import Kind
from runner.transports.registry import Entry, Registry


def closed_cycle(release: Release, together: Iterable[Release], registry: Registry) -> str | None:
    """How a release's models would come from themselves, in words, with those published with it; None: they do not.

    Only a run that trained can close a cycle; for one that did, all manifests of runs and models are read.
    """
    if release.kind not in (Kind.RUN, Kind.MODEL) or not _session(release).trains:
        return None
    ours = {str(one.reference): one for one in (*together, release)}
    sessions = [*map(_session, ours.values()), *_published(registry, ours.keys())]
    chain = Lineage(sessions).way_back(str(release.reference))
    if not chain:
        return None
    shown = ", whose model comes from ".join(chain)
    return (
        f"its model would come from itself: {shown}; one of them says what is not so, and {registry.where} takes none"
    )


def _session(release: Release) -> Session:
    return _seen(session_of_release(Entry(release.reference, digest(release.to_bytes())), release))


def _seen(session: Session) -> Session:
    """Whoever publishes to a place can read what is private there, too."""
    return replace(session, private=False)


def _published(registry: Registry, but: Iterable[str]) -> Iterator[Session]:
    known = set(but)
    for kind in (Kind.RUN, Kind.MODEL):
        for entry in registry.entries(kind):
            if str(entry.reference) in known:
                continue
            try:
                yield _seen(session_of_release(entry, registry.read(entry)[0]))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with another release, it is not this one's
                in_words(error)
