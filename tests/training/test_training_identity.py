"""Identity of training runs: settings that make a new run, mutable settings, and unused settings."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import RunDirectoryError, SpecError, Waiting
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Status
from runner.results.provenance.input_files import write_inputs
from runner.spec.loader import load_spec
from runner.training.plan import TrainingPlan
from tests.support.processes import nip_run_here
from tests.support.training import malt_changes, provider_changes, run_training, training_spec

UNUSED_URL = "http://127.0.0.1:9/v1"


def write_provider_spec(folder: Path, **changes: Any) -> Path:
    """Write a spec whose groups are trained by a provider that is never called."""
    return training_spec(folder, **provider_changes(UNUSED_URL, **changes))


def run_ids(path: Path, *overrides: str) -> set[str]:
    return {TrainingPlan(load_spec(path, [override])).run_id for override in overrides}


# Identity


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["n_epochs=3", "batch_size=4", "learning_rate_multiplier=0.5"])
def test_hyperparameter_changes_the_run_id(tmp_path: Path, name: str) -> None:
    path = write_provider_spec(tmp_path)
    assert (
        len(run_ids(path, "training.iterations=2", f"training.trainers.p.{name}", f"training.trainers.v.{name}")) == 3
    )


@pytest.mark.full
def test_from_scratch_of_a_group_changes_the_run_id_only_if_it_differs_from_the_default(tmp_path: Path) -> None:
    path, key = write_provider_spec(tmp_path), "training.trainers.p.from_scratch"
    assert len(run_ids(path, "training.iterations=2", f"{key}=false")) == 1
    assert len(run_ids(path, "training.from_scratch=true", f"{key}=true", f"{key}=false")) == 3


@pytest.mark.parametrize(
    "name", ["suffix=x", "poll_seconds=3", "validating_minutes=3", "format=openai", "load_lora=false"]
)
def test_trainer_settings_without_effect_on_the_model_keep_the_run_id(tmp_path: Path, name: str) -> None:
    assert len(run_ids(write_provider_spec(tmp_path), "training.iterations=2", f"training.trainers.p.{name}")) == 1


def test_sweep_over_a_hyperparameter_has_one_run_per_value(tmp_path: Path) -> None:
    write_provider_spec(tmp_path, sweep={"training.trainers.p.n_epochs": [1, 3]})
    checked = nip_run_here("check", "spec.yaml", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("sweep", "key"),
    [
        ({"training.iterations": [2, 1]}, "sweep.training.iterations"),
        ({"training.trainers.p.suffix": ["a", "b"], "seed": [0, 1]}, "sweep.training.trainers.p.suffix"),
        ({"seed": [1, 1]}, "sweep.seed"),
    ],
)
def test_sweep_points_with_the_same_run_id_are_rejected(tmp_path: Path, sweep: dict[str, Any], key: str) -> None:
    write_provider_spec(tmp_path, sweep=sweep)
    for command in ("check", "run"):
        result = nip_run_here(command, "spec.yaml", cwd=tmp_path)
        assert result.returncode == 2
        assert re.search(rf"^spec\.yaml:\d+:\d+: {re.escape(key)}: ", result.stderr, re.MULTILINE)
        assert not (tmp_path / "results").exists()


@pytest.mark.full
def test_changed_hyperparameter_is_named_if_the_run_id_is_taken(tmp_path: Path) -> None:
    path = write_provider_spec(tmp_path)
    plan = TrainingPlan(load_spec(path))
    folder, manifest = Results(tmp_path / "results").open(plan, "mine")
    write_inputs(plan.games, folder)
    folder.write_manifest(manifest)
    with pytest.raises(RunDirectoryError, match=r"these keys differ: training\.trainers\.p\.n_epochs\. Choose another"):
        run_training(
            path, tmp_path / "results", "training.trainers.p={backend: openai, n_epochs: 3, suffix: x}",
            "training.iterations=5", run_id="mine",
        )  # fmt: skip


# Provenance


def read_provenance(folder: RunFolder) -> dict[str, bytes]:
    files = [folder.spec, folder.manifest_path, *sorted((folder.path / "inputs").rglob("*.*"))]
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.full
def test_finished_run_is_unchanged_by_other_trainers_and_reports_it(tmp_path: Path) -> None:
    path = training_spec(tmp_path, training={"iterations": 1})
    done = run_training(path, tmp_path / "results")
    before = read_provenance(done.folder)
    rerun = run_training(path, tmp_path / "results", "training.trainers.p={backend: files}", "models.v.timeout=9")
    assert rerun.was_finished
    assert read_provenance(done.folder) == before
    (note,) = rerun.notes
    assert "these changed keys have no effect: models.v.timeout, training.trainers.p.backend;" in note


@pytest.mark.full
def test_other_trainers_are_not_recorded_if_only_a_test_is_left(tmp_path: Path) -> None:
    path = training_spec(tmp_path, training={"iterations": 1})
    folder = run_training(path, tmp_path / "results").folder
    log = folder.path / "stages.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    folder.write_manifest(replace(folder.manifest(), status=Status.INTERRUPTED))
    before = folder.spec.read_bytes()
    done = run_training(path, tmp_path / "results", "training.trainers.p={backend: files}")
    assert (done.manifest.status, folder.spec.read_bytes()) == ("done", before)
    assert [note for note in done.notes if "training.trainers.p.backend" in note]


@pytest.mark.full
def test_additional_iterations_can_use_and_record_other_trainers(tmp_path: Path) -> None:
    path = training_spec(tmp_path, training={"iterations": 1})
    first = run_training(path, tmp_path / "results")
    with pytest.raises(Waiting):
        run_training(path, tmp_path / "results", "training.trainers.p={backend: files}", "training.iterations=2")
    assert "backend: files" in first.folder.spec.read_text("utf-8")


# Settings without an effect


COMMAND = {"backend": "command", "command": ["true", "{dataset}", "{model_file}"]}


@pytest.mark.parametrize(
    ("trainer", "key", "message"),
    [
        (
            {**COMMAND, "n_epochs": 3},
            "n_epochs",
            "your trainer does not receive this value; pass the value in `command`",
        ),
        ({**COMMAND, "beta": 0.1}, "beta", "pass the value in `command`"),
        ({**COMMAND, "suffix": "zz"}, "suffix", "suffix works only with `openai`; remove suffix"),
        (
            {"backend": "files", "batch_size": 3},
            "batch_size",
            "you choose this value yourself when you train by hand; leave the key out",
        ),
        ({"backend": "dummy", "learning_rate_multiplier": 2.0}, "learning_rate_multiplier", "nothing is trained"),
        ({**COMMAND, "backend": "files"}, "command", "command works only with `command`; remove command"),
        ({"backend": "dummy", "validating_minutes": 2.0}, "validating_minutes", "works only with `openai`"),
    ],
)
def test_trainer_key_without_an_effect_is_rejected(
    tmp_path: Path, trainer: dict[str, Any], key: str, message: str
) -> None:
    path = training_spec(tmp_path, training={"trainers": {"p": trainer}})
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if text.strip().startswith(f"{key}:"))
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    (problem,) = caught.value.problems
    assert (problem.key, problem.place.line) == (f"training.trainers.p.{key}", line)
    assert message in problem.message


def test_beta_is_accepted_only_for_malt(tmp_path: Path) -> None:
    changes = provider_changes(UNUSED_URL, **malt_changes(training={"trainers": {"p": {"beta": 0.2}}}))
    load_spec(training_spec(tmp_path / "malt", **changes))
    with pytest.raises(SpecError, match=r"expert_iteration trains supervised"):
        load_spec(write_provider_spec(tmp_path, training={"trainers": {"p": {"beta": 0.2}}}))


def test_selection_is_rejected_for_malt(tmp_path: Path) -> None:
    path = training_spec(tmp_path, **malt_changes(training={"selection": {"reward_threshold": 0.5}}))
    with pytest.raises(SpecError, match=r"training\.selection\.reward_threshold: malt selects no rollouts"):
        load_spec(path)


@pytest.mark.full
def test_saved_spec_with_all_defaults_is_accepted(tmp_path: Path) -> None:
    folder = run_training(
        training_spec(tmp_path, **malt_changes(training={"iterations": 1})), tmp_path / "results"
    ).folder
    load_spec(folder.spec)
