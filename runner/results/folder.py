"""A run's folder: what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from runner.errors import RunError, UsageError
from runner.results.manifest import Manifest, Status
from runner.storage.atomic import atomic_write, read_json
from runner.storage.journal import JOURNAL
from runner.storage.locks import is_locked


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

    def manifest(self) -> Manifest:
        """The manifest. A run that says it is running and that no process holds was interrupted.

        Raises:
            RunError: it is missing, damaged, or none of ours.
        """
        data = read_json(self.manifest_path)
        try:
            manifest = Manifest.from_json(data)
        except (TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{self.manifest_path} is no manifest of ours") from error
        if manifest.status == Status.RUNNING and not is_locked(self.lock):
            return replace(manifest, status=Status.INTERRUPTED)
        return manifest

    def damage(self) -> str | None:
        """Why the manifest cannot be read, and what to do; None where it can."""
        try:
            self.manifest()
        except RunError as error:
            return f"{error}; left out. Remove the file to have the run made again from its journal by its own command"
        return None

    def write_manifest(self, manifest: Manifest) -> None:
        atomic_write(self.manifest_path, orjson.dumps(manifest.to_json(), option=orjson.OPT_INDENT_2))


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
