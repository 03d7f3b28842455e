"""The type `LineageSession`: a run or model of a registry or a results folder, with the facts that lineage uses."""

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
from runner.registry.lineage.session_facts import Group, WrongFact, check_types, groups_of, read_typed
from runner.registry.sent_releases import sent_hashes
from runner.registry.transports.registry import ReleaseEntry
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED
from runner.results.metric_definitions import RANKING_METRIC
from runner.results.tasks import played_datapoints

DatapointLookup = Callable[[], frozenset[str] | None]
"""A function that returns the content hashes of the datapoints that a run played, or None if they are not known."""


@dataclass(frozen=True, eq=False)
class LineageSession:
    """A run, or a model that a run made, published or local."""

    key: str
    """The reference of its release, or its run id in the results folder."""
    kind: str
    """`training`, `benchmark`, or `model`."""
    run_id: str
    identity: str
    owner: str | None
    """The owner of the release; None for a run of the results folder."""
    facts: Mapping[str, Any]
    groups: tuple[Group, ...]
    links: tuple[ReleaseLink, ...] = ()
    sha256: str | None = None
    private: bool = False
    yanked: str | None = None
    look_up_datapoints: DatapointLookup = field(default=lambda: None)
    published_weights: str | None = None
    """The hash of the weights whose files are in a model release; None if it has no weights."""
    where: str | None = None
    """The registry that its release is in."""
    sent_hashes: frozenset[str] = frozenset()
    """The manifest hashes of the releases that this machine published from a local run."""
    looks_like: str | None = None
    """The local run with the same facts as a release, if no record says that the release was published from it."""

    @cached_property
    def datapoints(self) -> frozenset[str] | None:
        return self.look_up_datapoints()

    def with_datapoint_lookup(self, lookup: DatapointLookup) -> Self:
        """Return the session with another function that looks up its datapoints."""
        return replace(self, look_up_datapoints=lookup)

    @property
    def run(self) -> tuple[str, str]:
        """The run's id and identity, which all releases of a run and of its models share."""
        return self.run_id, self.identity

    @property
    def parent_run_id(self) -> str | None:
        run_id = self.facts.get("parent_run_id")
        return run_id if isinstance(run_id, str) else None

    @property
    def started_at(self) -> str:
        return str(self.facts.get("started_at") or "")

    @property
    def trains(self) -> bool:
        return any(group.made_models for group in self.groups)


def session_of_release(entry: ReleaseEntry, release: Release, where: str | None = None) -> LineageSession:
    """Return the session of a published run or model, from its manifest only.

    Raises:
        ReleaseError: the facts in the manifest are invalid.
    """
    facts = release.facts
    try:
        groups = groups_of(facts)
        run_id, kind = read_typed(facts, "run_id", str), read_typed(facts, "kind", str)
        hashes = read_typed(facts, "datapoints_sha256", list)
        check_types(facts)
    except WrongFact as error:
        raise ReleaseError(f"{entry.reference}: invalid facts of a {release.kind}: {error}") from error
    datapoints = None if hashes is None else frozenset(map(str, hashes))
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
        lambda: datapoints,
        _weights_in(release) if release.kind == Kind.MODEL else None,
        where,
    )


_WEIGHTS = "weights/"


def _weights_in(release: Release) -> str | None:
    """Return the hash of the weights in a model release, as `weights_at` computes it; None if the facts have another.

    A single file may be hashed without its name, because the model may have been the file itself instead of a folder.
    """
    files = [file for file in release.files if file.path.startswith(_WEIGHTS)]
    declared = release.identity.get("weights")
    entries = sorted(((file.path.removeprefix(_WEIGHTS), file.size, file.sha256) for file in files), key=_walk_order)
    for candidate in (entries, [("", size, sha256) for _, size, sha256 in entries] if len(entries) == 1 else []):
        if candidate and tagged_hash("weights", candidate) == declared:
            return declared
    return None


def _walk_order(file: tuple[str, int, str]) -> list[tuple[bool, str]]:
    """Return a sort key for the order of a folder walk: the files of a folder before its subfolders."""
    parts = file[0].split("/")
    return [(index < len(parts) - 1, part) for index, part in enumerate(parts)]


_RUN_FACTS = (
    "name", "kind", "benchmark", "seed", "status", "started_at", "finished_at", "parent_run_id", "iteration",
    "rollouts", "completions", "prompt_tokens", "completion_tokens", "cost_usd", "replay_of", "rejudge_of",
)  # fmt: skip


def session_of_folder(folder: RunFolder) -> LineageSession:
    """Return the session of a run in a results folder.

    Raises:
        RunError: a file of the run is missing or damaged.
    """
    manifest = folder.manifest()
    trained = trained_facts(folder)
    facts = {
        **{name: getattr(manifest, name) for name in _RUN_FACTS},
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
        look_up_datapoints=lambda: content_hashes(folder),
        sent_hashes=sent_hashes(folder),
    )


def _accuracy(folder: RunFolder) -> Mapping[str, Any] | None:
    if not folder.metrics.is_file():
        return None
    rows: Sequence[Mapping[str, Any]] = folder.read_metrics().get("metrics") or ()
    return next((row for row in rows if (row.get("agent"), row.get("metric")) == (None, RANKING_METRIC)), None)


def content_hashes(folder: RunFolder) -> frozenset[str] | None:
    """Return the content hashes of the datapoints that a run played, or None if its inputs cannot be read."""
    with suppress(OSError, ValueError, NipRunError, RecursionError):
        return frozenset(point.content_sha256 for point in played_datapoints(folder, None))
    return None
