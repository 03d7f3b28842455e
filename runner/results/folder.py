"""A run's folder: what it holds, and a plan into a new one that is complete in itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from runner.errors import RunError, UsageError
from runner.storage.atomic import atomic_write, read_json
from runner.storage.journal import JOURNAL
from runner.storage.locks import is_locked

RUNNING, DONE, FAILED, INTERRUPTED = "running", "done", "failed", "interrupted"


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def spec(self) -> Path:
        return self.path / "spec.yaml"

    @property
    def manifest_path(self) -> Path:
        return self.path / "manifest.json"

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    @property
    def log(self) -> Path:
        return self.path / "run.log"

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    @property
    def in_flight(self) -> Path:
        return self.path / ".in_flight"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def fine_tune(self) -> Path:
        return self.path / "fine_tune"

    def table(self, name: str) -> Path:
        return self.path / f"{name}.parquet"

    def manifest(self) -> dict[str, Any]:
        """The manifest. A run that says it is running and that no process holds was interrupted."""
        manifest = read_json(self.manifest_path)
        if manifest["status"] == RUNNING and not is_locked(self.lock):
            manifest["status"] = INTERRUPTED
        return manifest

    def damage(self) -> str | None:
        """Why the manifest cannot be read, and what to do; None where it can."""
        try:
            self.manifest()
        except RunError as error:
            return f"{error}; left out. Remove the file to have the run made again from its journal by its own command"
        except (KeyError, TypeError):
            return f"{self.manifest_path} is no manifest of ours; left out"
        return None

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        atomic_write(self.manifest_path, orjson.dumps(manifest, option=orjson.OPT_INDENT_2))


def is_training_run(manifest: Mapping[str, Any]) -> bool:
    """Whether a run is a training run as a whole, whose games are in runs of their own."""
    return bool(manifest["kind"] == "training" and manifest["parent_run_id"] is None)


def run_folders(results: Path) -> Iterator[RunFolder]:
    """Every run below a results folder, by name; damaged ones are left out (see `damaged_folders`)."""
    runs = results / "runs"
    for path in sorted(runs.iterdir()) if runs.is_dir() else ():
        folder = RunFolder(path)
        if folder.manifest_path.is_file() and folder.damage() is None:
            yield folder


def damaged_folders(results: Path) -> list[str]:
    """What is wrong with the run folders that every list leaves out."""
    runs = results / "runs"
    paths = sorted(runs.glob("*/manifest.json")) if runs.is_dir() else []
    return [found for path in paths if (found := RunFolder(path.parent).damage()) is not None]


def find_run(results: Path, name: str) -> RunFolder:
    """A run by its id, by the start of it where that is one run's alone, or by its folder.

    Raises:
        UsageError: there is none, or there are several.
    """
    direct = Path(name)
    if (direct / "manifest.json").is_file():
        return RunFolder(direct)
    exact = results / "runs" / name
    if (exact / "manifest.json").is_file() and name:
        return RunFolder(exact)
    found = [folder for folder in run_folders(results) if folder.run_id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{name!r} is the start of {len(found)} runs: {', '.join(f.run_id for f in found[:5])}")
    raise UsageError(f"no run {name!r} in {results}; `nip-run runs` lists them")
