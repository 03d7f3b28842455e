"""The fine-tune backends that need nobody else: a dummy's names, and files that wait for the user."""

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
from runner.training.backends.registry import BACKENDS, backend_for
from tests.support.fine_tuning_jobs import fail_on_record, make_job


def status_of(job: FineTuneJob, backend: Any, chosen: str | None = None) -> JobStatus:
    found = backend_for("m", TrainerSettings(backend=backend), ModelSettings(model="tiny"), chosen)
    return found.poll(job, found.submit(job, [], fail_on_record))


def test_every_backend_of_the_schema_has_its_class_and_its_traits() -> None:
    trainer = experiment_schema()["$defs"]["TrainerSettings"]["properties"]
    assert set(trainer["backend"]["enum"]) == set(BACKENDS) == set(TRAITS)
    for traits in TRAITS.values():
        assert traits.requires <= traits.reads <= set(trainer)
        assert traits.format in trainer["format"]["enum"]


# dummy


def test_a_dummy_has_trained_at_once_under_a_name_that_says_from_what(tmp_path: Path) -> None:
    status = status_of(make_job(tmp_path), "dummy")
    assert status.state is JobState.SUCCEEDED
    assert re.fullmatch(r"tiny:dummy-12-[0-9a-f]{8}", status.model or "")
    assert status == status_of(make_job(tmp_path), "dummy")


@pytest.mark.parametrize(
    "change", [{"base_model": "small"}, {"method": "dpo"}, {"dataset_sha256": "cd" * 32}, {"seed": 8}]
)
def test_a_dummys_name_depends_on_all_that_its_training_does(tmp_path: Path, change: dict[str, Any]) -> None:
    one, other = status_of(make_job(tmp_path), "dummy"), status_of(make_job(tmp_path, **change), "dummy")
    assert (one.model or "").partition(":")[2] != (other.model or "").partition(":")[2]


def test_a_chain_of_dummy_trainings_keeps_a_short_name(tmp_path: Path) -> None:
    names = ["tiny"]
    for _ in range(5):
        names.append(status_of(make_job(tmp_path, base_model=names[-1]), "dummy").model or "")
    assert len(set(names)) == 6
    assert [name.rpartition("-")[0] for name in names[1:]] == [f"tiny:dummy-{12 * n}" for n in range(1, 6)]


def test_a_dummy_of_0_1_0_is_trained_on_under_a_name_with_a_number(tmp_path: Path) -> None:
    status = status_of(make_job(tmp_path, base_model="tiny:dummy-01234567"), "dummy")
    assert re.fullmatch(r"tiny:dummy-12-[0-9a-f]{8}", status.model or "")


# files


def test_files_wait_and_say_what_to_do(tmp_path: Path) -> None:
    job = make_job(tmp_path, base_model="org/tiny", method="dpo")
    status = status_of(job, "files")
    assert (status.state, status.model) == (JobState.WAITING, None)
    readme = (job.folder / "README.txt").read_text("utf-8")
    for text in (status.message, readme):
        for part in ("org/tiny", str(job.dataset), "dpo", "--set-model m=NAME"):
            assert part in text


def test_files_go_on_with_the_model_that_the_user_names(tmp_path: Path) -> None:
    status = status_of(make_job(tmp_path), "files", "org/tiny-better")
    assert (status.state, status.model) == (JobState.SUCCEEDED, "org/tiny-better")


def test_a_name_is_for_one_job_and_not_for_the_next_iteration(tmp_path: Path) -> None:
    backend = backend_for("m", TrainerSettings(backend="files"), ModelSettings(), "better")
    first, second = make_job(tmp_path), make_job(tmp_path, key="run/2/m", base_model="better")
    assert [backend.poll(job, {}).state for job in (first, second, first)] == ["succeeded", "waiting", "succeeded"]


def test_the_command_of_the_iteration_before_run_again_names_no_new_model(tmp_path: Path) -> None:
    status = status_of(make_job(tmp_path, base_model="better"), "files", "better")
    assert status.state is JobState.WAITING
    assert "not the trained model" in status.message


def test_a_model_that_the_group_had_before_is_not_the_result_of_training(tmp_path: Path) -> None:
    status = status_of(make_job(tmp_path, earlier_models=frozenset({"first", "second"})), "files", "first")
    assert status.state is JobState.WAITING
    assert "first is an earlier model of m" in status.message


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\x1b[2J", "a ", "x" * (MAX_LENGTH + 1), "a\u202eb", "a\tb"])
def test_what_cannot_name_a_model_is_refused(tmp_path: Path, name: str) -> None:
    assert name_problem(name, "tiny")
    with pytest.raises(RunError, match="--set-model m=NAME"):
        status_of(make_job(tmp_path), "files", name)


@pytest.mark.parametrize("name", ["gpt-4o-mini-2024-07-18", "ft:tiny:org:a b:1", "/models/a/é", "x" * MAX_LENGTH])
def test_what_can_name_a_model_is_taken(name: str) -> None:
    assert name_problem(name, "tiny") is None


# formats


@pytest.mark.parametrize(
    ("backend", "chosen", "format_"),
    [("command", None, "trl"), ("openai", None, "openai"), ("files", None, "openai"), ("dummy", None, "openai"),
     ("command", "openai", "openai"), ("files", "trl", "trl")],
)  # fmt: skip
def test_the_format_is_the_trainers_own_unless_one_is_chosen(backend: Any, chosen: Any, format_: str) -> None:
    assert TrainerSettings(backend=backend, format=chosen).dataset_format == format_


@pytest.mark.parametrize(
    ("backend", "chosen", "seconds"), [("command", None, 1), ("openai", None, 30), ("command", 9, 9), ("openai", 2, 2)]
)
def test_a_process_of_ours_is_looked_at_more_often_than_a_server(backend: Any, chosen: Any, seconds: float) -> None:
    assert TrainerSettings(backend=backend, poll_seconds=chosen).seconds_between_polls == seconds
