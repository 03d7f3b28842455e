"""The class `LineageNode`: a published or local run, or a published model, with the facts about its training.

A node is read from the manifest of a release in a registry, or from a run in the results folder. `listed_facts` are
the facts that lists and boards show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from runner.base.errors import NipRunError, ReleaseError, errors_as
from runner.base.hashing import tagged_hash
from runner.base.text import shortened
from runner.documents.releases.manifest import Release, ReleaseLink
from runner.documents.releases.reference import Kind
from runner.registry.lineage.links import build_manifest_links, collect_public_group_facts
from runner.registry.lineage.typed_facts import Group, WrongFact, check_types, parse_groups, read_section, read_typed
from runner.registry.sent_releases import sent_hashes
from runner.registry.transports.listing import ReleaseEntry
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED
from runner.results.metric_definitions import RANKING_METRIC
from runner.results.metrics_file import find_metric_row
from runner.results.tasks import played_datapoints

DatapointLookup = Callable[[], frozenset[str] | None]
"""A function that returns the content hashes of the datapoints that a run played, or None if they are not known."""


@dataclass(frozen=True, eq=False)
class LineageNode:
    """A node in the lineage graph: a release of a run, a release of a model, or a local run (in the results folder)."""

    key: str
    """The reference of the release, or the id of the local run."""
    kind: str
    """`training`, `benchmark`, or `model`."""
    run_id: str
    identity: str
    owner: str | None
    """The owner of the release; None for a local run."""
    facts: Mapping[str, Any]
    """The facts in the release's manifest, or the same facts about a local run."""
    groups: tuple[Group, ...]
    links: tuple[ReleaseLink, ...] = ()
    sha256: str | None = None
    """The hash of the release's manifest."""
    private: bool = False
    yanked: str | None = None
    """The reason why the release was yanked."""
    look_up_datapoints: DatapointLookup = field(default=lambda: None)
    published_weights: str | None = None
    """The hash of the weights in a model release; None if the release does not have the weights."""
    address: str | None = None
    """The address of the registry that has the release."""
    sent_hashes: frozenset[str] = frozenset()
    """The hashes of the releases that were published from the local run; empty for a release."""
    looks_like: str | None = None
    """The id of a local run with the same facts as this release, if no record says that the run was published."""

    @cached_property
    def datapoints(self) -> frozenset[str] | None:
        return self.look_up_datapoints()

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
    def trains_models(self) -> bool:
        """Whether the run made models."""
        return any(group.output_models for group in self.groups)


def node_from_release(entry: ReleaseEntry, release: Release, address: str | None = None) -> LineageNode:
    """Return the node of a published run or model. Only its manifest is read.

    Raises:
        ReleaseError: the facts in the manifest are invalid.
    """
    facts = release.facts
    with errors_as(ReleaseError, f"{entry.reference}: invalid facts of a {release.kind}", WrongFact):
        groups = parse_groups(facts)
        run_id, kind = read_typed(facts, "run_id", str), read_typed(facts, "kind", str)
        hashes = read_typed(facts, "datapoints_sha256", list)
        check_types(facts)
    datapoints = None if hashes is None else frozenset(map(str, hashes))
    return LineageNode(
        key=str(entry.reference),
        kind="model" if release.kind == Kind.MODEL else kind or "benchmark",
        run_id=run_id or release.name,
        identity=release.identity.get("run", ""),
        owner=release.owner,
        facts=facts,
        groups=groups,
        links=release.links,
        sha256=entry.sha256,
        private=release.visibility == "private",
        yanked=entry.yanked,
        look_up_datapoints=lambda: datapoints,
        published_weights=_find_weights_hash(release) if release.kind == Kind.MODEL else None,
        address=address,
    )


_WEIGHTS = "weights/"


def _find_weights_hash(release: Release) -> str | None:
    """Return the declared hash of the weights in a model release; None if its weight files have another hash.

    The hash is computed as in `weights_at`. If the release has one file, the original model may have been this file, or
    a folder with it. The hash of a file does not depend on its name, so both hashes are computed.
    """
    files = [file for file in release.files if file.path.startswith(_WEIGHTS)]
    declared = release.identity.get("weights")
    entries = sorted(((file.path.removeprefix(_WEIGHTS), file.size, file.sha256) for file in files), key=_walk_order)
    candidates = [entries, [("", files[0].size, files[0].sha256)]] if len(files) == 1 else [entries]
    hashes = [tagged_hash("weights", candidate) for candidate in candidates if candidate]
    return declared if declared in hashes else None


