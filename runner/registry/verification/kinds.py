"""Check the kind and the models in a release's facts against the spec and the stages of its run."""

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
    """Return the kind of a run; a part whose games are used for training is of kind `training`.

    Raises:
        ReleaseError: its manifest contradicts its resolved spec.
    """
    trains = spec.get("kind") == "training" or spec.get("training") is not None
    if manifest.kind not in KINDS:
        raise ReleaseError(f"run {manifest.run_id} cannot be of kind {manifest.kind!r}")
    if trains and manifest.kind == "benchmark":
        raise ReleaseError(
            f"run {manifest.run_id} says that it is a benchmark, but its spec trains; a run that changes models is of "
            "kind training and is unranked"
        )
    if manifest.kind == "training" and not trains and manifest.parent_run_id is None:
        raise ReleaseError(f"run {manifest.run_id} says that it trains, but its spec has no trainer")
    return manifest.kind


def check_kind(folder: RunFolder, facts: Mapping[str, Any], source: ModelSource | None = None) -> None:
    """Check the kind in a release's facts, before it is published and when it is read.

    Raises:
        ReleaseError: it is not the kind of the run.
        RunError, SpecError: the run's files cannot be read.
    """
    manifest = folder.manifest()
    kind = kind_of(manifest, (source or ModelSource(folder.path)).spec)
    if facts.get("kind") != kind:
        raise ReleaseError(f"run {manifest.run_id} is of kind {kind}, but its release says {facts.get('kind')!r}")


_UNCHECKED = ("weights_sha256", "games")
"""Facts that only the publisher can compute, from files of their machine and from other runs."""


def wrong_kind(folder: RunFolder, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the facts on the kind and the models of a run that contradict the run's own files.

    Raises:
        RunError, SpecError: the files cannot be read.
    """
    source = ModelSource(folder.path)
    try:
        check_kind(folder, facts, source)
    except ReleaseError as error:
        yield str(error)
    if not is_same(_checkable(facts.get("trained")), _checkable(trained_facts(folder, source))):
        yield (
            f"run {folder.manifest().run_id}: the models in the facts of its release are not those of its "
            f"{folder.spec.name} and its stages"
        )


def _checkable(trained: Any) -> Any:
    if not isinstance(trained, list):
        return trained
    return [
        {name: value for name, value in group.items() if name not in _UNCHECKED} if isinstance(group, dict) else group
        for group in trained
    ]
