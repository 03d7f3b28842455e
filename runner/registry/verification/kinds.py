"""What a release says of its run that follows from its spec and its stages: whether it trains, what from, and what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.base.errors import ReleaseError
from runner.base.storage.strict_json import is_same
from runner.registry.lineage.links import trained_facts
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.spec.model_sources import ModelSource

KINDS = ("benchmark", "training")


def kind_of(manifest: Manifest, spec: Mapping[str, Any]) -> str:
    """The kind of a run, by its resolved spec; a part whose games are trained on is one of the training.

    Raises:
        ReleaseError: its manifest says another than its spec.
    """
    trains = spec.get("kind") == "training" or spec.get("training") is not None
    if manifest.kind not in KINDS:
        raise ReleaseError(f"run {manifest.run_id} cannot be of kind {manifest.kind!r}")
    if trains and manifest.kind == "benchmark":
        raise ReleaseError(
            f"run {manifest.run_id} says that it is a benchmark, and its spec trains; a run that changes models is of "
            "kind training, and does not rank"
        )
    if manifest.kind == "training" and not trains and manifest.parent_run_id is None:
        raise ReleaseError(f"run {manifest.run_id} says that it trains, and its spec has no trainer")
    return manifest.kind


def check_kind(folder: RunFolder, facts: Mapping[str, Any], source: ModelSource | None = None) -> None:
    """See that what a release says is the kind of its run: before it is published, and where it is read.

    Raises:
        ReleaseError: it is not.
        RunError, SpecError: the run's files cannot be read.
    """
    manifest = folder.manifest()
    kind = kind_of(manifest, (source or ModelSource(folder.path)).spec)
    if facts.get("kind") != kind:
        raise ReleaseError(f"run {manifest.run_id} is of kind {kind}, and its release says {facts.get('kind')!r}")


_MEASURED = ("weights_sha256", "games")
"""What whoever published it could see, and nobody else can: files of that machine, and other runs."""


def wrong_kind(folder: RunFolder, facts: Mapping[str, Any]) -> Iterator[str]:
    """What a release says of the kind and the models of its run that does not follow from the run's own files.

    Raises:
        RunError, SpecError: those cannot be read.
    """
    source = ModelSource(folder.path)
    try:
        check_kind(folder, facts, source)
    except ReleaseError as error:
        yield str(error)
    if not is_same(_shown(facts.get("trained")), _shown(trained_facts(folder, source))):
        yield (
            f"run {folder.manifest().run_id}: the models that its release says it began with and made are not those of "
            f"its {folder.spec.name} and its stages"
        )


def _shown(trained: Any) -> Any:
    if not isinstance(trained, list):
        return trained
    return [
        {name: value for name, value in group.items() if name not in _MEASURED} if isinstance(group, dict) else group
        for group in trained
    ]
