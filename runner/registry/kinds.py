"""Whether a run is a benchmark or a training follows from its spec, and from nothing that is said of it elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.errors import ReleaseError
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.spec.from_run import Source

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


def check_kind(folder: RunFolder, facts: Mapping[str, Any]) -> None:
    """See that what a release says is the kind of its run: before it is published, and where it is read.

    Raises:
        ReleaseError: it is not.
        RunError, SpecError: the run's files cannot be read.
    """
    manifest = folder.manifest()
    kind = kind_of(manifest, Source(folder.path).spec)
    if facts.get("kind") != kind:
        raise ReleaseError(f"run {manifest.run_id} is of kind {kind}, and its release says {facts.get('kind')!r}")
