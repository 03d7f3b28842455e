"""Runs and models as lineage sees them, alike from a registry and from a results folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from runner.base.errors import NipRunError, ReleaseError
from runner.base.hashing import tagged_hash
from runner.documents.releases.manifest import Release, ReleaseLink
from runner.documents.releases.reference import Kind
from runner.registry.lineage.links import links_of_manifest, trained_facts
from runner.registry.lineage.session_facts import Group, WrongFact, check_types, groups_of, typed
from runner.registry.sent_releases import sent_as
from runner.registry.transports.registry import ReleaseEntry
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED
from runner.results.metric_table import RANKING_METRIC
from runner.results.tasks import played_datapoints

Points = Callable[[], frozenset[str] | None]
"""The content hashes of the datapoints that a run played; None where they are not known."""


@dataclass(frozen=True, eq=False)
class LineageSession:
    """One run, or a model that one has made, published or here."""

    key: str
    """Its release, or its id in the results folder."""
    kind: str
    """`training`, `benchmark`, or `model`."""
    run_id: str
    identity: str
    owner: str | None
    """Whose release it is; None: it is in the results folder."""
    facts: Mapping[str, Any]
    groups: tuple[Group, ...]
    links: tuple[ReleaseLink, ...] = ()
    sha256: str | None = None
    private: bool = False
    yanked: str | None = None
    points: Points = field(default=lambda: None)
    holds: str | None = None
    """The hash of the weights whose files are in the release, by their own hashes."""
    where: str | None = None
    """The registry that its release is in."""
    sent_as: frozenset[str] = frozenset()
    """Of a run of the results folder the releases that were made of it here, by the hashes of their manifests."""
    looks_like: str | None = None
    """The run of the results folder that a release seems to be of, though nothing here says so."""

    @cached_property
    def datapoints(self) -> frozenset[str] | None:
        return self.points()

    def with_points(self, points: Points) -> Self:
        """The same session, whose datapoints are looked up otherwise."""
        return replace(self, points=points)

    @property
    def run(self) -> tuple[str, str]:
        """What it is a session of: releases of one run, and its models, have this in common."""
        return self.run_id, self.identity

    @property
    def parent_run_id(self) -> str | None:
        said = self.facts.get("parent_run_id")
        return said if isinstance(said, str) else None

    @property
    def started_at(self) -> str:
        return str(self.facts.get("started_at") or "")

    @property
    def trains(self) -> bool:
        return any(group.made for group in self.groups)


def session_of_release(entry: ReleaseEntry, release: Release, where: str | None = None) -> LineageSession:
    """A published run or model, by its manifest alone.

    Raises:
        ReleaseError: its facts are not those of a run.
    """
    facts = release.facts
    try:
        groups = groups_of(facts)
        run_id, kind = typed(facts, "run_id", str), typed(facts, "kind", str)
        hashes = typed(facts, "datapoints_sha256", list)
        check_types(facts)
    except WrongFact as error:
        raise ReleaseError(f"{entry.reference}: its facts are not those of a {release.kind}: {error}") from error
    known = None if hashes is None else frozenset(map(str, hashes))
    return LineageSession(
        str(entry.reference),
        "model" if release.kind == Kind.MODEL else kind or "benchmark",
        run_id or release.name,
        release.identity.get("run", ""),
        release.owner,
        facts,
        groups,
        release.links,
        entry.sha256,
        release.visibility == "private",
        entry.yanked,
        lambda: known,
        _weights_in(release) if release.kind == Kind.MODEL else None,
        where,
    )


_WEIGHTS = "weights/"


def _weights_in(release: Release) -> str | None:
    """The hash of the weights that a model's release has the files of, as `weights_at` hashes them; None: it has none.

    Of a single file the name does not count: the model may have been that file, and not a folder of it.
    """
    files = [file for file in release.files if file.path.startswith(_WEIGHTS)]
    said = release.identity.get("weights")
    named = sorted(((file.path.removeprefix(_WEIGHTS), file.size, file.sha256) for file in files), key=_as_walked)
    for found in (named, [("", size, sha256) for _, size, sha256 in named] if len(named) == 1 else []):
        if found and tagged_hash("weights", found) == said:
            return said
    return None


def _as_walked(file: tuple[str, int, str]) -> list[tuple[bool, str]]:
    """The order of a walk through folders: the files of one before those of the folders in it."""
    parts = file[0].split("/")
    return [(place < len(parts) - 1, part) for place, part in enumerate(parts)]


_FACTS = (
    "name", "kind", "benchmark", "seed", "status", "started_at", "finished_at", "parent_run_id", "iteration",
    "rollouts", "completions", "prompt_tokens", "completion_tokens", "cost_usd", "replay_of", "rejudge_of",
)  # fmt: skip


def session_of_folder(folder: RunFolder) -> LineageSession:
    """A run of a results folder.

    Raises:
        RunError: a file of it is gone or damaged.
    """
    manifest = folder.manifest()
    trained = trained_facts(folder)
    facts = {
        **{name: getattr(manifest, name) for name in _FACTS},
        "models": {row["agent"]: row["model"] for row in manifest.agents},
        "accuracy": _accuracy(folder) if manifest.status in PLAYED else None,
        "stopped": None,
    }
    try:
        groups = groups_of({"trained": trained})
    except WrongFact as error:
        raise ReleaseError(f"{folder.path}: {error}") from error
    return LineageSession(
        folder.run_id,
        manifest.kind,
        folder.run_id,
        manifest.identity,
        None,
        facts,
        groups,
        links_of_manifest(manifest),
        points=lambda: content_hashes(folder),
        sent_as=sent_as(folder),
    )


def _accuracy(folder: RunFolder) -> Mapping[str, Any] | None:
    if not folder.metrics.is_file():
        return None
    rows: Sequence[Mapping[str, Any]] = folder.read_metrics().get("metrics") or ()
    return next((row for row in rows if (row.get("agent"), row.get("metric")) == (None, RANKING_METRIC)), None)


def content_hashes(folder: RunFolder) -> frozenset[str] | None:
    """The content hashes of the datapoints that a run played, from its inputs; None where those cannot be read."""
    with suppress(OSError, ValueError, NipRunError, RecursionError):
        return frozenset(point.content_sha256 for point in played_datapoints(folder, None))
    return None
