"""Finished runs are recognized even if another version saved the spec; runs with changed keys are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.base.errors import RunDirectoryError
from runner.results.folder import RunFolder
from runner.runs.finished.selection import ReplayOf
from tests.support.runs import run_spec
from tests.support.specs import spec_file
from tests.support.training import run_training, training_spec


def rewrite_saved_spec(folder: RunFolder, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite the spec of a run as another version would have saved it, with another hash in the manifest."""
    spec = yaml.safe_load(folder.spec.read_text("utf-8"))
    change(spec)
    folder.spec.write_text(yaml.safe_dump(spec), "utf-8")
    folder.write_manifest(replace(folder.manifest(), spec_sha256="0" * 64))


def remove_defaults(spec: dict[str, Any]) -> None:
    del spec["rollouts"]["max_calls"], spec["decision_format"], spec["description"]


def read_files(folder: RunFolder) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


@pytest.mark.full
def test_finished_run_saved_with_fewer_defaults_is_recognized_unchanged(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    folder = run_spec(path, tmp_path / "results").folder
    rewrite_saved_spec(folder, remove_defaults)
    before = read_files(folder)
    assert run_spec(path, tmp_path / "results").was_finished
    assert read_files(folder) == before


@pytest.mark.full
def test_finished_training_run_saved_with_fewer_defaults_is_recognized_unchanged(tmp_path: Path) -> None:
    path = training_spec(tmp_path, training={"iterations": 1})
    folder = run_training(path, tmp_path / "results").folder
    rewrite_saved_spec(folder, remove_defaults)
    before = read_files(folder)
    repeated = run_training(path, tmp_path / "results")
    assert (repeated.was_finished, repeated.notes) == (True, ())
    assert read_files(folder) == before


@pytest.mark.full
@pytest.mark.parametrize("override", ["rollouts.per_datapoint=2", "fine_tune.min_examples=3"])
def test_changed_key_is_detected_despite_missing_defaults(tmp_path: Path, override: str) -> None:
    path = spec_file(tmp_path, size=2)
    folder = run_spec(path, tmp_path / "results").folder
    rewrite_saved_spec(folder, remove_defaults)
    assert not run_spec(path, tmp_path / "results", override).was_finished


def test_missing_defaults_are_not_reported_as_changed_keys(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    folder = run_spec(path, tmp_path / "results").folder
    rewrite_saved_spec(folder, remove_defaults)
    with pytest.raises(RunDirectoryError, match=r"these keys differ: seed\. Choose"):
        run_spec(path, tmp_path / "results", "seed=8", run_id=folder.run_id)


@pytest.mark.full
def test_unreadable_saved_spec_is_rewritten(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    folder = run_spec(path, tmp_path / "results").folder
    before = folder.spec.read_bytes()
    rewrite_saved_spec(folder, lambda spec: spec.update(no_such_key=1))
    assert not run_spec(path, tmp_path / "results").was_finished
    assert folder.spec.read_bytes() == before


def test_saved_spec_with_the_same_hash_is_not_read(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    folder = run_spec(path, tmp_path / "results").folder
    folder.spec.write_text("damaged: [", "utf-8")
    assert run_spec(path, tmp_path / "results").was_finished


@pytest.mark.full
def test_path_of_a_replayed_run_does_not_count_as_a_change(tmp_path: Path) -> None:
    first = run_spec(spec_file(tmp_path, size=2), tmp_path / "results").folder
    models = {"m": {"provider": "replay", "run": str(first.path)}}
    path = spec_file(tmp_path, size=2, name="copy", models=models)
    folder = run_spec(path, tmp_path / "results").folder
    rewrite_saved_spec(folder, remove_defaults)
    assert run_spec(path, tmp_path / "results").was_finished
    replay = run_spec(spec_file(tmp_path, size=2), tmp_path / "results", replay=ReplayOf(first.path))
    rewrite_saved_spec(replay.folder, remove_defaults)
    repeated_replay = run_spec(
        spec_file(tmp_path, size=2), tmp_path / "results", run_id=replay.folder.run_id, replay=ReplayOf(first.path)
    )
    assert repeated_replay.was_finished


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "saved", ["dataset: {path: x}\nkind: benchmark\n", "dataset: {}\nmodels: {m: 1}\n", "models: {}\n"]
)
def test_damaged_saved_spec_is_reported(tmp_path: Path, saved: str) -> None:
    run = run_spec(spec_file(tmp_path, size=2), tmp_path / "results").folder
    run.spec.write_text(saved)
    with pytest.raises(RunDirectoryError, match=r"the saved spec cannot be read \(.*spec\.yaml"):
        run_spec(tmp_path / "spec.yaml", tmp_path / "results", "seed=8", run_id=run.run_id)
