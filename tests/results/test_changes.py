"""A finished run is known again, whichever version saved its spec, and one that is to be another is not."""

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


def saved_otherwise(folder: RunFolder, change: Callable[[dict[str, Any]], object]) -> None:
    """Have a run's spec as another version would have saved it, under the hash that this one would have had."""
    spec = yaml.safe_load(folder.spec.read_text("utf-8"))
    change(spec)
    folder.spec.write_text(yaml.safe_dump(spec), "utf-8")
    folder.write_manifest(replace(folder.manifest(), spec_sha256="0" * 64))


def without_defaults(spec: dict[str, Any]) -> None:
    del spec["rollouts"]["max_calls"], spec["decision_format"], spec["description"]


def contents(folder: RunFolder) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


@pytest.mark.full
def test_a_finished_run_that_knew_fewer_defaults_is_shown_as_it_is(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    folder = run_spec(path, tmp_path / "results").folder
    saved_otherwise(folder, without_defaults)
    before = contents(folder)
    assert run_spec(path, tmp_path / "results").was_finished
    assert contents(folder) == before


@pytest.mark.full
def test_a_finished_training_run_that_knew_fewer_defaults_is_too(tmp_path: Path) -> None:
    path = training_spec(tmp_path, training={"iterations": 1})
    folder = run_training(path, tmp_path / "results").folder
    saved_otherwise(folder, without_defaults)
    before = contents(folder)
    again = run_training(path, tmp_path / "results")
    assert (again.was_finished, again.notes) == (True, ())
    assert contents(folder) == before


@pytest.mark.full
@pytest.mark.parametrize("override", ["rollouts.per_datapoint=2", "fine_tune.min_examples=3"])
def test_a_changed_key_is_seen_whatever_the_defaults(tmp_path: Path, override: str) -> None:
    path = spec_file(tmp_path, size=2)
    folder = run_spec(path, tmp_path / "results").folder
    saved_otherwise(folder, without_defaults)
    assert not run_spec(path, tmp_path / "results", override).was_finished


def test_what_an_earlier_version_did_not_know_is_no_changed_key(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    folder = run_spec(path, tmp_path / "results").folder
    saved_otherwise(folder, without_defaults)
    with pytest.raises(RunDirectoryError, match=r"these keys differ: seed\. Choose"):
        run_spec(path, tmp_path / "results", "seed=8", run_id=folder.run_id)


@pytest.mark.full
def test_a_saved_spec_that_cannot_be_read_is_written_again(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    folder = run_spec(path, tmp_path / "results").folder
    before = folder.spec.read_bytes()
    saved_otherwise(folder, lambda spec: spec.update(no_such_key=1))
    assert not run_spec(path, tmp_path / "results").was_finished
    assert folder.spec.read_bytes() == before


def test_a_saved_spec_under_its_own_hash_is_not_even_read(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    folder = run_spec(path, tmp_path / "results").folder
    folder.spec.write_text("damaged: [", "utf-8")
    assert run_spec(path, tmp_path / "results").was_finished


@pytest.mark.full
def test_where_a_replayed_run_stands_is_no_change(tmp_path: Path) -> None:
    first = run_spec(spec_file(tmp_path, size=2), tmp_path / "results").folder
    models = {"m": {"provider": "replay", "run": str(first.path)}}
    path = spec_file(tmp_path, size=2, name="copy", models=models)
    folder = run_spec(path, tmp_path / "results").folder
    saved_otherwise(folder, without_defaults)
    assert run_spec(path, tmp_path / "results").was_finished
    again = run_spec(spec_file(tmp_path, size=2), tmp_path / "results", replay=ReplayOf(first.path))
    saved_otherwise(again.folder, without_defaults)
    same = run_spec(
        spec_file(tmp_path, size=2), tmp_path / "results", run_id=again.folder.run_id, replay=ReplayOf(first.path)
    )
    assert same.was_finished


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "saved", ["dataset: {path: x}\nkind: benchmark\n", "dataset: {}\nmodels: {m: 1}\n", "models: {}\n"]
)
def test_a_saved_spec_that_is_damaged_is_said_to_be(tmp_path: Path, saved: str) -> None:
    run = run_spec(spec_file(tmp_path, size=2), tmp_path / "results").folder
    run.spec.write_text(saved)
    with pytest.raises(RunDirectoryError, match=r"the saved spec cannot be read \(.*spec\.yaml"):
        run_spec(tmp_path / "spec.yaml", tmp_path / "results", "seed=8", run_id=run.run_id)