def _walk_order(file: tuple[str, int, str]) -> list[tuple[bool, str]]:
    """Return a sort key for the order of files in `weights_at`: the files of a folder before its subfolders."""
    parts = file[0].split("/")
    return [(index < len(parts) - 1, part) for index, part in enumerate(parts)]


_RUN_FACTS = (
    "name", "kind", "benchmark", "seed", "status", "started_at", "finished_at", "parent_run_id", "iteration",
    "rollouts", "completions", "prompt_tokens", "completion_tokens", "cost_usd", "replay_of", "rejudge_of",
)  # fmt: skip


def node_from_folder(folder: RunFolder) -> LineageNode:
    """Return the node of a run in a results folder.

    Raises:
        RunError: a file of the run is missing or damaged.
    """
    manifest = folder.manifest()
    trained, has_metrics = collect_public_group_facts(folder), manifest.status in PLAYED and folder.metrics.is_file()
    facts = {
        **{name: getattr(manifest, name) for name in _RUN_FACTS},
        "models": {row["agent"]: row["model"] for row in manifest.agents},
        "accuracy": find_metric_row(folder.read_metrics(), RANKING_METRIC) if has_metrics else None,
        "stopped": None,
    }
    with errors_as(ReleaseError, str(folder.path), WrongFact):
        groups = parse_groups({"trained": trained})
    return LineageNode(
        key=folder.run_id,
        kind=manifest.kind,
        run_id=folder.run_id,
        identity=manifest.identity,
        owner=None,
        facts=facts,
        groups=groups,
        links=build_manifest_links(manifest),
        look_up_datapoints=lambda: read_content_hashes(folder),
        sent_hashes=sent_hashes(folder),
    )


def read_content_hashes(folder: RunFolder) -> frozenset[str] | None:
    """Return the content hashes of the datapoints that a run played, or None if its inputs cannot be read."""
    with suppress(OSError, ValueError, NipRunError, RecursionError):
        return frozenset(point.content_sha256 for point in played_datapoints(folder, None))
    return None


TEXTS = ("kind", "benchmark", "protocol")
MAX_TEXT = 300
"""Maximum number of characters of each fact in `TEXTS`, and of a model's name."""
MAX_MODELS = 100
_TEXT_LENGTH = 200
"""Maximum number of characters of a fact that is shown."""
_MODELS_LENGTH = 1_000
"""Maximum number of characters of the list of models that is shown."""


def find_wrong_facts(entry: ReleaseEntry, release: Release) -> Iterator[str]:
    """Yield a message for the first fact in a manifest that is invalid or too long to be shown."""
    facts = release.facts
    try:
        if release.kind in (Kind.RUN, Kind.MODEL):
            node_from_release(entry, release)
        for name in TEXTS:
            if len(read_typed(facts, name, str) or "") > MAX_TEXT:
                raise WrongFact(f"{name} has {len(facts[name]):,} characters; at most {MAX_TEXT} are allowed")
        models = read_section(facts, "models")
        if len(models) > MAX_MODELS:
            raise WrongFact(f"models has {len(models):,} names; at most {MAX_MODELS} are allowed")
        for agent in models:
            if len(read_typed(models, agent, str) or "") > MAX_TEXT:
                raise WrongFact(f"a model has {len(models[agent]):,} characters; at most {MAX_TEXT} are allowed")
    except WrongFact as error:
        yield f"{entry.reference}: invalid facts of a {release.kind}: {error}"
    except ReleaseError as error:
        yield str(error)


def listed_facts(release: Release) -> dict[str, str | None]:
    """Return the facts in `TEXTS`, and the models as one text. Missing and invalid facts are None."""
    facts = release.facts
    values = {name: facts.get(name) for name in TEXTS}
    texts = {name: shortened(text, _TEXT_LENGTH) if isinstance(text, str) else None for name, text in values.items()}
    models = facts.get("models")
    models_text = None
    if isinstance(models, dict):
        pairs = [f"{agent}={name}" for agent, name in list(models.items())[:MAX_MODELS] if isinstance(name, str)]
        models_text = shortened(", ".join(pairs), _MODELS_LENGTH)
    return {**texts, "models": models_text}
