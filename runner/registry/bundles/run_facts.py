"""Compute what the manifest of a run's release says about the run: its facts, its hashes and the sources of its files.

The values come from the run's folder, which has its own manifest (class `Manifest`). `runner.registry.bundles.runs`
writes them into the manifest of the release. Lists, boards and `nip-run log` show the facts without reading the
release's other files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, cast

from runner.base.errors import RunError, errors_as
from runner.base.hashing import tagged_hash
from runner.documents.releases.manifest import FileSource
from runner.models.provider_traits import PROVIDERS, ProviderName
from runner.models.retirements import model_shutdown_facts
from runner.models.settings import ModelSettings
from runner.registry.bundles.run_data import find_accuracy
from runner.registry.lineage.links import collect_training_facts
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.results.saved_spec import saved_value
from runner.results.tasks import PlayedDatapoint, Task, played_datapoints

MAX_DATAPOINTS = 8_000
"""If a run has more datapoints, the manifest has none of their hashes, because it would be too large."""

_FACTS = (
    "run_id", "name", "kind", "benchmark", "protocol", "seed", "version", "python", "started_at", "finished_at",
    "rollouts", "completions", "prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "transport_failed",
    "parent_run_id", "iteration",
)  # fmt: skip


def load_datapoints(folder: RunFolder) -> list[PlayedDatapoint]:
    """Return the datapoints that were saved with a run.

    Raises:
        RunError: the datapoints are missing or damaged.
    """
    with errors_as(RunError, f"{folder.path / 'inputs'}: the inputs of the run cannot be read", OSError, ValueError):
        return list(played_datapoints(folder, saved_value(folder, "dataset", "group_by")))


def collect_facts(
    folder: RunFolder, manifest: Manifest, metrics: Mapping[str, object], datapoints: list[PlayedDatapoint]
) -> dict[str, Any]:
    """Return the facts as JSON values. The releases of all runs have the same keys.

    `point` is the point of the sweep: the keys that the sweep sets in this run. `cleaned` has the number of replaced
    private values, which redaction adds later. `trained` describes the models that the run trained, by model group.
    """
    hashes = sorted(datapoint.content_sha256 for datapoint in datapoints)
    return {
        **model_shutdown_facts(_models_of_agents(folder, manifest)),
        **copied_facts(manifest),
        "task": None if manifest.is_training_run else Task.of_points(folder, datapoints).sha256,
        "accuracy": find_accuracy(metrics),
        "pinned": is_pinned(manifest),
        "cleaned": [],
        "trained": collect_training_facts(folder),
        "datapoints_sha256": hashes if len(hashes) <= MAX_DATAPOINTS else None,
    }


def copied_facts(manifest: Manifest) -> dict[str, Any]:
    """Return the facts that the manifest of the run's folder has."""
    return {
        **{name: getattr(manifest, name) for name in _FACTS},
        "status": manifest.status.value,
        "point": dict(manifest.point),
        "models": {row["agent"]: row["model"] for row in manifest.agents},
        "replay_of": None if manifest.replay_of is None else list(manifest.replay_of),
        "rejudge_of": None if manifest.rejudge_of is None else list(manifest.rejudge_of),
        "stopped": manifest.why_stopped,
    }


def _models_of_agents(folder: RunFolder, manifest: Manifest) -> Iterator[ModelSettings]:
    """Yield the settings of each agent's model, with its provider and the server's address."""
    for row in manifest.agents:
        provider = cast("ProviderName", row["provider"])
        if provider in PROVIDERS:
            address = saved_value(folder, "models", row["model_group"], "base_url")
            address = tuple(address) if isinstance(address, list) else address
            yield ModelSettings(provider=provider, model=row["model"], base_url=address)


def collect_hashes(folder: RunFolder, manifest: Manifest, datapoints: list[PlayedDatapoint]) -> dict[str, str]:
    """Return hashes that are equal for equal runs, even if their files are formatted differently."""
    return {
        "run": manifest.identity,
        "game": manifest.game_sha256,
        "dataset": Task.of_points(folder, datapoints).dataset_content_sha256,
        "spec": manifest.spec_sha256,
        "protocol": manifest.protocol_sha256,
        "prompts": tagged_hash("prompts", dict(manifest.prompts_sha256)),
    }


def sources_of_manifest(manifest: Manifest) -> dict[str, FileSource]:
    """Return the source of each part of a run, as recorded when the run started; runs of 0.1.0 have no sources.

    A part is the spec or what it names, such as the protocol. A source is the commit that its files came from.
    The stored fields `clean` and `why` tell whether others can fetch these files from the commit, and if not, why.

    Raises:
        RunError: the sources in the manifest are damaged.
    """
    try:
        return {
            str(part): FileSource(**{name: item.get(name) for name in ("repository", "commit", "path", "clean", "why")})
            for part, item in (manifest.sources or {}).items()
        }
    except (AttributeError, TypeError) as error:
        raise RunError(f"run {manifest.run_id}: the sources in its manifest are damaged: {error}") from error


def replace_sources(manifest: Manifest, sources: Mapping[str, FileSource] | None) -> Manifest:
    """Return a manifest with other sources of its files; if `sources` is None, the manifest is not changed."""
    if sources is None:
        return manifest
    return replace(manifest, sources={part: asdict(source) for part, source in sources.items()})


def is_pinned(manifest: Manifest) -> bool:
    """Return whether others can get the original files of every part of a run, from a commit or a release."""
    return not any(unpinned_reasons(sources_of_manifest(manifest)))


def unpinned_reasons(sources: Mapping[str, FileSource]) -> Iterator[str]:
    """Yield a reason for each part of a run or component that is not pinned: others cannot get its original files."""
    if not sources:
        yield "the commit of its files was not recorded"
    for part, source in sorted(sources.items()):
        if not source.clean:
            yield f"{part}: {source.why or 'its commit is not known; commit and push it before playing'}"
