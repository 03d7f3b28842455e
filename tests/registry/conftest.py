"""Results of a training run with benchmarks of its models and of the untrained models, and a registry of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from runner import run
from runner.registry.board.board import registry_board
from runner.registry.board.cache import BoardCache
from runner.registry.transports.folder import FolderTransport
from runner.registry.transports.registry import Registry
from runner.spec.loader import load_spec
from tests.registry.planted import RecordingFolder, publish_runs
from tests.support.training import training_spec


@pytest.fixture(scope="session")
def trained_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`learn` trains one iteration on 12 datapoints; `after` measures its models on 18, `before` the untrained ones."""
    folder = tmp_path_factory.mktemp("trained")
    results = folder / "results"
    path = training_spec(folder, training={"iterations": 1})
    run(load_spec(path), results, run_id="learn")
    benchmark_options: dict[str, Any] = {
        "kind": "benchmark",
        "training": None,
        "name": "measure",
        "benchmark": "code/v1",
    }
    benchmark_options["dataset"] = {"path": "data.jsonl", "split": None}
    after = {group: {"provider": None, "from_run": str(results / "runs" / "learn")} for group in ("p", "v")}
    for name, models in (("before", {}), ("after", after)):
        spec = load_spec(training_spec(folder / name, **benchmark_options, models=models))
        run(spec, results, run_id=name)
    return results


@pytest.fixture(scope="session")
def registry_with_cache(trained_results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a registry of these runs, published by acme, and the cache of its board."""
    folder = tmp_path_factory.mktemp("with cache")
    shared_registry = Registry(FolderTransport(str(folder / "registry")))
    publish_runs(shared_registry, trained_results, "acme")
    registry_board(shared_registry, cache=folder / "cache")
    return folder


@pytest.fixture
def registry(registry_with_cache: Path, tmp_path: Path) -> Registry:
    """Return a copy of the registry."""
    shutil.copytree(registry_with_cache / "registry", tmp_path / "registry")
    return Registry(RecordingFolder(str(tmp_path / "registry")))


@pytest.fixture
def cache(registry_with_cache: Path, registry: Registry, tmp_path: Path) -> Path:
    """Return a copy of the cache."""
    (original,) = (registry_with_cache / "cache").iterdir()
    shutil.copytree(original, BoardCache.for_registry(registry, tmp_path / "cache").path, dirs_exist_ok=True)
    return tmp_path / "cache"
