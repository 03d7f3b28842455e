"""The backends `dummy` and `files`: generated model names, and models trained by the user."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import RunError
from runner.models.settings import ModelSettings
from runner.spec.backend_traits import TRAITS
from runner.spec.schemas import experiment_schema
from runner.spec.training_settings import TrainerSettings
from runner.training.backends.interface import FineTuneJob, JobState, JobStatus
from runner.training.backends.model_name import MAX_LENGTH, name_problem
from runner.training.backends.registry import BACKENDS, TrainedGroup, create_backend
from tests.support.fine_tuning_jobs import fail_on_record, make_job


def submit_and_poll(job: FineTuneJob, backend: Any, chosen: str | None = None) -> JobStatus:
    job_backend = create_backend(
        TrainedGroup("m", TrainerSettings(backend=backend), ModelSettings(model="tiny"), chosen)
    )
    return job_backend.poll(job, job_backend.submit(job, [], fail_on_record))


def test_every_backend_of_the_schema_has_a_class_and_traits() -> None:
    trainer = experiment_schema()["$defs"]["TrainerSettings"]["properties"]
    assert set(trainer["backend"]["enum"]) == set(BACKENDS) == set(TRAITS)
    for traits in TRAITS.values():
        assert traits.requires <= traits.reads <= set(trainer)
        assert traits.format in trainer["format"]["enum"]


# dummy


def test_dummy_job_succeeds_at_once_with_a_name_derived_from_its_inputs(tmp_path: Path) -> None:
    status = submit_and_poll(make_job(tmp_path), "dummy")
    assert status.state is JobState.SUCCEEDED
    assert re.fullmatch(r"tiny:dummy-12-[0-9a-f]{8}", status.model or "")
    assert status == submit_and_poll(make_job(tmp_path), "dummy")


@pytest.mark.parametrize(
    "change", [{"base_model": "small"}, {"method": "dpo"}, {"dataset_sha256": "cd" * 32}, {"seed": 8}]
)
def test_dummy_model_name_depends_on_all_inputs_of_the_training(tmp_path: Path, change: dict[str, Any]) -> None:
    base_status, changed_status = (
        submit_and_poll(make_job(tmp_path), "dummy"),
        submit_and_poll(make_job(tmp_path, **change), "dummy"),
    )
    assert (base_status.model or "").partition(":")[2] != (changed_status.model or "").partition(":")[2]


def test_repeated_dummy_training_keeps_a_short_model_name(tmp_path: Path) -> None:
    names = ["tiny"]
    for _ in range(5):
        names.append(submit_and_poll(make_job(tmp_path, base_model=names[-1]), "dummy").model or "")
    assert len(set(names)) == 6
    assert [name.rpartition("-")[0] for name in names[1:]] == [f"tiny:dummy-{12 * n}" for n in range(1, 6)]


def test_dummy_model_of_0_1_0_can_be_trained_further(tmp_path: Path) -> None:
    status = submit_and_poll(make_job(tmp_path, base_model="tiny:dummy-01234567"), "dummy")
    assert re.fullmatch(r"tiny:dummy-12-[0-9a-f]{8}", status.model or "")


# files


def test_files_backend_waits_and_writes_instructions(tmp_path: Path) -> None:
    job = make_job(tmp_path, base_model="org/tiny", method="dpo")
    status = submit_and_poll(job, "files")
    assert (status.state, status.model) == (JobState.WAITING, None)
    readme = (job.folder / "README.txt").read_text("utf-8")
    for text in (status.message, readme):
        for part in ("org/tiny", str(job.dataset), "dpo", "--set-model m=NAME"):
            assert part in text


def test_files_backend_resumes_with_the_model_named_by_the_user(tmp_path: Path) -> None:
    status = submit_and_poll(make_job(tmp_path), "files", "org/tiny-better")
    assert (status.state, status.model) == (JobState.SUCCEEDED, "org/tiny-better")


def test_model_name_applies_to_one_job_and_not_to_the_next_iteration(tmp_path: Path) -> None:
    backend = create_backend(TrainedGroup("m", TrainerSettings(backend="files"), ModelSettings(), "better"))
    first, second = make_job(tmp_path), make_job(tmp_path, key="run/2/m", base_model="better")
    assert [backend.poll(job, {}).state for job in (first, second, first)] == ["succeeded", "waiting", "succeeded"]


def test_repeated_command_of_the_previous_iteration_names_no_new_model(tmp_path: Path) -> None:
    status = submit_and_poll(make_job(tmp_path, base_model="better"), "files", "better")
    assert status.state is JobState.WAITING
    assert "not the trained model" in status.message


def test_earlier_model_of_the_group_is_not_accepted_as_the_result(tmp_path: Path) -> None:
    status = submit_and_poll(make_job(tmp_path, earlier_models=frozenset({"first", "second"})), "files", "first")
    assert status.state is JobState.WAITING
    assert "first is an earlier model of m" in status.message


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\x1b[2J", "a ", "x" * (MAX_LENGTH + 1), "a\u202eb", "a\tb"])
def test_invalid_model_name_is_rejected(tmp_path: Path, name: str) -> None:
    assert name_problem(name, make_job(tmp_path))
    with pytest.raises(RunError, match="--set-model m=NAME"):
        submit_and_poll(make_job(tmp_path), "files", name)


@pytest.mark.parametrize("name", ["gpt-4o-mini-2024-07-18", "ft:tiny:org:a b:1", "/models/a/é", "x" * MAX_LENGTH])
def test_valid_model_name_is_accepted(tmp_path: Path, name: str) -> None:
    assert name_problem(name, make_job(tmp_path)) is None


def test_names_of_earlier_models_and_of_other_groups_are_rejected(tmp_path: Path) -> None:
    job = make_job(tmp_path, earlier_models=frozenset({"first"}), other_models=frozenset({"strong"}))
    problems = [name_problem(name, job) or "" for name in ("first", "strong")]
    assert "an earlier model of m" in problems[0]
    assert "a model of another group" in problems[1]


# formats


@pytest.mark.parametrize(
    ("backend", "chosen", "format_"),
    [("command", None, "trl"), ("openai", None, "openai"), ("files", None, "openai"), ("dummy", None, "openai"),
     ("command", "openai", "openai"), ("files", "trl", "trl")],
)  # fmt: skip
def test_dataset_format_is_the_backends_default_unless_set(backend: Any, chosen: Any, format_: str) -> None:
    assert TrainerSettings(backend=backend, format=chosen).dataset_format == format_


@pytest.mark.parametrize(
    ("backend", "chosen", "seconds"), [("command", None, 1), ("openai", None, 30), ("command", 9, 9), ("openai", 2, 2)]
)
def test_poll_interval_is_shorter_for_local_processes_than_for_servers(
    backend: Any, chosen: Any, seconds: float
) -> None:
    assert TrainerSettings(backend=backend, poll_seconds=chosen).seconds_between_polls == seconds
