"""Find releases whose claims together say that a model comes from itself, so that one claim must be wrong.

`publish` and servers check each new release with `find_closed_cycle`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from runner.documents.releases.manifest import Release, digest
from runner.documents.releases.reference import Kind
from runner.registry.check_notes import CheckNote
from runner.registry.lineage.lineage import Lineage
from runner.registry.lineage.nodes import LineageNode, node_from_release
from runner.registry.transports.registry import Registry, ReleaseEntry


def find_closed_cycle(release: Release, batch: Iterable[Release], registry: Registry) -> str | None:
    """Return a message if publishing a release would close a cycle; None if not.

    `batch` has the releases that are published together with this one. If the cycle includes releases of other owners,
    the message is a `CheckNote`, which does not prevent the publish: the wrong claim may be theirs.
    """
    if release.kind not in (Kind.RUN, Kind.MODEL) or not _build_node(release).trains_models:
        return None  # only a run that made models can close a cycle
    new = {str(item.reference): item for item in (*batch, release)}
    lineage = Lineage([*map(_build_node, new.values()), *_published_nodes(registry, new.keys())])
    key = str(release.reference)
    if own_chain := lineage.find_cycle(key, release.owner):
        return (
            f"{_describe_chain(own_chain)}; one of these claims is wrong, so {registry.address} refuses the release; "
            "correct the lineage"
        )
    chain = lineage.find_cycle(key)
    return CheckNote(f"{_describe_chain(chain)}; other owners claim this, and one claim is wrong") if chain else None


def _describe_chain(chain: Sequence[str]) -> str:
    return f"the release's model would come from itself: {', whose model comes from '.join(chain)}"


def _build_node(release: Release) -> LineageNode:
    return _for_publisher(node_from_release(ReleaseEntry(release.reference, digest(release.to_bytes())), release))


def _for_publisher(node: LineageNode) -> LineageNode:
    """Return a node without its mark as private: publishers see their own private releases."""
    return replace(node, private=False)


def _published_nodes(registry: Registry, excluded: Iterable[str]) -> Iterator[LineageNode]:
    """Yield the published runs and models, except `excluded` and unreadable releases."""
    excluded_names = set(excluded)
    for kind in (Kind.RUN, Kind.MODEL):
        for entry in registry.entries(kind):
            if str(entry.reference) in excluded_names:
                continue
            try:
                yield _for_publisher(node_from_release(entry, registry.read_manifest(entry)[0]))
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001, S112 - errors of other releases do not concern this one
                continue
