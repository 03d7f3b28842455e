"""A release by which a model would come from itself: a registry that took it would hold what cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from runner.documents.releases.manifest import Release, digest
from runner.documents.releases.reference import Kind
from runner.registry.check_notes import CheckNote
from runner.registry.lineage.lineage import Lineage
from runner.registry.lineage.sessions import LineageSession, session_of_release
from runner.registry.transports.registry import Registry, ReleaseEntry


def closed_cycle(release: Release, together: Iterable[Release], registry: Registry) -> str | None:
    """How a release's models would come from themselves, in words, with those published with it; None: they do not.

    A `CheckNote` where others' releases say a part of it: whoever may publish could else bar an owner from publishing.
    Only a run that trained can close a cycle; for one that did, all manifests of runs and models are read.
    """
    if release.kind not in (Kind.RUN, Kind.MODEL) or not _session(release).trains:
        return None
    ours = {str(one.reference): one for one in (*together, release)}
    lineage = Lineage([*map(_session, ours.values()), *_published(registry, ours.keys())])
    key = str(release.reference)
    if own := lineage.find_cycle(key, release.owner):
        return f"{_in_words(own)}; one of them says what is not so, and {registry.where} takes none"
    chain = lineage.find_cycle(key)
    return CheckNote(f"{_in_words(chain)}; by the word of others, of whom one says what is not so") if chain else None


def _in_words(chain: Sequence[str]) -> str:
    return f"its model would come from itself: {', whose model comes from '.join(chain)}"


def _session(release: Release) -> LineageSession:
    return _seen(session_of_release(ReleaseEntry(release.reference, digest(release.to_bytes())), release))


def _seen(session: LineageSession) -> LineageSession:
    """Whoever publishes to a place can read what is private there, too."""
    return replace(session, private=False)


def _published(registry: Registry, but: Iterable[str]) -> Iterator[LineageSession]:
    known = set(but)
    for kind in (Kind.RUN, Kind.MODEL):
        for entry in registry.entries(kind):
            if str(entry.reference) in known:
                continue
            try:
                yield _seen(session_of_release(entry, registry.read(entry)[0]))
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001, S112 - whatever is wrong with another release, it is not this one's
                continue
