"""What the manifest of a run's release says of it, for lists, boards and lineage, from the run's folder alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, cast

from runner.base.errors import RunError
from runner.base.hashing import tagged_hash
from runner.documents.releases.manifest import FileSource
from runner.models.provider_traits import PROVIDERS, ProviderName
from runner.models.retirements import shutdown_facts
from runner.models.settings import ModelSettings
from runner.registry.bundles.run_data import accuracy_of
from runner.registry.lineage.links import trained_as_recorded
from runner.results.folder import RunFolder
from runner.results.leaderboard.rows import saved_value
from runner.results.manifest import Manifest
from runner.results.tasks import PlayedDatapoint, Task, played_datapoints, template_variables

MOST_DATAPOINTS = 8_000
"""Of more, the manifest holds no hashes: it would be larger than any reader takes."""

_FACTS = (
    "run_id", "name", "kind", "benchmark", "protocol", "seed", "version", "python", "started_at", "finished_at",
    "rollouts", "completions", "prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "transport_failed",
    "parent_run_id", "iteration",
)  # fmt: skip


def datapoints_of(folder: RunFolder) -> list[PlayedDatapoint]:
    """The datapoints that were saved with a run.

    Raises:
        RunError: they are gone or damaged.
    """
    try:
        return list(played_datapoints(folder, saved_value(folder, "dataset", "group_by")))
    except (OSError, ValueError) as error:
        raise RunError(f"{folder.path / 'inputs'}: the inputs of the run cannot be read: {error}") from error


def task_of(folder: RunFolder, points: list[PlayedDatapoint]) -> Task:
    """The task of these datapoints, as the board has it."""
    columns = {name for point in points for name in point.columns}
    return Task.of([point.digest for point in points], template_variables(folder) & columns)


def facts_of(
    folder: RunFolder, manifest: Manifest, metrics: Mapping[str, Any], points: list[PlayedDatapoint]
) -> dict[str, Any]:
    """Plain JSON; the keys are those of every run's release."""
    hashes = sorted(point.content_sha256 for point in points)
    return {
        **shutdown_facts(_asked_models(folder, manifest)),
        **{name: getattr(manifest, name) for name in _FACTS},
        "task": None if manifest.is_training_run else task_of(folder, points).sha256,
        "status": manifest.status.value,
        "point": dict(manifest.point),
        "models": {row["agent"]: row["model"] for row in manifest.agents},
        "accuracy": accuracy_of(metrics),
        "replay_of": None if manifest.replay_of is None else list(manifest.replay_of),
        "rejudge_of": None if manifest.rejudge_of is None else list(manifest.rejudge_of),
        "stopped": manifest.why_stopped,
        "pinned": is_pinned(manifest),
        "cleaned": [],
        "trained": trained_as_recorded(folder),
        "datapoints_sha256": hashes if len(hashes) <= MOST_DATAPOINTS else None,
    }


def _asked_models(folder: RunFolder, manifest: Manifest) -> Iterator[ModelSettings]:
    """Yield the agents' models, with what decides which server is asked."""
    for row in manifest.agents:
        provider = cast("ProviderName", row["provider"])
        if provider in PROVIDERS:
            address = saved_value(folder, "models", row["model_group"], "base_url")
            address = tuple(address) if isinstance(address, list) else address
            yield ModelSettings(provider=provider, model=row["model"], base_url=address)


def identity_of(folder: RunFolder, manifest: Manifest, points: list[PlayedDatapoint]) -> dict[str, str]:
    """What is equal where runs are, however their files are written."""
    return {
        "run": manifest.identity,
        "game": manifest.game_sha256,
        "dataset": task_of(folder, points).dataset_content_sha256,
        "spec": manifest.spec_sha256,
        "protocol": manifest.protocol_sha256,
        "prompts": tagged_hash("prompts", dict(manifest.prompts_sha256)),
    }


def sources_of_manifest(manifest: Manifest) -> dict[str, FileSource]:
    """Where each part of a run came from, as it was measured when it began; nothing of a run of 0.1.0.

    Raises:
        RunError: what stands there was not written by nip-run.
    """
    try:
        return {
            str(part): FileSource(**{name: said.get(name) for name in ("repository", "commit", "path", "clean", "why")})
            for part, said in (manifest.sources or {}).items()
        }
    except (AttributeError, TypeError) as error:
        raise RunError(f"run {manifest.run_id}: the sources in its manifest are damaged: {error}") from error


def with_sources(manifest: Manifest, sources: Mapping[str, FileSource] | None) -> Manifest:
    """Return a manifest whose files come from `sources`; None keeps what was recorded."""
    if sources is None:
        return manifest
    return replace(manifest, sources={part: asdict(source) for part, source in sources.items()})


def is_pinned(manifest: Manifest) -> bool:
    """Whether others can get every part of a run as it was: from a commit, or as a release."""
    return not any(why_not_pinned(sources_of_manifest(manifest)))


def why_not_pinned(sources: Mapping[str, FileSource]) -> Iterator[str]:
    """Why the parts of a run or a component cannot be got as they were; the one test of it."""
    if not sources:
        yield "it is not recorded which commit its files were in"
    for part, source in sorted(sources.items()):
        if not source.clean:
            yield f"{part}: {source.why or 'its commit is not known; commit and push it before playing'}"
