"""A results folder: its runs, by name, and whose they are."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from runner.errors import RunDirectoryError, RunError
from runner.results.changes import changed_keys
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.results.provenance import new_manifest
from runner.rollouts.plan import Plan


class Identified(Protocol):
    """What tells runs apart: a plan of games, or of training."""

    @property
    def identity(self) -> str: ...

    @property
    def mutable_keys(self) -> tuple[str, ...]:
        """The keys of a spec that are not in the identity; `*` is any one name."""
        ...


def open_folder(plan: Plan, results: Path, run_id: str, run: Identified | None = None) -> tuple[RunFolder, Manifest]:
    """The folder of a run: a new one, or the one that was begun, with its manifest.

    `run` is what tells the run apart, where that is not the plan of its games.

    Raises:
        RunDirectoryError: the folder belongs to another spec.
        RunError: it cannot be written.
    """
    folder = RunFolder(results / "runs" / run_id)
    manifest = manifest_of(plan, folder, run)
    if manifest is not None:
        return folder, manifest
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make {folder.path}: {error.strerror}") from error
    return folder, new_manifest(plan, run_id, (run or plan).identity)


def manifest_of(plan: Plan, folder: RunFolder, run: Identified | None = None) -> Manifest | None:
    """The manifest of a plan's run, or of the run that its games are for; None where it has not begun.

    Raises:
        RunDirectoryError: the folder belongs to another spec.
    """
    if not folder.manifest_path.is_file():
        return None
    manifest = folder.manifest()
    if manifest.identity != (run or plan).identity:
        keys = changed_keys(folder, manifest, plan, (run or plan).mutable_keys)
        what = f"these keys differ: {', '.join(keys)}" if keys else "the contents of its files differ"
        raise RunDirectoryError(f"{folder.path} holds another spec's run; {what}. Choose another --run-id")
    return manifest
